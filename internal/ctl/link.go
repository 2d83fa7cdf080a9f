package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/diagnose/preflight"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/pki"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// linkWithin bounds the requests to the apiservers of all clusters, and with --dns the restart of their CoreDNS.
const linkWithin = 5 * time.Minute

// linkedCluster is a cluster with what other clusters need to know of it.
type linkedCluster struct {
	pki     *clusterPKI
	remotes dynamic.ResourceInterface
	facts   *preflight.Cluster
	name    string
	bundle  []byte
	// address of its broker for other clusters.
	address string
	// installed is the record of install there; nil for none.
	installed *install.Record
	applier   *applier
}

// linker is a call of link or unlink.
type linker struct {
	access    *fleet.Access
	dns       bool
	withAll   bool
	addresses map[string]string
	output    string
	progress  io.Writer
	agentless agentless
}

func (l *linker) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.withAll, "with-all", false,
		"each of --context with each cluster of the kubeconfig that has semaphore, and these not among themselves")
	cmd.Flags().StringArrayVar(&l.agentless.contexts, "agentless", nil,
		"`CONTEXT` or CONTEXT=NAME of a cluster with nothing but a ServiceAccount, which an exporter beside the broker "+
			"of each --context reads; may be repeated")
}

func linkCommand(access *fleet.Access) *cobra.Command {
	l := linker{access: access}
	cmd := &cobra.Command{
		Use:   "link --context C1 --context C2…",
		Short: "connect clusters: exchange their roots, and make a RemoteCluster of each in all others",
		Long: `Connects clusters that have semaphore: each gets the roots and a RemoteCluster of each other. Names and roots
are those of the parts' certificates, subnets are found as preflight does, and the address is that of the
Service semaphore-broker-federation. Nothing is written where something stands in the way. It can be called
again; what others manage is not overwritten.

  semaphorectl link --context c1 --context c2
  semaphorectl link --context c21 --with-all
  semaphorectl link --context c1 --context c2 --dns
  semaphorectl link --context c1 --context c2 -o yaml     prints the objects of each cluster, for GitOps

A cluster of --agentless gets a ServiceAccount that may read Services and pods, and nothing else. An exporter
beside the broker of each --context reads it, and the RemoteCluster there has its Services and sets. Packets
to its pods are not encrypted. Called again, it renews certificate, token and image, and keeps the features
without --features; with more it adds them. To take one away, unlink --agentless it first.

  semaphorectl link --context c1 --agentless legacy

Exit code 0 when the objects are there, 1 when a cluster cannot be asked, 2 when something stands in the way.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkPlanned(l.output); err != nil {
				return err
			}
			if err := l.checkAgentless(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), linkWithin)
			defer cancel()
			l.progress = cmd.ErrOrStderr()
			if len(l.agentless.contexts) > 0 {
				return l.read(ctx, cmd.OutOrStdout())
			}
			return l.link(ctx, cmd.OutOrStdout())
		},
	}
	l.flags(cmd)
	cmd.Flags().StringToStringVar(&l.addresses, "address", nil,
		"`CONTEXT=HOST:PORT`: where others reach the broker of that cluster (default: by its Service); may be repeated")
	cmd.Flags().StringVarP(&l.output, "output", "o", "", "yaml or json prints the objects and writes none")
	cmd.Flags().BoolVar(&l.dns, "dns", false,
		"also have CoreDNS answer names such as echo.shop.svc.cluster.c2, in all of them, "+
			"and restart it; once given, link, unlink and forget keep that current")
	cmd.Flags().StringToStringVar(&l.agentless.apis, "api", nil,
		"with --agentless: `CONTEXT=URL` by which pods reach the apiserver (default: as in the kubeconfig)")
	cmd.Flags().StringSliceVar(&l.agentless.features, "features", nil,
		"with --agentless: of services and policy, and encryption where semaphore-wireguard runs there (default: those that "+
			"it is read for already, else services and policy, as far as the cluster that reads has them)")
	completeFlag(cmd, "output", oneOf(plannedFormats...))
	completeFlag(cmd, "features", oneOf("encryption", "services", "policy"))
	return cmd
}

func unlinkCommand(access *fleet.Access) *cobra.Command {
	l := linker{access: access}
	cmd := &cobra.Command{
		Use:   "unlink --context C1 --context C2…",
		Short: "disconnect clusters: delete the RemoteCluster of each in all others",
		Long: `Disconnects clusters from each other: deletes the RemoteCluster of each in all others, and with it mirrors,
sets and peers. Both sides have to be reached; for a cluster that is dead see forget. Roots stay where they
are. With --agentless it also deletes the exporters that read the cluster, and their ServiceAccounts there.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), linkWithin)
			defer cancel()
			l.progress = cmd.ErrOrStderr()
			if err := l.checkAgentless(); err != nil {
				return err
			}
			if len(l.agentless.contexts) > 0 {
				return l.unread(ctx, cmd.OutOrStdout())
			}
			return l.unlink(ctx, cmd.OutOrStdout())
		},
	}
	l.flags(cmd)
	return cmd
}

