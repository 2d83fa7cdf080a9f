package ctl

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/pki"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// checker is what a call of check looks at.
type checker struct {
	configFile, pkiDir, tlsDir string
	peers                      map[string]string
	own                        string
	address, expect            string
	timeout                    time.Duration
	output                     string
	dns                        dnsFlags
}

func checkCommand() *cobra.Command {
	var c checker
	cmd := &cobra.Command{
		Use:   "check [--config FILE | --dir DIR | --tls-dir DIR] [--address HOST:PORT --expect ID]",
		Short: "say what is wrong with a certificate, name, clock, port, the DNS or Calico's pools",
		Long: `Looks at certificates, names, clocks, ports, the DNS and Calico's pools, and says in words what is wrong, who has to act and how.
It changes nothing.

  --config    all that the configuration file of an exporter, broker or agent names: certificate, roots of all
              clusters, brokers to be reached; with a broker's, whether the cluster's CoreDNS knows the names of
              remote services (--coredns), and whether its Calico leaves their pods alone. In a pod:
              kubectl -n semaphore exec deploy/semaphore-exporter -- semaphorectl check --config /etc/semaphore/config.yaml
  --dir       a directory of semaphorectl pki init
  --tls-dir   a directory with tls.crt, tls.key and CLUSTER.pem files
  --address   a listener: is it reached, does it speak TLS, who is there, does it take our certificate

Exit code 0 when all is well, 1 when there are warnings, 2 when there are errors or the command is used wrongly.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.use(); err != nil {
				return wrongUse(err)
			}
			facts, err := c.gather(cmd.Context())
			if err != nil {
				return wrongUse(err)
			}
			return report(cmd.OutOrStdout(), check.Judge(facts), c.output)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongUse(err) })
	f := cmd.Flags()
	f.StringVar(&c.configFile, "config", "", "configuration file of an exporter, broker or agent")
	f.StringVar(&c.pkiDir, "dir", "", "directory of `semaphorectl pki init`")
	f.StringVar(&c.tlsDir, "tls-dir", "", "directory with tls.crt, tls.key and CLUSTER.pem files")
	f.StringToStringVar(&c.peers, "peer-bundle", nil, "with --dir or --tls-dir, CLUSTER=FILE: the root certificates of a peer; may be repeated")
	f.StringVar(&c.own, "own", "", "with --tls-dir: the SPIFFE ID that tls.crt has to bear")
	f.StringVar(&c.address, "address", "", "host:port of a listener to try")
	f.StringVar(&c.expect, "expect", "", "with --address: the SPIFFE ID that has to be there, such as spiffe://c2/broker")
	f.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long to wait for each listener")
	f.StringVarP(&c.output, "output", "o", "table", "table or json")
	c.dns.flags(f)
	return cmd
}

func wrongUse(err error) error { return program.ExitError{Code: cli.ExitErrors, Err: err} }

// target of a connection.
type listener struct {
	address string
	expect  spiffeid.ID
}

// use says what is wrong with the flags together. cobra's own words for that end with exit code 1, which
// means warnings here.
func (c *checker) use() error {
	places := 0
	for _, p := range []string{c.configFile, c.pkiDir, c.tlsDir} {
		if p != "" {
			places++
		}
	}
	switch {
	case places > 1:
		return errors.New("--config, --dir, --tls-dir: give one of them")
	case places == 0 && c.address == "":
		return errors.New("give one of --config, --dir, --tls-dir, --address")
	case (c.address == "") != (c.expect == ""):
		return errors.New("--address and --expect: give both or none")
	case !slices.Contains([]string{"table", "json"}, c.output):
		return fmt.Errorf("--output %q: use table or json", c.output)
	case c.timeout <= 0:
		return fmt.Errorf("--timeout %s: use more than 0", c.timeout)
	}
	return c.dns.use(c.configFile)
}

// gather collects what there is to be known.
func (c *checker) gather(ctx context.Context) (check.Facts, error) {
	facts := check.Facts{Now: time.Now(), ConfigFile: c.configFile}
	facts.ClockSynced, facts.ClockKnown = check.Clock()
	var dial []listener
	if c.address != "" {
		id, err := spiffeid.FromString(c.expect)
		if err != nil {
			return facts, fmt.Errorf("--expect %q: %w: use a SPIFFE ID such as spiffe://c2/broker", c.expect, err)
		}
		dial = append(dial, listener{c.address, id})
	}
	for cluster := range c.peers {
		if err := config.ClusterName(cluster); err != nil {
			return facts, fmt.Errorf("--peer-bundle: %w", err)
		}
	}
	// show is what is shown to listeners, from the name of whom it is from.
	var show *tls.Certificate
	var from string
	var err error
	switch {
	case c.configFile != "":
		var more []listener
		show, from, more, err = c.gatherConfig(ctx, &facts)
		dial = append(dial, more...)
	case c.pkiDir != "":
		show, from, err = gatherPKI(&facts, c.pkiDir)
	case c.tlsDir != "":
		show, err = c.gatherTLSDir(&facts)
	}
	if err != nil {
		return facts, err
	}
	for cluster, file := range c.peers {
		facts.Roots = slices.DeleteFunc(facts.Roots, func(b check.Bundle) bool { return b.Cluster == cluster })
		facts.Roots = append(facts.Roots, check.ReadBundle(cluster, file))
	}
	slices.SortFunc(facts.Roots, func(a, b check.Bundle) int { return strings.Compare(a.Cluster, b.Cluster) })

	facts.Dialled = make([]check.Dialled, len(dial))
	var g errgroup.Group
	g.SetLimit(16)
	for i, l := range dial {
		g.Go(func() error {
			facts.Dialled[i] = check.Dial(ctx, l.address, from, l.expect, show, c.timeout)
			return nil
		})
	}
	return facts, g.Wait()
}

func (c *checker) gatherTLSDir(facts *check.Facts) (*tls.Certificate, error) {
	var want spiffeid.ID
	if c.own != "" {
		var err error
		if want, err = spiffeid.FromString(c.own); err != nil {
			return nil, fmt.Errorf("--own %q: %w: use a SPIFFE ID such as spiffe://c1/exporter", c.own, err)
		}
	}
	own, show := check.ReadOwn(filepath.Join(c.tlsDir, "tls.crt"), filepath.Join(c.tlsDir, "tls.key"), want, "semaphorectl pki rotate --dir DIR")
	facts.Own = append(facts.Own, own)
	files, err := filepath.Glob(filepath.Join(c.tlsDir, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("--tls-dir: %w", err)
	}
	for _, file := range files {
		facts.Roots = append(facts.Roots, check.ReadBundle(strings.TrimSuffix(filepath.Base(file), ".pem"), file))
	}
	return show, nil
}

// gatherPKI looks at all certificates of a directory. What is shown to listeners is the exporter's: it is who
// calls other clusters.
func gatherPKI(facts *check.Facts, dir string) (show *tls.Certificate, cluster string, err error) {
	cluster, _, err = pki.Bundle(dir)
	if err != nil {
		return nil, "", fmt.Errorf("--dir: %w", err)
	}
	items, err := pki.Inventory(dir)
	if err != nil {
		return nil, "", fmt.Errorf("--dir: %w", err)
	}
	bundle := check.Bundle{Cluster: cluster, File: dir}
	for _, item := range items {
		if item.Cert.IsCA {
			bundle.Roots = append(bundle.Roots, item.Cert)
			continue
		}
		part := filepath.Dir(item.File)
		own, pair := check.ReadOwn(filepath.Join(dir, item.File), filepath.Join(dir, part, "tls.key"), ownID(part, cluster), "semaphorectl pki rotate --dir "+dir)
		facts.Own = append(facts.Own, own)
		if part == "exporter" {
			show = pair
		}
	}
	facts.Roots = append(facts.Roots, bundle)
	return show, cluster, nil
}

func ownID(part, cluster string) spiffeid.ID {
	switch part {
	case "exporter":
		return identity.Exporter(cluster)
	case "broker":
		return identity.Broker(cluster)
	default:
		return identity.Semaphorectl(cluster)
	}
}

// gatherConfig looks at all that a configuration file names. A file that is wrong is a finding.
func (c *checker) gatherConfig(ctx context.Context, facts *check.Facts) (show *tls.Certificate, cluster string, dial []listener, err error) {
	file, dns := c.configFile, c.dns
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, "", nil, fmt.Errorf("--config: %w", err)
	}
	var keys struct {
		Brokers, Remotes []any
		Broker           any
	}
	if err := yaml.Unmarshal(text, &keys); err != nil {
		facts.ConfigErr = err
		return nil, "", nil, nil
	}
	var own spiffeid.ID
	var from config.TLS
	var clusters []string
	switch {
	case len(keys.Remotes) > 0:
		c, err := config.Load[config.Broker](file)
		if err != nil {
			facts.ConfigErr = err
			return nil, "", nil, nil
		}
		cluster, own, from = c.Cluster, identity.Broker(c.Cluster), c.TLS
		for _, r := range c.Remotes {
			clusters = append(clusters, r.Name)
		}
		facts.DNS = dns.gather(ctx, c, file)
		facts.Calico = gatherCalico(ctx, c, dns.kubeconfig)
		facts.Policies = gatherPolicies(ctx, c, dns.kubeconfig)
	case len(keys.Brokers) > 0:
		c, err := config.Load[config.Exporter](file)
		if err != nil {
			facts.ConfigErr = err
			return nil, "", nil, nil
		}
		cluster, own, from = c.Cluster, identity.Exporter(c.Cluster), c.TLS
		for _, b := range c.Brokers {
			clusters = append(clusters, b.Cluster)
			dial = append(dial, listener{b.Address, identity.Broker(b.Cluster)})
		}
	default:
		c, err := config.Load[config.Agent](file)
		if err != nil {
			facts.ConfigErr = fmt.Errorf("it has neither brokers (an exporter) nor remotes (a broker), and is no agent's either: %w", err)
			return nil, "", nil, nil
		}
		if c.Broker.WorkloadAPI == "" {
			facts.Roots = append(facts.Roots, check.ReadBundle(c.Cluster, c.Broker.BundleFile))
		} else {
			askWorkloadAPI(ctx, facts, c.Broker.WorkloadAPI, spiffeid.ID{}, []string{c.Cluster})
		}
		return nil, c.Cluster, []listener{{c.Broker.Address, identity.Broker(c.Cluster)}}, nil
	}
	if !slices.Contains(clusters, cluster) { // an exporter may publish to its own broker
		clusters = append(clusters, cluster)
	}
	if from.WorkloadAPI != "" {
		return askWorkloadAPI(ctx, facts, from.WorkloadAPI, own, clusters), cluster, dial, nil
	}
	found, pair := check.ReadOwn(from.CertFile, from.KeyFile, own, "semaphorectl pki rotate --dir DIR, then semaphorectl pki secrets")
	// A mounted Secret is for all that runs in the pod, which is nobody else.
	found.KeyOpen = false
	facts.Own = append(facts.Own, found)
	for _, name := range clusters {
		facts.Roots = append(facts.Roots, check.ReadBundle(name, filepath.Join(from.BundleDir, name+".pem")))
	}
	return pair, cluster, dial, nil
}

// askWorkloadAPI takes what files would hold from a Workload API.
func askWorkloadAPI(ctx context.Context, facts *check.Facts, address string, own spiffeid.ID, clusters []string) *tls.Certificate {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found, pair, roots := check.AskWorkloadAPI(ctx, address, own, clusters)
	facts.Own, facts.Roots = append(facts.Own, found), append(facts.Roots, roots...)
	return pair
}

// report prints findings, the bad ones last, where a reader of a terminal is, and returns what the exit code says.
func report(w io.Writer, findings []check.Finding, output string) error {
	rank := map[check.Level]int{check.OK: 0, check.Warning: 1, check.Error: 2}
	slices.SortStableFunc(findings, func(a, b check.Finding) int { return rank[a.Level] - rank[b.Level] })
	count := map[check.Level]int{}
	for _, f := range findings {
		count[f.Level]++
	}
	if output == "json" {
		if findings == nil {
			findings = []check.Finding{}
		}
		data, err := json.MarshalIndent(map[string]any{"findings": findings, "errors": count[check.Error], "warnings": count[check.Warning]}, "", "  ")
		if err != nil {
			return err
		}
		if err := cli.PrintDocument(w, data, output); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			line := fmt.Sprintf("%-7s  %s  %s: %s\n", strings.ToUpper(string(f.Level)), f.Code, cli.Printable(f.Subject), cli.Printable(f.Evidence))
			if f.Level != check.OK && f.Fix != "" {
				line += fmt.Sprintf("         to do (%s): %s\n", cli.Printable(f.Side), cli.Printable(f.Fix))
			}
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
	}
	says := errors.New(plural(count[check.Error], "error") + ", " + plural(count[check.Warning], "warning"))
	switch {
	case count[check.Error] > 0:
		return program.ExitError{Code: cli.ExitErrors, Err: says}
	case count[check.Warning] > 0:
		return program.ExitError{Code: cli.ExitWarnings, Err: says}
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
