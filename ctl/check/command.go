package check

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/ctl/verify"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

type checker struct {
	access                     *fleet.Access
	pre, traffic               bool
	plan                       map[string]int
	sent                       verify.Traffic
	configFile, pkiDir, tlsDir string
	manifests                  []string
	cluster                    string
	peers                      map[string]string
	own                        string
	address, expect            string
	timeout                    time.Duration
	output                     *show.Outputs
	dns                        dnsFlags
	in                         io.Reader
	// The configuration that was read, the last of each part; nil for none, or an invalid one. remotes are the
	// RemoteClusters of the manifests, as JSON.
	exporter *config.Exporter
	broker   *config.Broker
	agent    *config.Agent
	remotes  []string
}

// Bounds of the wait for a listener, and with --pre for the answers, with --traffic for the pods and each check.
const (
	waitForListener = 5 * time.Second
	waitForClusters = 30 * time.Second
)

func Command(access *fleet.Access) *cobra.Command {
	c := checker{access: access}
	cmd := &cobra.Command{
		Use: "check [--pre | --traffic | --plan | -f FILE | --config FILE | --dir DIR | --tls-dir DIR] " +
			"[--address HOST:PORT --expect ID]",
		Short: "check what is installed, what clusters are like before, manifests, and with --traffic real packets",
		Long: `Checks configurations, certificates, names, clocks, ports, the DNS and Calico's pools. For each fault it
prints the cause, who must act, and the fix. It changes nothing, except with --traffic.

Without a file it checks the exporters and brokers of the clusters of --context, in their pods:

  semaphorectl check --context c1,c2

  --pre       clusters before anything is installed in them: Kubernetes, nodes and their kernels, the CNI, Calico's
              IPPools and IPAM, subnets of pods, Services and nodes, kube-proxy, CoreDNS, clocks and your rights; and
              what prevents the installation in each, and the connection of each two. Whether packets of one cluster's
              nodes reach those of another, only packets can say: docs/install.md lists the ports
              (docs/adr/0041-preflight.md):
              semaphorectl check --pre --context c1,c2
  --traffic   linked clusters by real traffic, see below:
              semaphorectl check --traffic --context c1,c2
  --plan      a mesh that does not exist yet, of clusters that are alike: what each part costs, how many objects and
              peers there are in each cluster, and the limits to raise. It asks no cluster (docs/scale.md, Plan):
              semaphorectl check --plan clusters=100,nodes=50,services=200,endpoints=2000,members=500,changes=1
  -f          manifests, before they are applied: the configuration of the parts in the output of kubectl
              kustomize or helm template (- is standard input), and RemoteClusters beside it:
              kubectl kustomize overlay/c1 | semaphorectl check -f - -f overlay/c1/remotes/c2.yaml
  --config    all that the configuration file of an exporter, broker or agent, and the cluster's RemoteClusters,
              name: certificate, roots of all clusters, brokers to be reached; with a broker's, whether the
              cluster's CoreDNS knows the names of remote services (--coredns), and whether its Calico leaves
              their pods alone. With --cluster a file that leaves the cluster's name to an overlay
  --dir       a directory of semaphorectl pki init
  --tls-dir   a directory with tls.crt, tls.key and CLUSTER.pem files
  --address   a listener: is it reached, does it speak TLS, who is there, does it take our certificate

--traffic makes a namespace with three small pods, on different nodes, in each cluster, sends traffic between them from
each cluster to each other, says what passed, and removes all of it, also when it is interrupted or fails. Of what is
installed it checks:

  pod-ip       a pod of one cluster reaches a pod of the other by its IP, which sees the IP of the pod that asks
  encryption   the bytes went through the WireGuard devices of both nodes, and the route leads into the device
  path-mtu     1 MiB passes in each direction, not only small packets
  mirror       a Service that one cluster offers is reached in the other as its mirror
  dns          and by a name like server.NAMESPACE.svc.cluster.c2, where CoreDNS has the block
  global       and as a global service
  policy       a Calico policy that admits a set of pods admits the pod in the set, and no other
  cleanup      nothing of it is left, in any of the clusters

With --bench it also measures, for ten seconds from each cluster to each other and to itself, one after the other, and
says before for how long and which nodes. It takes all that these nodes and the links between them carry:

  bandwidth    TCP from the client to the server, with 1 stream and with 16
  latency      of small messages there and back, p50 and p99, idle and beside one such stream
  requests     a second, each on a new connection, from 16 clients

It prints "unchecked", with the reason, for a part that is not installed or cannot be examined. The pods run the image
of the cluster's broker, so nodes need to pull nothing else. docs/install.md has the rights that this takes.

Exit code 0 when all is well, 1 when the command is used wrongly, a cluster cannot be asked or the traffic cannot be
made, 2 when there are errors or warnings, or traffic did not pass, 3 when there are none, and something was not looked
at (NOT CHECKED).`,
		Args: cobra.NoArgs,
		RunE: c.run,
	}
	f := cmd.Flags()
	f.BoolVar(&c.pre, "pre", false, "clusters before anything is installed in them")
	f.BoolVar(&c.traffic, "traffic", false, "real traffic between pods of linked clusters, which it makes and removes")
	f.StringToIntVar(&c.plan, "plan", nil, "the `size` of a mesh: clusters, and of each nodes, exported services, "+
		"endpoints and members, changes a second, and ports of a Service")
	f.StringVar(&c.sent.Image, "image", "", "with --traffic: `image` of the pods, which has semaphorectl in its PATH "+
		"(default: that of the cluster's broker)")
	f.BoolVar(&c.sent.Clean, "clean", false, "with --traffic: only remove what a check that was killed has left")
	f.BoolVar(&c.sent.Bench, "bench", false, "with --traffic: measure, too, which takes all that nodes and links carry")
	f.StringArrayVarP(&c.manifests, "filename", "f", nil, "`file` with manifests, - for standard input; may be repeated")
	f.StringVar(&c.configFile, "config", "", "configuration `file` of an exporter, broker or agent")
	show.ClusterFlag(cmd, &c.cluster, "with --config or -f: the cluster's, where the file has none")
	f.StringVar(&c.pkiDir, "dir", "", "`directory` of semaphorectl pki init")
	f.StringVar(&c.tlsDir, "tls-dir", "", "`directory` with tls.crt, tls.key and CLUSTER.pem files")
	f.StringToStringVar(&c.peers, "peer-bundle", nil,
		"with --dir or --tls-dir, `CLUSTER=FILE`: the root certificates of a peer; may be repeated")
	f.StringVar(&c.own, "own", "", "with --tls-dir: the SPIFFE `ID` that tls.crt must have")
	f.StringVar(&c.address, "address", "", "`host:port` of a listener to try")
	f.StringVar(&c.expect, "expect", "",
		"with --address: the SPIFFE `ID` that the listener must have, such as spiffe://c2/broker")
	show.TimeoutFlag(cmd, &c.timeout, waitForListener)
	f.Lookup("timeout").Usage += "; with --pre and --traffic 30s, and with --traffic for each of its steps"
	c.output = show.OutputFlag(cmd, "table", "json", "yaml")
	c.dns.flags(f)
	return cmd
}