func forgetCommand(access *fleet.Access) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget CLUSTER --context C1…",
		Short: "remove a cluster, dead or alive, from others: without --yes it only says what would be removed",
		Long: `Removes CLUSTER from the clusters of --context without asking it: deletes its RemoteCluster there, and with it
its mirrors, sets and peers. It says first what they have of it; only with --yes it does it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), linkWithin)
			defer cancel()
			return forget(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr(), access, args[0], yes)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	completeArg(cmd, remoteNames(access))
	return cmd
}

// parties returns the selected clusters, and which of them are linked: those of --context with each other, or each of
// them with all others that have semaphore.
func (l *linker) parties(ctx context.Context) (all []*linkedCluster, pairs [][2]*linkedCluster, err error) {
	given, err := l.access.Clusters()
	if err != nil {
		return nil, nil, err
	}
	for _, c := range given {
		p, err := l.party(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, p)
	}
	if l.withAll {
		if all, err = l.others(ctx, all); err != nil {
			return nil, nil, err
		}
	}
	for i, a := range all {
		for j, b := range all[i+1:] {
			if a.name == b.name {
				return nil, nil, fmt.Errorf("%s and %s: both are named %q", a.facts.Context, b.facts.Context, a.name)
			}
			if !l.withAll || i < len(given) != (i+1+j < len(given)) {
				pairs = append(pairs, [2]*linkedCluster{a, b})
			}
		}
	}
	if len(pairs) == 0 {
		return nil, nil, errors.New("--context: give two or more clusters, or --with-all")
	}
	return all, pairs, nil
}

// others adds the clusters of the kubeconfig that have semaphore. A cluster that cannot be reached is an error: the
// flag means all.
func (l *linker) others(ctx context.Context, all []*linkedCluster) ([]*linkedCluster, error) {
	names, err := l.access.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if slices.ContainsFunc(all, func(p *linkedCluster) bool { return p.facts.Context == name }) {
			continue
		}
		one := fleet.Access{Contexts: []string{name}, Kubeconfig: l.access.Kubeconfig, Namespace: l.access.Namespace}
		c, err := one.Cluster()
		if err != nil {
			return nil, err
		}
		p, err := pkiOf(c)
		if err != nil {
			return nil, err
		}
		data, err := p.secret(ctx, pki.SecretName("semaphorectl"))
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue // it has no semaphore
		}
		other, err := l.party(ctx, c)
		if err != nil {
			return nil, err
		}
		all = append(all, other)
	}
	return all, nil
}

func (l *linker) party(ctx context.Context, c *fleet.Cluster) (*linkedCluster, error) {
	p, err := pkiOf(c)
	if err != nil {
		return nil, err
	}
	out := &linkedCluster{pki: p}
	if out.name, out.bundle, err = p.own(ctx); err != nil {
		return nil, err
	}
	if out.facts, err = survey(ctx, c); err != nil {
		return nil, err
	}
	// It has a name, and is installed.
	out.facts.Names, out.facts.Lacks = []string{out.name}, nil
	if out.applier, err = applierOf(c, l.progress); err != nil {
		return nil, err
	}
	if out.installed, err = out.applier.record(ctx); err != nil {
		return nil, err
	}
	if out.installed != nil {
		out.facts = install.WithWishes(out.facts, out.installed.Wishes)
	}
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: client for the apiserver: %w", c.Context, err)
	}
	out.remotes = client.Resource(v1alpha1.RemoteClusters)
	if out.address = l.addresses[c.Context]; out.address == "" {
		var service corev1.Service
		found, err := client.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(c.Namespace).Get(ctx,
			"semaphore-broker-federation", metav1.GetOptions{})
		if err == nil {
			err = fromUnstructured(found, &service)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Context, err)
		}
		out.address = addressOf(&service, out.facts.Nodes)
	}
	return out, nil
}

// addressOf returns where other clusters reach a Service: its load balancer, or its port on a node; empty if neither is
// known.
func addressOf(s *corev1.Service, nodes []preflight.Node) string {
	if len(s.Spec.Ports) == 0 {
		return ""
	}
	port := s.Spec.Ports[0]
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		for _, host := range []string{ingress.Hostname, ingress.IP} {
			if host != "" {
				return net.JoinHostPort(host, strconv.Itoa(int(port.Port)))
			}
		}
	}
	// One node represents all: one that is likely to remain.
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b preflight.Node) int {
		if a.ControlPlane != b.ControlPlane {
			if a.ControlPlane {
				return -1
			}
			return 1
		}
		return a.Created.Compare(b.Created)
	})
	for _, n := range nodes {
		if port.NodePort != 0 && len(n.InternalIPs) > 0 {
			return net.JoinHostPort(n.InternalIPs[0].String(), strconv.Itoa(int(port.NodePort)))
		}
	}
	return ""
}

// objectOf returns the RemoteCluster of a cluster in another.
func objectOf(there *linkedCluster, bundle []byte) (*unstructured.Unstructured, error) {
	subnets := func(all []netip.Prefix) (out []v1alpha1.Subnet) {
		for _, p := range all {
			out = append(out, v1alpha1.Subnet(p.String()))
		}
		return out
	}
	object, err := objectFrom(&v1alpha1.RemoteCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: there.name},
		Spec: v1alpha1.RemoteClusterSpec{
			PodSubnets: subnets(there.facts.Pods.Prefixes), NodeSubnets: subnets(there.facts.IPs.Prefixes),
			TrustBundle: string(bundle), Broker: &v1alpha1.Broker{Address: there.address},
		},
	})
	if err != nil {
		return nil, err
	}
	delete(object.Object, "status")
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object, nil
}

// linkWrite is the object of a cluster there, and its roots, to be written in a cluster here.
type linkWrite struct {
	here, there *linkedCluster
	bundle      []byte
	object      *unstructured.Unstructured
}

// print prints the objects in place of writing them.
func (l *linker) print(w io.Writer, all []*linkedCluster, writes []linkWrite) error {
	if l.output == "yaml" {
		for _, x := range writes {
			text, err := yaml.Marshal(x.object.Object)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "---\n# in %s\n%s", cli.Printable(x.here.facts.Context), text); err != nil {
				return err
			}
		}
		return nil
	}
	clusters := make([]planned, len(all))
	for i, p := range all {
		clusters[i].Context = p.facts.Context
		for _, x := range writes {
			if x.here == p {
				clusters[i].Objects = append(clusters[i].Objects, x.object)
			}
		}
	}
	return printPlanned(w, clusters)
}

// link creates the objects: all are made in memory, and whatever prevents a link is found, before the first write.
func (l *linker) link(ctx context.Context, w io.Writer) error {
	all, pairs, err := l.parties(ctx)
	if err != nil {
		return err
	}
	if err := checkLinkable(w, all, pairs); err != nil {
		return err
	}
	var writes []linkWrite
	for _, pair := range pairs {
		for _, way := range [][2]*linkedCluster{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			here, there := way[0], way[1]
			bundle, err := pki.PeerBundle(here.name, there.name, there.bundle)
			if err != nil {
				return fmt.Errorf("%s: %w", there.facts.Context, err)
			}
			object, err := objectOf(there, bundle)
			if err != nil {
				return err
			}
			writes = append(writes, linkWrite{here, there, bundle, object})
		}
	}
	if l.output != "" {
		return l.print(w, all, writes)
	}
	for _, x := range writes {
		if err := x.here.pki.trust(ctx, x.there.name, x.bundle); err != nil {
			return err
		}
		if _, err := serverSideApply(ctx, x.here.remotes, x.there.name, x.object, false); err != nil {
			return fmt.Errorf("%s: RemoteCluster %s: %w", x.here.facts.Context, x.there.name, err)
		}
		// It was read from here, and now has an exporter of its own.
		if err := x.here.applier.endReading(ctx, w, x.there.name); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s: RemoteCluster %s: pods %s, broker at %s\n", x.here.facts.Context, x.there.name,
			x.there.facts.Pods, x.there.address); err != nil {
			return err
		}
	}
	for _, p := range all {
		if err := p.names(ctx, w, l.dns); err != nil {
			return err
		}
	}
	return nil
}

// names keeps CoreDNS's blocks current, or creates them.
func (p *linkedCluster) names(ctx context.Context, w io.Writer, always bool) error {
	said, err := wireDNS(ctx, p.applier, always)
	if err != nil || said == "" {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: %s\n", cli.Printable(p.facts.Context), cli.Printable(said))
	return err
}

// checkLinkable returns an error if clusters cannot be linked as they are, and prints why.
func checkLinkable(w io.Writer, all []*linkedCluster, pairs [][2]*linkedCluster) error {
	var found []check.Finding
	for _, p := range all {
		found = append(found, preflight.Judge([]*preflight.Cluster{p.facts})...)
		if p.address == "" {
			found = append(found, check.Finding{Code: finding.NoAddress, Level: check.Error, Subject: p.facts.Context +
				": Service semaphore-broker-federation", Side: p.facts.Context,
				Evidence: "it has neither a port on the nodes nor a load balancer: other clusters cannot reach the broker",
				Fix: fmt.Sprintf(
					"make it of type NodePort or LoadBalancer (semaphorectl install --expose), or give --address %s=HOST:PORT",
					p.facts.Context,
				)})
		}
	}
	for _, pair := range pairs {
		found = append(found, preflight.JudgePair(pair[0].facts, pair[1].facts)...)
		for _, way := range [][2]*linkedCluster{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			found = append(found, nodesInside(way[0], way[1])...)
		}
	}
	found = slices.DeleteFunc(found, func(f check.Finding) bool { return f.Level != check.Error })
	if len(found) == 0 {
		return nil
	}
	return report(w, found, "table")
}

// nodesInside reports that a cluster's subnets contain nodes of another: it would accept none of them.
func nodesInside(here, there *linkedCluster) (out []check.Finding) {
	if here.installed == nil {
		return nil
	}
	v := here.installed.Values
	for _, local := range slices.Concat(v.PodSubnets, v.ServiceSubnets, v.NodeSubnets) {
		for _, nodes := range there.facts.IPs.Prefixes {
			if local.Bits() > nodes.Bits() || !local.Contains(nodes.Addr()) {
				continue
			}
			out = append(out, check.Finding{Code: finding.NodesInside, Level: check.Error, Side: here.facts.Context,
				Subject: here.facts.Context + " and " + there.facts.Context + ": nodes",
				Evidence: fmt.Sprintf("the nodes of %s in %s are inside %s, which %s calls its own", there.facts.Context, nodes,
					local, here.facts.Context),
				Fix: fmt.Sprintf("name the nodes of each cluster alone: %s --node-subnets %s",
					commandFor(here.applier.cluster, "install"), install.Addresses(here.facts.Nodes))})
		}
	}
	return out
}

func (l *linker) unlink(ctx context.Context, w io.Writer) error {
	all, pairs, err := l.parties(ctx)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		for _, way := range [][2]*linkedCluster{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			if err := remove(ctx, w, way[0].facts.Context, way[0].remotes, way[1].name); err != nil {
				return err
			}
		}
	}
	for _, p := range all {
		if err := p.names(ctx, w, false); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a RemoteCluster; one that does not exist is not an error.
func remove(ctx context.Context, w io.Writer, where string, remotes dynamic.ResourceInterface, name string) error {
	said := "deleted"
	if err := remotes.Delete(ctx, name, metav1.DeleteOptions{}); apierrors.IsNotFound(err) {
		said = "was not there"
	} else if err != nil {
		return fmt.Errorf("%s: RemoteCluster %s: %w", where, name, err)
	}
	_, err := fmt.Fprintf(w, "%s: RemoteCluster %s %s\n", where, name, said)
	return err
}

// forget prints what clusters have of another, and with yes removes it.
func forget(ctx context.Context, w, progress io.Writer, access *fleet.Access, name string, yes bool) error {
	clusters, err := access.Clusters()
	if err != nil {
		return err
	}
	known := false
	for _, c := range clusters {
		a, err := applierOf(c, progress)
		if err != nil {
			return err
		}
		has, err := a.forget(ctx, w, name, yes)
		if err != nil {
			return err
		}
		known = known || has
	}
	if known && !yes {
		return program.ExitError{Code: cli.ExitWrong, Err: errors.New("nothing was removed: --yes does it")}
	}
	return nil
}

// forget does so for one cluster; known means that it has a RemoteCluster of the name, or an exporter that an
// interrupted call left.
func (a *applier) forget(ctx context.Context, w io.Writer, name string, yes bool) (known bool, err error) {
	where := a.cluster.Context
	remotes := a.client.Resource(v1alpha1.RemoteClusters)
	found, err := remotes.Get(ctx, name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return false, fmt.Errorf("%s: RemoteCluster %s: %w", where, name, err)
	}
	exporter, reads, err := a.reads(ctx, name)
	if err != nil {
		return false, err
	}
	text := fmt.Sprintf("%s: has no RemoteCluster %s\n", where, name)
	if !missing {
		text = fmt.Sprintf("%s: has of %s %s\n", where, name, countsOf(found))
	} else if !reads {
		_, err := io.WriteString(w, text)
		return false, err
	}
	if reads && !yes {
		text += fmt.Sprintf("%s: has %s with an exporter that reads %s\n", where, exporter, name)
	}
	if _, err := io.WriteString(w, text); err != nil || !yes {
		return true, err
	}
	if err := remove(ctx, w, where, remotes, name); err != nil {
		return true, err
	}
	if err := a.endReading(ctx, w, name); err != nil {
		return true, err
	}
	said, err := wireDNS(ctx, a, false)
	if err != nil {
		return true, err
	}
	if said != "" {
		if _, err := fmt.Fprintf(w, "%s: %s\n", where, cli.Printable(said)); err != nil {
			return true, err
		}
	}
	if reads {
		_, err = fmt.Fprintf(w, "%[2]s keeps a ServiceAccount that %[1]s read it by; with a context of %[2]s:\n"+
			"  %[3]s --agentless CONTEXT=%[2]s\n", where, name, commandFor(a.cluster, "unlink"))
	}
	return true, err
}

// countsOf returns the counts in the status of a RemoteCluster, such as "nodes 3, services 12".
func countsOf(object *unstructured.Unstructured) string {
	counts, _, _ := unstructured.NestedMap(object.Object, "status", "objects")
	var out []string
	for what, n := range counts {
		out = append(out, fmt.Sprintf("%s %v", what, n))
	}
	if len(out) == 0 {
		return "nothing that its status counts"
	}
	slices.Sort(out)
	return cli.Printable(strings.Join(out, ", "))
}
