package e2e

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

//go:embed overlay/*.tmpl
var overlayFiles embed.FS

var overlayTemplates = template.Must(template.ParseFS(overlayFiles, "overlay/*.tmpl"))

// Namespace is the namespace of semaphore in every cluster.
const Namespace = "semaphore"

// Installation installs semaphore in the clusters of one testbed. It knows the directories of keys and overlays, and
// the programs of the checkout.
type Installation struct {
	tb   *testbed.Testbed
	repo string
	dir  string

	// BrokerAddress returns the address at which the exporter of one cluster reaches the broker of another. The default is
	// the NodePort on the first node of the other.
	BrokerAddress func(from, to *testbed.Cluster) string
	// NodeSubnets returns the nodeSubnets that the other clusters have for a cluster; those of its InternalIPs if nil or
	// empty.
	NodeSubnets func(of *testbed.Cluster) string
	// Global is additional YAML for globalServices in every broker's configuration, within braces: "settle: 3s".
	Global string
	// Features are the features of brokers and exporters; all if empty. Without encryption no agents are installed.
	Features []string
	// Encryption is the encryption mode in the brokers' configuration: "permissive" or "strict". If empty, the default
	// applies.
	Encryption string
	// Broker is additional YAML for every broker's configuration: "reserveTunnelAddresses: true".
	Broker string
	// Agent is the configuration of every agent, in YAML: "serviceTraffic: true".
	Agent string
	// OwnPools means that the test manages the IPPools of remotes.
	OwnPools bool
	// MCS enables the Multi-Cluster Services API. Its CRDs must exist in the clusters.
	MCS bool
	// ImportSlices is mcs.endpointSlices of every broker. If empty, the default applies.
	ImportSlices string
	// Components are additional directories of deploy/features.
	Components []string
	// Patches are additional entries of "patches:" in every cluster's kustomization, in YAML.
	Patches string
	// TunnelsOverIPv6 makes the nodes of dual-stack clusters use IPv6 endpoints.
	TunnelsOverIPv6 bool
	// NoCalico omits what needs Calico. Features must not include policy then.
	NoCalico bool
	// Lease is how long the standbys of brokers and exporters wait for a leader that has stopped renewing its Lease. If
	// empty, the default applies.
	Lease string
	// AgentNodes is a node label. If set, agents run only on nodes where it is "true".
	AgentNodes string
}

// NewInstallation prepares an installation from the checkout repo. It installs nothing yet.
func NewInstallation(tb *testbed.Testbed, repo string) *Installation {
	return &Installation{tb: tb, repo: repo, dir: filepath.Join(tb.Dir(), "install")}
}

// withOwnNames installs what own names need, with a time to settle for which a step can wait.
func (in *Installation) withOwnNames() {
	in.Global = "ownNames: true, settle: 3s, silentAfter: 30s"
	in.Components = append(in.Components, "own-names")
}

// remote is the data of a RemoteCluster.
type remote struct {
	Name       string
	PodSubnets string
	NodeSubnet string
	Family     string
	BrokerAddr string
	ListenPort int
}

// overlay is the data of a cluster's overlay, as a user would write it.
type overlay struct {
	*Installation

	Deploy       string // deploy/ of the checkout, relative to the overlay
	Cluster      string
	PodSubnets   string
	ServiceCIDRs string
	NodeSubnet   string
	Remotes      []remote
	FederationNP int
	Agents       bool
	Features     string // separated by commas
	Calico       bool
}

// encrypts reports whether agents are installed.
func (in *Installation) encrypts() bool {
	return len(in.Features) == 0 || slices.Contains(in.Features, "encryption")
}

// subnets joins the valid prefixes, of one or both families.
func subnets(prefixes ...netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		if p.IsValid() {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, ", ")
}

// nodeSubnet6 returns the prefix of the nodes' IPv6 addresses in a dual-stack cluster.
func nodeSubnet6(c *testbed.Cluster) netip.Prefix {
	if ip := c.Nodes[0].IP6; ip.IsValid() {
		return netip.PrefixFrom(ip, 64).Masked()
	}
	return netip.Prefix{}
}

// FederationNodePort is the NodePort at which the other clusters reach each broker.
const FederationNodePort = 30443

