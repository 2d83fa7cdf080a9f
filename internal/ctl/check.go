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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/pki"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// podConfig is the path of a part's configuration in its container.
const podConfig = "/etc/semaphore/config.yaml"

// checker is one call of check.
type checker struct {
	access                     *fleet.Access
	configFile, pkiDir, tlsDir string
	manifests                  []string
	cluster                    string
	peers                      map[string]string
	own                        string
	address, expect            string
	timeout                    time.Duration
	output                     *outputs
	dns                        dnsFlags
	in                         io.Reader
	// broker and remotes are of the manifests: the configuration of the broker, and the RemoteClusters as JSON.
	broker  *config.Broker
	remotes []string
}

func checkCommand(access *fleet.Access) *cobra.Command {
	c := checker{access: access, dns: dnsFlags{access: access}}
	cmd := &cobra.Command{
		Use:   "check [-f FILE | --config FILE | --dir DIR | --tls-dir DIR] [--address HOST:PORT --expect ID]",
		Short: "check configurations, certificates, names, clocks, ports, the DNS and Calico's pools",
		Long: `Checks configurations, certificates, names, clocks, ports, the DNS and Calico's pools. For each fault it
prints the cause, who must act, and the fix. It changes nothing.

Without a file it checks the exporters and brokers of the clusters of --context, in their pods:

  semaphorectl check --context c1 --context c2

  -f          manifests, before they are applied: the configuration of the parts in the output of kubectl
              kustomize or helm template (- is standard input), and RemoteClusters beside it:
              kubectl kustomize overlay/c1 | semaphorectl check -f - -f overlay/c1/remotes/c2.yaml
  --config    all that the configuration file of an exporter, broker or agent names: certificate, roots of all
              clusters, brokers to be reached; with a broker's, whether the cluster's CoreDNS knows the names of
              remote services (--coredns), and whether its Calico leaves their pods alone. With
              --cluster a file that leaves the cluster's name to an overlay
  --dir       a directory of semaphorectl pki init
  --tls-dir   a directory with tls.crt, tls.key and CLUSTER.pem files
  --address   a listener: is it reached, does it speak TLS, who is there, does it take our certificate

Exit code 0 when all is well, 1 when the command is used wrongly, 2 when there are errors or warnings.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.in = cmd.InOrStdin()
			inPods, err := c.use()
			if err != nil {
				return err
			}
			if inPods {
				return c.inPods(cmd)
			}
			facts, err := c.gather(cmd.Context())
			if err != nil {
				return err
			}
			return report(cmd.OutOrStdout(), check.Judge(facts), c.output.chosen)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&c.manifests, "filename", "f", nil, "`file` with manifests, - for standard input; may be repeated")
	f.StringVar(&c.configFile, "config", "", "configuration `file` of an exporter, broker or agent")
	f.StringVar(&c.cluster, "cluster", "", "with --config or -f: the cluster's name, where the file has none")
	f.StringVar(&c.pkiDir, "dir", "", "`directory` of semaphorectl pki init")
	f.StringVar(&c.tlsDir, "tls-dir", "", "`directory` with tls.crt, tls.key and CLUSTER.pem files")
	f.StringToStringVar(&c.peers, "peer-bundle", nil,
		"with --dir or --tls-dir, `CLUSTER=FILE`: the root certificates of a peer; may be repeated")
	f.StringVar(&c.own, "own", "", "with --tls-dir: the SPIFFE `ID` that tls.crt must have")
	f.StringVar(&c.address, "address", "", "`host:port` of a listener to try")
	f.StringVar(&c.expect, "expect", "",
		"with --address: the SPIFFE `ID` that the listener must have, such as spiffe://c2/broker")
	f.DurationVar(&c.timeout, "timeout", 5*time.Second, "how long to wait for each listener")
	c.output = outputFlag(cmd, "table", "json", "yaml")
	c.dns.flags(f)
	return cmd
}

// listener is the target of a connection.
type listener struct {
	address string
	expect  spiffeid.ID
}

// use returns what is wrong with the combination of flags, and whether to check the pods of clusters.
func (c *checker) use() (inPods bool, err error) {
	places := 0
	for _, given := range []bool{len(c.manifests) > 0, c.configFile != "", c.pkiDir != "", c.tlsDir != ""} {
		if given {
			places++
		}
	}
	switch {
	case places > 1:
		return false, errors.New("-f, --config, --dir, --tls-dir: give one of them")
	case (c.address == "") != (c.expect == ""):
		return false, errors.New("--address and --expect: give both or none")
	case c.timeout <= 0:
		return false, fmt.Errorf("--timeout %s: use more than 0", c.timeout)
	case c.cluster != "" && c.configFile == "" && len(c.manifests) == 0:
		return false, errors.New("--cluster: it needs --config or -f: it sets the name that their file lacks")
	case c.cluster != "":
		if err := config.ClusterName(c.cluster); err != nil {
			return false, fmt.Errorf("--cluster: %w", err)
		}
	}
	if err := c.output.check(); err != nil {
		return false, err
	}
	if places == 0 && c.address == "" {
		// In a part's container, check that part, as the other verbs do.
		if fleet.InContainer() && !c.access.Given() {
			c.configFile = podConfig
		} else {
			inPods = true
		}
	}
	return inPods, c.dns.use(c.configFile != "" || inPods)
}

// inPods runs semaphorectl in the pods of exporter and broker, where their files are, and combines the findings.
func (c *checker) inPods(cmd *cobra.Command) error {
	clusters, err := c.access.Clusters()
	if err != nil {
		return err
	}
	parts := []string{fleet.Exporter, fleet.Broker}
	found, failed := make([][]check.Finding, len(clusters)*len(parts)), make([]error, len(clusters)*len(parts))
	ctx, cancel := context.WithTimeout(cmd.Context(), inPodsWithin+c.timeout)
	defer cancel()
	var g errgroup.Group
	for i, cluster := range clusters {
		for j, part := range parts {
			g.Go(func() error {
				n := i*len(parts) + j
				found[n], failed[n] = c.inPod(ctx, cluster, part)
				return nil
			})
		}
	}
	_ = g.Wait() // no goroutine returns an error
	if err := report(cmd.OutOrStdout(), slices.Concat(found...), c.output.chosen); errors.Join(failed...) == nil {
		return err
	}
	return errors.Join(failed...)
}

// inPodsWithin bounds the check of a part, without its listeners.
const inPodsWithin = 30 * time.Second

func (c *checker) inPod(ctx context.Context, cluster *fleet.Cluster, part string) ([]check.Finding, error) {
	args := []string{"check", "--config", podConfig, "-o", "json", "--timeout", c.timeout.String()}
	if part == fleet.Broker {
		args = append(args, "--coredns", c.dns.configMap, "--cluster-domain", c.dns.clusterDomain)
	}
	out, _, err := cluster.Run(ctx, part, args...)
	if err != nil {
		return nil, err
	}
	var said struct{ Findings []check.Finding }
	if err := json.Unmarshal(out, &said); err != nil {
		return nil, fmt.Errorf("%s: check in the pod of the %s: %w", cluster.Context, part, err)
	}
	for i := range said.Findings {
		said.Findings[i].Subject = cluster.Context + " " + part + ": " + said.Findings[i].Subject
	}
	return said.Findings, nil
}

// gather collects the facts to judge.
func (c *checker) gather(ctx context.Context) (check.Facts, error) {
	facts := check.Facts{Now: time.Now()}
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
	// show sets what is shown to listeners, and the sender's identity.
	var show *tls.Certificate
	var from string
	var err error
	switch {
	case len(c.manifests) > 0:
		facts.Configs, err = c.readManifests()
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
	own, show := check.ReadOwn(filepath.Join(c.tlsDir, "tls.crt"), filepath.Join(c.tlsDir, "tls.key"), want,
		"semaphorectl pki rotate --dir DIR")
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

// gatherPKI collects all certificates of a directory. Listeners are shown the exporter's, because the exporter calls
// other clusters.
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
		own, pair := check.ReadOwn(filepath.Join(dir, item.File), filepath.Join(dir, part, "tls.key"),
			pki.IDOf(cluster, part),
			"semaphorectl pki rotate --dir "+dir)
		facts.Own = append(facts.Own, own)
		if part == "exporter" {
			show = pair
		}
	}
	facts.Roots = append(facts.Roots, bundle)
	return show, cluster, nil
}

// gatherConfig collects all that a configuration file names. An invalid file is a finding.
func (c *checker) gatherConfig(ctx context.Context, facts *check.Facts) (show *tls.Certificate, cluster string,
	dial []listener, err error) {
	file, dns := c.configFile, c.dns
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, "", nil, fmt.Errorf("--config: %w", err)
	}
	var keys struct {
		Brokers, Remotes, LocalSubnets []any
		Broker                         any
	}
	invalid := func(err error) (*tls.Certificate, string, []listener, error) {
		facts.Configs = append(facts.Configs, check.Config{File: file, Err: err})
		return nil, "", nil, nil
	}
	valid := func(part, cluster string) {
		facts.Configs = append(facts.Configs, check.Config{File: file, Of: fmt.Sprintf("of the %s of %s", part, cluster)})
	}
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return invalid(err)
	}
	if text, err = named(text, c.cluster); err != nil {
		return invalid(err)
	}
	var own spiffeid.ID
	var from config.TLS
	var clusters []string
	var bundles map[string]string // of RemoteClusters
	switch {
	case len(keys.Remotes) > 0 || keys.Broker == nil && len(keys.LocalSubnets) > 0:
		c, err := config.Parse[config.Broker](text)
		if err != nil {
			return invalid(err)
		}
		valid("broker", c.Cluster)
		if followed, roots, err := withObjects(ctx, c, dns.access); err == nil {
			c, bundles = followed, roots
		} else if !errors.Is(err, rest.ErrNotInCluster) { // without a cluster the file alone is checked
			return nil, "", nil, fmt.Errorf("--config %s: %w", file, err)
		}
		cluster, own, from, clusters = c.Cluster, identity.Broker(c.Cluster), c.TLS, c.Names()
		facts.DNS = dns.gather(ctx, c, file)
		facts.Calico = gatherCalico(ctx, c, dns.access)
		facts.Policies = gatherPolicies(ctx, c, dns.access)
	case len(keys.Brokers) > 0:
		c, err := config.Parse[config.Exporter](text)
		if err != nil {
			return invalid(err)
		}
		valid("exporter", c.Cluster)
		cluster, own, from = c.Cluster, identity.Exporter(c.Cluster), c.TLS
		for _, b := range c.Brokers {
			clusters = append(clusters, b.Cluster)
			dial = append(dial, listener{b.Address, identity.Broker(b.Cluster)})
		}
	default:
		c, err := config.Parse[config.Agent](text)
		if err != nil {
			return invalid(errors.Join(errors.New("it has neither brokers (an exporter) nor remotes (a broker), and is no "+
				"agent's either"), err))
		}
		valid("agent", c.Cluster)
		return nil, c.Cluster, gatherAgent(ctx, facts, c), nil
	}
	if !slices.Contains(clusters, cluster) { // an exporter may publish to its own broker
		clusters = append(clusters, cluster)
	}
	return gatherIdentity(ctx, facts, from, own, clusters, bundles), cluster, dial, nil
}

// gatherAgent adds the roots of an agent's broker to the facts, and returns the broker's listener.
func gatherAgent(ctx context.Context, facts *check.Facts, c *config.Agent) []listener {
	if c.Broker.WorkloadAPI == "" {
		facts.Roots = append(facts.Roots, check.ReadBundle(c.Cluster, c.Broker.BundleFile))
	} else {
		askWorkloadAPI(ctx, facts, c.Broker.WorkloadAPI, spiffeid.ID{}, []string{c.Cluster})
	}
	return []listener{{c.Broker.Address, identity.Broker(c.Cluster)}}
}

// gatherIdentity adds a part's own certificate and the roots of clusters from files or a Workload API, and returns the
// certificate to show to a listener; nil for none. bundles are the roots of RemoteClusters, in place of files.
func gatherIdentity(ctx context.Context, facts *check.Facts, from config.TLS, own spiffeid.ID,
	clusters []string, bundles map[string]string) *tls.Certificate {
	if from.WorkloadAPI != "" {
		return askWorkloadAPI(ctx, facts, from.WorkloadAPI, own, clusters)
	}
	found, pair := check.ReadOwn(from.CertFile, from.KeyFile, own,
		"semaphorectl pki rotate --dir DIR, then semaphorectl pki secrets")
	// A mounted Secret can be read by everything that runs in the pod, which is only the part.
	found.KeyOpen = false
	facts.Own = append(facts.Own, found)
	for _, name := range clusters {
		if text, ok := bundles[name]; ok {
			facts.Roots = append(facts.Roots, check.ParseBundle(name, "RemoteCluster "+name, []byte(text)))
			continue
		}
		facts.Roots = append(facts.Roots, check.ReadBundle(name, filepath.Join(from.BundleDir, name+".pem")))
	}
	return pair
}

// askWorkloadAPI gets from a Workload API what files would contain.
func askWorkloadAPI(ctx context.Context, facts *check.Facts, address string, own spiffeid.ID,
	clusters []string) *tls.Certificate {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	found, pair, roots := check.AskWorkloadAPI(ctx, address, own, clusters)
	facts.Own, facts.Roots = append(facts.Own, found), append(facts.Roots, roots...)
	return pair
}

// report prints findings, the worst ones last, where a terminal shows them, and returns the exit code's error.
func report(w io.Writer, findings []check.Finding, output string) error {
	rank := map[check.Level]int{check.OK: 0, check.Warning: 1, check.Error: 2}
	slices.SortStableFunc(findings, func(a, b check.Finding) int { return rank[a.Level] - rank[b.Level] })
	count := map[check.Level]int{}
	for _, f := range findings {
		count[f.Level]++
	}
	if output != "table" {
		if findings == nil {
			findings = []check.Finding{}
		}
		data, err := json.MarshalIndent(map[string]any{"findings": findings, "errors": count[check.Error],
			"warnings": count[check.Warning]}, "", "  ")
		if err != nil {
			return err
		}
		if err := cli.PrintDocument(w, data, output); err != nil {
			return err
		}
	} else {
		for i, f := range findings {
			level := cli.Paint(w, levelColours[f.Level], fmt.Sprintf("%-7s", strings.ToUpper(string(f.Level))))
			line := fmt.Sprintf("%s  %s  %s: %s\n", level, f.Code, cli.Printable(f.Subject), cli.Printable(f.Evidence))
			if f.Level == check.OK { // its code adds nothing to the text
				line = fmt.Sprintf("%s  %s: %s\n", level, cli.Printable(f.Subject), cli.Printable(f.Evidence))
			}
			// Several in a row with the same fix print it once.
			again := i+1 < len(findings) && findings[i+1].Fix == f.Fix && findings[i+1].Side == f.Side
			if f.Level != check.OK && f.Fix != "" && !again {
				line += fmt.Sprintf("         to do (%s): %s\n", cli.Printable(f.Side), cli.Printable(f.Fix))
			}
			if _, err := io.WriteString(w, line); err != nil {
				return err
			}
		}
	}
	says := errors.New(plural(count[check.Error], "error") + ", " + plural(count[check.Warning], "warning"))
	if count[check.Error]+count[check.Warning] > 0 {
		return program.ExitError{Code: cli.ExitWrong, Err: says}
	}
	return nil
}

var levelColours = map[check.Level]cli.Colour{check.OK: cli.Green, check.Warning: cli.Yellow, check.Error: cli.Red}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