func (c *checker) run(cmd *cobra.Command, _ []string) error {
	c.in = cmd.InOrStdin()
	inPods, err := c.use()
	if err != nil {
		return err
	}
	if (c.pre || c.traffic) && !cmd.Flags().Changed("timeout") {
		c.timeout = waitForClusters
	}
	switch {
	case c.pre:
		return preflight.Run(cmd.Context(), cmd.OutOrStdout(), c.access, c.output.Chosen, c.timeout)
	case c.plan != nil:
		return c.plans(cmd.OutOrStdout())
	case c.traffic:
		c.sent.Timeout, c.sent.Format = c.timeout, c.output.Chosen
		return c.sent.Run(cmd, c.access)
	case inPods:
		return c.inPods(cmd)
	}
	facts, err := c.gather(cmd.Context())
	if err != nil {
		return err
	}
	return show.Report(cmd.OutOrStdout(), Judge(facts), c.output.Chosen)
}

// plans prints the costs of a mesh. It fails if the mesh exceeds a limit that cannot be raised.
func (c *checker) plans(w io.Writer) error {
	mesh, err := ReadMesh(c.plan)
	if err != nil {
		return fmt.Errorf("--plan: %w", err)
	}
	found := PlanOf(mesh)
	if c.output.Chosen == "table" {
		_, err = io.WriteString(w, found.Text())
	} else {
		err = show.PrintValue(w, found, c.output.Chosen)
	}
	var never []string
	for _, r := range found.Raise {
		if r.Impossible {
			never = append(never, r.Limit)
		}
	}
	return errors.Join(err, show.Wrong(never, len(found.Raise), "limits to raise are fixed"))
}