// Install follows docs/install.md in all clusters concurrently.
func (in *Installation) Install(ctx context.Context, progress func(string)) error {
	progress("making keys and certificates: one CA a cluster, none leaves it")
	for _, c := range in.tb.Clusters() {
		if _, err := in.Semaphorectl(ctx, "pki", "init", "--cluster", c.Name, "--dir", in.PKI(c.Name)); err != nil {
			return err
		}
		bundle, err := in.Semaphorectl(ctx, "pki", "bundle", "--dir", in.PKI(c.Name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(in.bundle(c.Name), []byte(bundle), 0o644); err != nil {
			return err
		}
	}
	progress("kubectl apply -k, in every cluster")
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range in.tb.Clusters() {
		g.Go(func() error {
			if err := in.Apply(gctx, c); err != nil {
				return fmt.Errorf("installing in %s: %w", c.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	progress("waiting until every part is ready")
	for _, c := range in.tb.Clusters() {
		g.Go(func() error { return in.WaitReady(ctx, c) })
	}
	return g.Wait()
}

// PKI returns the directory of a cluster's keys and certificates.
func (in *Installation) PKI(cluster string) string { return filepath.Join(in.dir, "pki", cluster) }

func (in *Installation) bundle(cluster string) string {
	return filepath.Join(in.dir, cluster+".pem")
}

// overlay returns the directory of a cluster's kustomization.
func (in *Installation) overlay(cluster string) string {
	return filepath.Join(in.dir, "overlay", cluster)
}

// Apply writes and applies the cluster's overlay with its Secrets and its DNS block, and its RemoteClusters.
func (in *Installation) Apply(ctx context.Context, c *testbed.Cluster) error {
	if err := in.writeOverlay(c); err != nil {
		return err
	}
	namespace, err := os.ReadFile(filepath.Join(in.repo, "deploy", "namespace", "namespace.yaml"))
	if err != nil {
		return err
	}
	args := []string{"pki", "secrets", "--dir", in.PKI(c.Name), "--namespace", Namespace}
	for _, other := range in.tb.Clusters() {
		if other != c {
			args = append(args, "--peer-bundle", other.Name+"="+in.bundle(other.Name))
		}
	}
	secrets, err := in.Semaphorectl(ctx, args...)
	if err != nil {
		return err
	}
	// The Secrets come first: kubelet tries again after seconds to start a pod whose Secret was not there.
	first := strings.NewReader(string(namespace) + "\n---\n" + secrets)
	if _, err := c.Kubectl(ctx, first, "apply", "-f", "-"); err != nil {
		return fmt.Errorf("applying secrets and bundles: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// deploy's tests apply as users do. On the server's side it takes a quarter of the time.
		steps := [][]string{{"apply", "--server-side", "--force-conflicts", "-k", in.overlay(c.Name)}}
		if len(in.tb.Clusters()) > 1 {
			steps = append(steps,
				[]string{"wait", "--for=condition=Established", "--timeout=60s", "crd/" + v1alpha1.CRDName},
				[]string{"apply", "-f", filepath.Join(in.overlay(c.Name), "remotes.yaml")})
		}
		for _, args := range steps {
			if _, err := c.Kubectl(gctx, nil, args...); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error { return in.addDNS(gctx, c) })
	return g.Wait()
}

// addDNS gives CoreDNS of a cluster the server blocks of the others.
func (in *Installation) addDNS(ctx context.Context, c *testbed.Cluster) error {
	var remotes []coredns.Remote
	for _, other := range in.tb.Clusters() {
		if other != c {
			remotes = append(remotes, coredns.Remote{Cluster: other.Name})
		}
	}
	var blocks strings.Builder
	// The CoreDNS of tools/components/go.mod knows imports.
	if err := coredns.Print(&blocks, coredns.Of(remotes, Namespace, "cluster.local", in.MCS), true); err != nil {
		return err
	}
	return c.AppendCorefile(ctx, blocks.String())
}

func (in *Installation) writeOverlay(c *testbed.Cluster) error {
	dir := in.overlay(c.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	deploy, err := filepath.Rel(dir, filepath.Join(in.repo, "deploy"))
	if err != nil {
		return err
	}
	data := overlay{
		Installation: in,
		Deploy:       deploy,
		Cluster:      c.Name,
		PodSubnets:   subnets(c.PodCIDR, c.PodCIDR6),
		ServiceCIDRs: subnets(c.ServiceCIDR, c.ServiceCIDR6),
		NodeSubnet:   subnets(c.NodeSubnet, nodeSubnet6(c)),
		FederationNP: FederationNodePort,
		Agents:       in.encrypts(),
		Features:     strings.Join(in.Features, ", "),
		Calico:       !in.NoCalico,
	}
	for i, other := range in.tb.Clusters() {
		if other == c {
			continue
		}
		address := fmt.Sprintf("%s:%d", other.Nodes[0].IP, FederationNodePort)
		if in.BrokerAddress != nil {
			address = in.BrokerAddress(c, other)
		}
		nodes := subnets(other.NodeSubnet, nodeSubnet6(other))
		if in.NodeSubnets != nil && in.NodeSubnets(other) != "" {
			nodes = in.NodeSubnets(other)
		}
		family := ""
		if in.TunnelsOverIPv6 {
			family = "IPv6"
		}
		data.Remotes = append(data.Remotes, remote{
			Family:     family,
			Name:       other.Name,
			PodSubnets: subnets(other.PodCIDR, other.PodCIDR6),
			NodeSubnet: nodes,
			BrokerAddr: address,
			ListenPort: 51820 + i,
		})
	}
	for _, t := range overlayTemplates.Templates() {
		var out bytes.Buffer
		if err := t.Execute(&out, data); err != nil {
			return fmt.Errorf("overlay %s: %w", t.Name(), err)
		}
		name := filepath.Join(dir, strings.TrimSuffix(t.Name(), ".tmpl"))
		if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// WaitReady waits until kubectl reports every part of a cluster as ready.
func (in *Installation) WaitReady(ctx context.Context, c *testbed.Cluster) error {
	wait := []string{"-n", Namespace, "--timeout=300s", "rollout", "status", "deployment/semaphore-broker",
		"deployment/semaphore-exporter"}
	if in.encrypts() {
		wait = append(wait, "daemonset/semaphore-agent")
	}
	if _, err := c.Kubectl(ctx, nil, wait...); err != nil {
		return fmt.Errorf("%s is not ready: %w\n%s", c.Name, err, c.Diagnose(ctx, Namespace))
	}
	return nil
}

// remove follows docs/removal.md in one cluster.
func (in *Installation) remove(ctx context.Context, c *testbed.Cluster) error {
	dir := in.overlay(c.Name) + "-cleanup"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	deploy, err := filepath.Rel(dir, filepath.Join(in.repo, "deploy"))
	if err != nil {
		return err
	}
	kustomization := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: "+
		"[../%s]\ncomponents: [%s/cleanup]\n", c.Name, deploy)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-n", Namespace, "delete", "--cascade=foreground", "--ignore-not-found", "deployment/semaphore-exporter",
			"deployment/semaphore-broker", "daemonset/semaphore-agent"},
		{"apply", "--server-side", "-k", dir, "-l", "app.kubernetes.io/component=cleanup"},
		{"-n", Namespace, "wait", "--for=condition=complete", "job/semaphore-cleanup", "--timeout=300s"},
		{"-n", Namespace, "rollout", "status", "daemonset/semaphore-cleanup", "--timeout=300s"},
		// kubectl waits for one object after the other, at five requests a second.
		{"delete", "-k", dir, "--ignore-not-found", "--wait=false"},
		{"wait", "--for=delete", "--timeout=300s", "namespace/" + Namespace},
	} {
		if _, err := c.Kubectl(ctx, nil, args...); err != nil {
			return fmt.Errorf("removing from %s: %w\n%s", c.Name, err, c.Diagnose(ctx, Namespace))
		}
	}
	return nil
}

// Semaphorectl runs the checkout's semaphorectl on this machine and returns its stdout.
func (in *Installation) Semaphorectl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(in.repo, "bin", "semaphorectl"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("semaphorectl %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func (in *Installation) removeDNS(ctx context.Context, c *testbed.Cluster) error {
	return c.AppendCorefile(ctx, "")
}