// use fails for a wrong combination of flags, and returns whether to check the pods of clusters.
func (c *checker) use() (inPods bool, err error) {
	places := 0
	for _, given := range []bool{c.pre, c.traffic, c.plan != nil, len(c.manifests) > 0, c.configFile != "", c.pkiDir != "",
		c.tlsDir != ""} {
		if given {
			places++
		}
	}
	switch {
	case places > 1:
		return false, errors.New("--pre, --traffic, --plan, -f, --config, --dir, --tls-dir: give one of them")
	case (c.pre || c.traffic || c.plan != nil) && c.address != "":
		return false, errors.New("--address: without --pre, --traffic and --plan")
	case !c.traffic && (c.sent.Image != "" || c.sent.Clean || c.sent.Bench):
		return false, errors.New("--image, --clean, --bench: they are for --traffic")
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
	if places == 0 && c.address == "" {
		// In a part's container, check that part, as the other verbs do.
		if fleet.InContainer() && !c.access.Given() {
			c.configFile = fleet.PodConfig
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
	type place struct {
		cluster *fleet.Cluster
		part    string
	}
	var places []place
	for _, cluster := range clusters {
		places = append(places, place{cluster, fleet.Exporter}, place{cluster, fleet.Broker})
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), inPodsWithin+c.timeout)
	defer cancel()
	found, failed := fleet.All(places, func(p place) ([]show.Finding, error) { return c.inPod(ctx, p.cluster, p.part) })
	if err := show.Report(cmd.OutOrStdout(), slices.Concat(found...), c.output.Chosen); errors.Join(failed...) == nil {
		return err
	}
	return errors.Join(failed...)
}

// inPodsWithin bounds the check of a part, without its listeners.
const inPodsWithin = 30 * time.Second

func (c *checker) inPod(ctx context.Context, cluster *fleet.Cluster, part string) ([]show.Finding, error) {
	args := []string{"check", "--config", fleet.PodConfig, "-o", "json", "--timeout", c.timeout.String()}
	if part == fleet.Broker {
		args = append(args, "--coredns", c.dns.configMap, "--cluster-domain", c.dns.clusterDomain)
	}
	out, err := cluster.RunIn(ctx, part, args...)
	if err != nil {
		return nil, err
	}
	var said struct{ Findings []show.Finding }
	if err := json.Unmarshal(out, &said); err != nil {
		return nil, fmt.Errorf("%s: check in the pod of the %s: %w", cluster.Context, part, err)
	}
	for i := range said.Findings {
		said.Findings[i].Subject = cluster.Context + " " + part + ": " + said.Findings[i].Subject
	}
	return said.Findings, nil
}

func (c *checker) gather(ctx context.Context) (Facts, error) {
	facts := Facts{Now: time.Now()}
	facts.ClockSynced, facts.ClockKnown = Clock()
	if c.address != "" {
		id, err := spiffeid.FromString(c.expect)
		if err != nil {
			return facts, fmt.Errorf("--expect %q: %w: use a SPIFFE ID such as spiffe://c2/broker", c.expect, err)
		}
		facts.listener(c.address, id)
	}
	for cluster := range c.peers {
		if err := config.ClusterName(cluster); err != nil {
			return facts, fmt.Errorf("--peer-bundle: %w", err)
		}
	}
	// show is the certificate shown to listeners, and from the sender's identity.
	var show *tls.Certificate
	var from string
	var err error
	switch {
	case len(c.manifests) > 0:
		if facts.Configs, err = c.readManifests(); c.broker == nil && len(c.remotes) > 0 {
			facts.RemotesErr = errNoBroker
		}
	case c.configFile != "":
		show, from, err = c.gatherConfig(ctx, &facts)
	case c.pkiDir != "":
		show, from, err = gatherPKI(&facts, c.pkiDir)
	case c.tlsDir != "":
		show, err = c.gatherTLSDir(&facts)
	}
	if err != nil {
		return facts, err
	}
	for cluster, file := range c.peers {
		facts.Roots = slices.DeleteFunc(facts.Roots, func(b Bundle) bool { return b.Cluster == cluster })
		facts.Roots = append(facts.Roots, ReadBundle(cluster, file))
	}
	slices.SortFunc(facts.Roots, func(a, b Bundle) int { return strings.Compare(a.Cluster, b.Cluster) })

	var g errgroup.Group
	g.SetLimit(128) // the brokers of a large mesh, none of which answers, within inPodsWithin
	for i, l := range facts.Dialled {
		g.Go(func() error {
			facts.Dialled[i] = Dial(ctx, l.Address, from, l.Expect, show, c.timeout)
			return nil
		})
	}
	return facts, g.Wait()
}

func (c *checker) gatherTLSDir(facts *Facts) (*tls.Certificate, error) {
	var want spiffeid.ID
	if c.own != "" {
		var err error
		if want, err = spiffeid.FromString(c.own); err != nil {
			return nil, fmt.Errorf("--own %q: %w: use a SPIFFE ID such as spiffe://c1/exporter", c.own, err)
		}
	}
	own, show := ReadOwn(filepath.Join(c.tlsDir, "tls.crt"), filepath.Join(c.tlsDir, "tls.key"), want,
		"semaphorectl pki rotate --dir DIR")
	facts.Own = append(facts.Own, own)
	files, err := filepath.Glob(filepath.Join(c.tlsDir, "*.pem"))
	if err != nil {
		return nil, fmt.Errorf("--tls-dir: %w", err)
	}
	for _, file := range files {
		facts.Roots = append(facts.Roots, ReadBundle(strings.TrimSuffix(filepath.Base(file), ".pem"), file))
	}
	return show, nil
}

// gatherPKI collects all certificates of a directory. Listeners are shown the exporter's, because the exporter calls
// other clusters.
func gatherPKI(facts *Facts, dir string) (show *tls.Certificate, cluster string, err error) {
	cluster, _, err = identity.Bundle(dir)
	if err != nil {
		return nil, "", fmt.Errorf("--dir: %w", err)
	}
	items, err := identity.Inventory(dir)
	if err != nil {
		return nil, "", fmt.Errorf("--dir: %w", err)
	}
	bundle := Bundle{Cluster: cluster, File: dir}
	for _, item := range items {
		if item.Cert.IsCA {
			bundle.Roots = append(bundle.Roots, item.Cert)
			continue
		}
		part := filepath.Dir(item.File)
		own, pair := ReadOwn(filepath.Join(dir, item.File), filepath.Join(dir, part, "tls.key"),
			identity.IDOf(cluster, part),
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
func (c *checker) gatherConfig(ctx context.Context, facts *Facts) (show *tls.Certificate, cluster string, err error) {
	text, err := os.ReadFile(c.configFile)
	if err != nil {
		return nil, "", fmt.Errorf("--config: %w", err)
	}
	part, judged := c.judgeFile(text, c.configFile)
	if facts.Configs = append(facts.Configs, judged); judged.Err != nil {
		return nil, "", nil
	}
	var own spiffeid.ID
	var from config.TLS
	var clusters []string
	var bundles map[string]string // of RemoteClusters
	switch part {
	case fleet.Broker:
		of := c.broker
		if d, err := c.gatherRemotes(ctx, facts, of, part); err == nil { // else the file alone is checked
			of, bundles = d.Broker, d.Bundles()
		}
		cluster, own, from, clusters = of.Cluster, identity.Broker(of.Cluster), of.TLS, of.Names()
		objects, err := fleet.OwnCluster(c.access, of.Kube)
		there := &brokersCluster{objects, of, err}
		facts.Policies = there.gatherPolicies(ctx)
		if facts.RemotesErr == nil || there.none() { // else what is due for remotes is not known
			facts.DNS, facts.Calico = c.dns.gather(ctx, there, c.configFile), there.gatherCalico(ctx)
			facts.PolicyKeys = there.gatherPolicyKeys(ctx)
		}
	case fleet.Exporter:
		cluster, own, from = c.exporter.Cluster, identity.Exporter(c.exporter.Cluster), c.exporter.TLS
		clusters, bundles = c.gatherBrokers(ctx, facts)
	default:
		facts.ofAgent(ctx, c.agent)
		return nil, c.agent.Cluster, nil
	}
	if !slices.Contains(clusters, cluster) { // an exporter may publish to its own broker
		clusters = append(clusters, cluster)
	}
	return facts.identity(ctx, from, own, clusters, bundles), cluster, nil
}

// gatherRemotes returns the decision of a part about the RemoteClusters of its cluster. It adds those that are not
// accepted to the facts, or why none is known.
func (c *checker) gatherRemotes(ctx context.Context, facts *Facts, own *config.Broker, part string) (remotes.Decision,
	error) {
	d, err := fleet.WithObjects(ctx, own, part, c.access)
	facts.RemotesErr = err
	for _, name := range slices.Sorted(maps.Keys(d.Verdicts)) {
		if v := d.Verdicts[name]; !v.Accepted() {
			facts.Configs = append(facts.Configs, judgedRemote(own.Cluster, name, v))
		}
	}
	return d, err
}

// gatherBrokers adds the brokers to which the exporter publishes, and returns their clusters and the roots of
// RemoteClusters. If these cannot be read, it knows the broker of the file, and the facts have the reason.
func (c *checker) gatherBrokers(ctx context.Context, facts *Facts) (clusters []string, bundles map[string]string) {
	of := c.exporter
	clusters = []string{of.LocalBroker.Cluster}
	if of.LocalBroker.Address != "" {
		facts.listener(of.LocalBroker.Address, identity.Broker(of.LocalBroker.Cluster))
	}
	if of.Foreign() {
		return clusters, nil
	}
	own := bounds.Judge(of, volume.ReadFile, nil)
	own.Kube, own.LeaderElection = of.Kube, of.LeaderElection
	d, _ := c.gatherRemotes(ctx, facts, own, fleet.Exporter)
	for _, o := range d.InEffect.ByAge() {
		b := o.Spec.Broker
		if b == nil {
			continue
		}
		clusters = append(clusters, o.Name)
		facts.listener(b.Address, identity.Broker(o.Name))
		for _, address := range b.OtherAddresses {
			facts.listener(string(address), identity.Broker(o.Name))
		}
	}
	return clusters, d.Bundles()
}
