package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/certs"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// linkWithin bounds the requests to the apiservers of all clusters, and with --dns the restart of their CoreDNS.
const linkWithin = 5 * time.Minute

// linkedCluster is a cluster with the facts that other clusters need.
type linkedCluster struct {
	*certs.OwnIdentity
	facts *preflight.Cluster
	// addresses of its broker for other clusters.
	addresses []string
	// source is what sourceOf returns.
	source string
	// installed is the record of install there; nil for none.
	installed *apply.Record
}

// linker is a call of link or unlink.
type linker struct {
	access    *fleet.Access
	dns       bool
	withAll   bool
	addresses map[string]string
	dryRun    show.DryRun
	output    *show.Outputs
	progress  io.Writer
	agentless agentless
	says      certs.Word
	// yes is for unlink; link has it in says.
	yes bool
}

func (l *linker) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.withAll, "with-all", false,
		"link each --context with every other cluster in the kubeconfig that runs semaphore")
	cmd.Flags().StringArrayVar(&l.agentless.contexts, "agentless", nil,
		"`CONTEXT` or CONTEXT=NAME of a cluster with nothing but a ServiceAccount, which an exporter beside the broker "+
			"of each --context reads; may be repeated")
}

func Command(access *fleet.Access) *cobra.Command {
	l := linker{access: access}
	cmd := &cobra.Command{
		Use:   "link --context C1 --context C2…",
		Short: "connect clusters: exchange their roots, and make a RemoteCluster of each in all others",
		Long: `Connects clusters that have semaphore: each gets the roots and a RemoteCluster of every other. Names and roots
are those of the parts' certificates, subnets are found as check --pre does, and the address is that of the
Service semaphore-broker-federation. It shows this and asks before it writes; a script says --yes. It writes
nothing if a problem prevents the connection. It can be called again; what others manage is not overwritten.

Nobody names itself: a name that stands for a cluster already is written again only for who has a key of its
roots (--replace NAME overrules that). Subnets that stand stay. Public or wide ones, and those of another
remote, need your word: --pod-subnets, --node-subnets.

  semaphorectl link --context c1 --context c2
  semaphorectl link --context c21 --with-all
  semaphorectl link --context c1 --context c2 --dns
  semaphorectl link --context c1,c2 --dry-run=client -o yaml     prints the objects of each cluster, for GitOps

A cluster of --agentless gets a ServiceAccount that may read Services and pods, and nothing else. An exporter
beside the broker of each --context reads it, and the RemoteCluster there has its Services and sets. Packets
to its pods are not encrypted. Called again, it renews certificate, token and image, and keeps the features
without --features; with more it adds them. To take one away, unlink --agentless it first.

  semaphorectl link --context c1 --agentless legacy

Exit code 0 when the objects are there, 1 when a cluster cannot be asked, 2 when a problem prevents it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := show.CheckPlanned(l.output, l.dryRun); err != nil {
				return err
			}
			if err := l.checkAgentless(); err != nil {
				return err
			}
			l.progress, l.says.In = cmd.ErrOrStderr(), cmd.InOrStdin()
			if len(l.agentless.contexts) > 0 {
				return l.read(cmd.Context(), cmd.OutOrStdout())
			}
			return l.link(cmd.Context(), cmd.OutOrStdout())
		},
	}
	l.flags(cmd)
	l.says.Flags(cmd)
	l.says.Bounds(cmd)
	show.CompleteFlag(cmd, "replace", fleet.CompleteRemotes(access))
	cmd.Flags().StringToStringVar(&l.addresses, "address", nil,
		"`CONTEXT=HOST:PORT[+HOST:PORT]`: where others reach the broker of that cluster (default: by its Service); may be "+
			"repeated")
	l.output = show.PlannedFlags(cmd, &l.dryRun)
	cmd.Flags().BoolVar(&l.dns, "dns", false,
		"also have CoreDNS answer names of remote Services, in all of them, "+
			"and restart it; once given, link and unlink keep that current")
	cmd.Flags().StringToStringVar(&l.agentless.apis, "api", nil,
		"with --agentless: `CONTEXT=URL` by which pods reach the apiserver (default: as in the kubeconfig)")
	cmd.Flags().StringSliceVar(&l.agentless.features, "features", nil,
		"with --agentless: of services and policy, and encryption where semaphore-wireguard runs there (default: those "+
			"of before; at first services and policy, if the cluster that reads has them)")
	show.CompleteFlag(cmd, "features", show.OneOf("encryption", "services", "policy"))
	return cmd
}

func Unlink(access *fleet.Access) *cobra.Command {
	l := linker{access: access}
	var force bool
	cmd := &cobra.Command{
		Use:   "unlink --context C1,C2… | CLUSTER --force --context C1…",
		Short: "disconnect clusters: delete the RemoteCluster of each in all others; --force removes a dead one",
		Long: `Disconnects clusters from each other: deletes the RemoteCluster of each in all others, and with it mirrors,
sets and peers. A cluster that does not prove its name by its key is refused. Both sides have to be reached. Roots stay
where they are. With --agentless it also deletes the exporters that read the cluster, and their ServiceAccounts there.

With --force it removes CLUSTER, dead or alive, from the clusters of --context without asking it.

It says first what they have of each other; only with --yes it does it.

  semaphorectl unlink --context c1,c2 --yes
  semaphorectl unlink c3 --force --context c1,c2 --yes

Exit code 0 when it is done, or without --yes; 1 when a cluster cannot be asked, 2 when a problem prevents it.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), linkWithin)
			defer cancel()
			l.progress = cmd.ErrOrStderr()
			switch {
			case force && (len(args) == 0 || l.withAll || len(l.agentless.contexts) > 0):
				return errors.New("--force: give the one CLUSTER to remove, and neither --with-all nor --agentless")
			case force:
				return l.forget(ctx, cmd.OutOrStdout(), args[0])
			case len(args) > 0:
				return fmt.Errorf("%s: to remove it without asking it give --force, or else its --context", args[0])
			}
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
	cmd.Flags().BoolVar(&force, "force", false, "remove CLUSTER without asking it, as where it is dead")
	show.YesFlag(cmd, &l.yes)
	show.CompleteArg(cmd, fleet.CompleteRemotes(access))
	return cmd
}

// parties returns the selected clusters, and which of them are linked: those of --context with each other, or each of
// them with all others that have semaphore.
func (l *linker) parties(ctx context.Context) (all []*linkedCluster, pairs [][2]*linkedCluster, err error) {
	if all, err = l.given(ctx); err != nil {
		return nil, nil, err
	}
	given := len(all)
	if l.withAll {
		if all, err = l.others(ctx, all); err != nil {
			return nil, nil, err
		}
	}
	for i, a := range all {
		for j, b := range all[i+1:] {
			if a.Name == b.Name {
				return nil, nil, fmt.Errorf("%s and %s: both are named %q", a.facts.Context, b.facts.Context, a.Name)
			}
			if !l.withAll || i < given != (i+1+j < given) {
				pairs = append(pairs, [2]*linkedCluster{a, b})
			}
		}
	}
	if len(pairs) == 0 {
		return nil, nil, errors.New("--context: give two or more clusters, or --with-all")
	}
	return all, pairs, nil
}

func (l *linker) given(ctx context.Context) ([]*linkedCluster, error) {
	clusters, err := l.access.Clusters()
	if err != nil {
		return nil, err
	}
	return fleet.AllOf(clusters, func(c *fleet.Cluster) (*linkedCluster, error) { return l.party(ctx, c) })
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
		c, err := l.access.One(name)
		if err != nil {
			return nil, err
		}
		data, err := certs.Of(apply.New(c, l.progress)).Secret(ctx, identity.SecretName("semaphorectl"))
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
	own, err := certs.Of(apply.New(c, l.progress)).Own(ctx)
	if err != nil {
		return nil, err
	}
	out := &linkedCluster{OwnIdentity: own}
	if out.facts, err = preflight.Survey(ctx, c); err != nil {
		return nil, err
	}
	toLink(out.facts, out.Name)
	if out.installed, err = out.Record(ctx); err != nil {
		return nil, err
	}
	if out.installed != nil {
		out.facts = apply.WithWishes(out.facts, out.installed.Wishes)
	}
	if err := l.says.Given(out.facts); err != nil {
		return nil, err
	}
	if out.source, err = sourceOf(ctx, c); err != nil {
		return nil, err
	}
	if given := l.addresses[c.Context]; given != "" {
		out.addresses = strings.Split(given, "+")
	} else {
		service, err := fleet.Get[corev1.Service](ctx, c.Objects, fleet.ServicesGVR, c.Namespace, federationService)
		if err == nil && service == nil {
			err = fmt.Errorf("%s: no Service %s/%s", c.Context, c.Namespace, federationService)
		}
		if err != nil {
			return nil, err
		}
		out.addresses = addressesOf(service, out.facts.Nodes)
	}
	return out, nil
}

// sourceOf returns the UID of a cluster's namespace kube-system; empty if it may not be read.
func sourceOf(ctx context.Context, c *fleet.Cluster) (string, error) {
	system, err := fleet.Get[corev1.Namespace](ctx, c.Objects, fleet.NamespacesGVR, "", fleet.System)
	if system == nil || err != nil {
		if apierrors.IsForbidden(err) {
			err = nil
		}
		return "", err
	}
	return string(system.UID), nil
}

// toLink gives a cluster its name, and leaves out what matters only to an installation.
func toLink(c *preflight.Cluster, name string) {
	c.Names, c.Lacks = []string{name}, nil
	c.Unread = slices.DeleteFunc(c.Unread, func(u preflight.Unread) bool {
		return slices.Contains([]preflight.Fact{preflight.FactMCS, preflight.FactPodMonitors, preflight.FactRights}, u.Fact)
	})
}

// federationService is where other clusters reach a broker.
const federationService = "semaphore-broker-federation"

// maxAddresses is how many nodes lead to a broker: one may go, and another one be replaced at the same time.
const maxAddresses = 3

// addressesOf returns where other clusters reach a Service: its load balancer, or its port on several nodes; none if
// neither is known.
func addressesOf(s *corev1.Service, nodes []preflight.Node) (out []string) {
	if len(s.Spec.Ports) == 0 {
		return nil
	}
	port := s.Spec.Ports[0]
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		for _, host := range []string{ingress.Hostname, ingress.IP} {
			if host != "" {
				return []string{net.JoinHostPort(host, strconv.Itoa(int(port.Port)))}
			}
		}
	}
	// Some nodes represent all: those that are likely to remain.
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
		if port.NodePort != 0 && len(n.InternalIPs) > 0 && len(out) < maxAddresses {
			out = append(out, net.JoinHostPort(n.InternalIPs[0].String(), strconv.Itoa(int(port.NodePort))))
		}
	}
	return out
}

// print prints the objects in place of writing them.
func (l *linker) print(w io.Writer, all []*linkedCluster, gets []*certs.Introduction) error {
	var clusters []show.Planned
	for _, p := range all {
		one := show.Planned{Context: p.facts.Context, Comment: "in " + p.facts.Context, SubnetKeys: map[string]string{}}
		for _, x := range gets {
			if x.Here == p.OwnIdentity {
				one.Objects = append(one.Objects, x.Object)
				key, value := config.RemotePodSubnets(x.Name, x.Pods)
				one.SubnetKeys[key] = value
			}
		}
		clusters = append(clusters, one)
	}
	return show.PrintPlanned(w, clusters, l.output.Chosen)
}

// introductions returns each cluster's share of the other in a pair.
func introductions(pairs [][2]*linkedCluster) (gets []*certs.Introduction, err error) {
	for _, pair := range pairs {
		for _, way := range [][2]*linkedCluster{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			here, there := way[0], way[1]
			x, err := certs.Introduce(here.OwnIdentity, there.OwnIdentity)
			if err != nil {
				return nil, err
			}
			x.Facts, x.Addresses, x.Source = there.facts, there.addresses, there.source
			gets = append(gets, x)
		}
	}
	return gets, nil
}

// link creates the objects: all are made in memory, and whatever prevents a link is found, before the first write.
func (l *linker) link(ctx context.Context, w io.Writer) error {
	reading, cancel := context.WithTimeout(ctx, linkWithin)
	defer cancel()
	all, pairs, err := l.parties(reading)
	if err != nil {
		return err
	}
	said := w
	if l.dryRun.On() { // standard output is for kubectl
		said = l.progress
	}
	if err := checkLinkable(said, all, pairs); err != nil {
		return err
	}
	gets, err := introductions(pairs)
	if err != nil {
		return err
	}
	if err := l.says.Propose(reading, said, gets); err != nil {
		return err
	}
	if l.dryRun.On() {
		return l.print(w, all, gets)
	}
	return l.says.Agreed(ctx, linkWithin, said, l.progress, gets, func(ctx context.Context) error {
		if err := certs.Write(ctx, gets, func(x *certs.Introduction) error {
			// It was read from here, and now has an exporter of its own.
			if err := endReading(ctx, w, x.Here.Applier, x.Name); err != nil {
				return err
			}
			_, err := fmt.Fprintf(w, "%s: RemoteCluster %s: pods %s, broker at %s\n", x.Here.Cluster.Context, x.Name,
				preflight.Subnets{Prefixes: x.Pods}, strings.Join(x.Addresses, ", "))
			return err
		}); err != nil {
			return err
		}
		deliver(ctx, given(gets))
		var failed error
		for _, p := range all {
			failed = errors.Join(failed, dns.Wire(ctx, w, p.Applier, l.dns))
		}
		return failed
	})
}

// checkLinkable returns an error if clusters cannot be linked as they are, and prints why.
func checkLinkable(w io.Writer, all []*linkedCluster, pairs [][2]*linkedCluster) error {
	var found []show.Finding
	for _, p := range all {
		found = append(found, preflight.Judge([]*preflight.Cluster{p.facts})...)
		if len(p.addresses) == 0 {
			has := "neither a port on the nodes nor a load balancer: other clusters cannot reach the broker"
			if !p.facts.Knows(preflight.FactNodes) {
				has = "no load balancer, and the nodes could not be read: where others reach the broker is not known"
			}
			found = append(found, show.Blocker(p.facts.Context, finding.NoAddress, "Service "+federationService,
				"make it of type NodePort or LoadBalancer (semaphorectl install --expose), or give --address "+
					p.facts.Context+"=HOST:PORT", "it has %s", has))
		}
	}
	for _, pair := range pairs {
		found = append(found, preflight.JudgePair(pair[0].facts, pair[1].facts)...)
		for _, way := range [][2]*linkedCluster{{pair[0], pair[1]}, {pair[1], pair[0]}} {
			found = append(found, nodesInside(way[0], way[1])...)
		}
	}
	return printPreventing(w, found)
}

// printPreventing prints what prevents a link, and what could not be read. It fails as show.PrintBlockers does.
func printPreventing(w io.Writer, found []show.Finding) error {
	return show.PrintBlockers(w, slices.DeleteFunc(found, func(f show.Finding) bool {
		return f.Level != finding.Error && f.Code != finding.NotRead
	}))
}

// nodesInside reports that a cluster's subnets contain nodes of another: it would accept none of them.
func nodesInside(here, there *linkedCluster) (out []show.Finding) {
	if here.installed == nil {
		return nil
	}
	v := here.installed.Values
	for _, local := range slices.Concat(v.PodSubnets, v.ServiceSubnets, v.NodeSubnets) {
		for _, nodes := range there.facts.IPs.Prefixes {
			if local.Bits() > nodes.Bits() || !local.Contains(nodes.Addr()) {
				continue
			}
			out = append(out, show.Found(finding.NodesInside, here.facts.Context,
				here.facts.Context+" and "+there.facts.Context+": nodes",
				fmt.Sprintf("name the nodes of each cluster alone: %s --node-subnets %s",
					fleet.CommandFor(here.Cluster, "install"), apply.Addresses(here.facts.Nodes)),
				"the nodes of %s in %s are inside %s, which %s calls its own", there.facts.Context, nodes, local,
				here.facts.Context))
		}
	}
	return out
}

func (l *linker) unlink(ctx context.Context, w io.Writer) error {
	_, pairs, err := l.parties(ctx)
	if err != nil {
		return err
	}
	// A cluster that says that it is another one does not have that one removed.
	gets, err := introductions(pairs)
	if err != nil {
		return err
	}
	for _, x := range gets {
		x.Facts = nil
	}
	found, err := l.says.Judge(ctx, gets)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		for i := range found {
			found[i].Fix = "find out why; to remove a cluster by its name: semaphorectl unlink NAME --force --context " +
				found[i].Side
		}
		return show.Report(w, found, "table")
	}
	all, err := fleet.AllOf(gets, func(x *certs.Introduction) (*share, error) {
		return shareOf(ctx, x.Here.Applier, x.Name)
	})
	if err != nil {
		return err
	}
	return l.leave(ctx, w, all)
}

// forget removes a cluster from others without asking it.
func (l *linker) forget(ctx context.Context, w io.Writer, name string) error {
	clusters, err := l.access.Clusters()
	if err != nil {
		return err
	}
	all, err := fleet.AllOf(clusters, func(c *fleet.Cluster) (*share, error) {
		return shareOf(ctx, apply.New(c, l.progress), name)
	})
	if err != nil {
		return err
	}
	if err := l.leave(ctx, w, all); err != nil {
		return err
	}
	for _, s := range all {
		if !s.read {
			continue
		}
		fmt.Fprintf(w, "the ServiceAccount for %[1]s still exists in %[2]s; with a context of %[2]s:\n"+
			"  %[3]s --agentless CONTEXT=%[2]s --yes\n", s.Cluster.Context, name,
			fleet.CommandFor(s.Cluster, "unlink"))
	}
	return nil
}

// share is a cluster's share of another: its RemoteCluster, and an exporter that reads it.
type share struct {
	*apply.Applier
	of string
	// remote is nil for none.
	remote   *unstructured.Unstructured
	exporter apply.Ref
	read     bool
	// subnets is set if admission policies know its pod subnets.
	subnets bool
}

func remoteRef(name string) apply.Ref {
	return apply.Ref{GroupVersionKind: v1alpha1.GroupVersion.WithKind(v1alpha1.Kind), Name: name}
}

func shareOf(ctx context.Context, a *apply.Applier, cluster string) (*share, error) {
	s := &share{Applier: a, of: cluster}
	var err error
	if s.remote, err = a.Get(ctx, remoteRef(cluster)); err != nil {
		return nil, err
	}
	// An interrupted call may have left an exporter, or the key with the subnets, without a RemoteCluster.
	if s.subnets, err = certs.Of(a).HasSubnets(ctx, cluster); err != nil {
		return nil, err
	}
	s.exporter, s.read, err = reads(ctx, a, cluster)
	return s, err
}

// String has a line for each thing.
func (s *share) String() string {
	out := fmt.Sprintf("%s: has no RemoteCluster %s\n", s.Cluster.Context, s.of)
	if s.remote != nil {
		out = fmt.Sprintf("%s: objects of %s: %s\n", s.Cluster.Context, s.of, countsOf(s.remote))
	}
	if s.subnets && s.remote == nil {
		out += fmt.Sprintf("%s: has the pod subnets of %s in semaphore-subnets, for own names of Services\n",
			s.Cluster.Context, s.of)
	}
	if s.read {
		out += fmt.Sprintf("%s: has %s with an exporter that reads %s\n", s.Cluster.Context, s.exporter, s.of)
	}
	return out
}

// leave prints clusters' shares of others, and with --yes removes them. Each does it for the clusters that it asked, or
// not.
func (l *linker) leave(ctx context.Context, w io.Writer, all []*share) error {
	known := false
	for _, s := range all {
		is := s.remote != nil || s.read || s.subnets
		known = known || is
		if !l.yes || !is {
			io.WriteString(w, s.String())
		} else if err := s.end(ctx, w); err != nil {
			return err
		}
	}
	switch {
	case !l.yes && known:
		return show.OnlyPlanned("removed")
	case !l.yes:
		return nil
	}
	deliver(ctx, withdrawn(all))
	var failed error
	for i, s := range all {
		if !slices.ContainsFunc(all[:i], func(o *share) bool { return o.Cluster == s.Cluster }) {
			failed = errors.Join(failed, dns.Wire(ctx, w, s.Applier, false))
		}
	}
	return failed
}

func (s *share) end(ctx context.Context, w io.Writer) error {
	if ref := remoteRef(s.of); s.remote != nil {
		if err := s.Of(ref).Delete(ctx, s.of, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s: %s: %w", s.Cluster.Context, ref, err)
		}
		fmt.Fprintf(w, "%s: %s deleted\n", s.Cluster.Context, ref)
	}
	// After the RemoteCluster: until its slices are gone, the broker may have to write them.
	if s.subnets {
		if err := certs.Of(s.Applier).UnpinSubnets(ctx, s.of); err != nil {
			return err
		}
		if s.remote == nil {
			fmt.Fprintf(w, "%s: pod subnets of %s removed from semaphore-subnets\n", s.Cluster.Context,
				s.of)
		}
	}
	return endReading(ctx, w, s.Applier, s.of)
}

// countsOf returns the counts in the status of a RemoteCluster, such as "nodes 3, services 12".
func countsOf(object *unstructured.Unstructured) string {
	counts, _, _ := unstructured.NestedMap(object.Object, "status", "objects")
	var out []string
	for what, n := range counts {
		out = append(out, fmt.Sprintf("%s %v", what, n))
	}
	if len(out) == 0 {
		return "none"
	}
	slices.Sort(out)
	return show.Printable(strings.Join(out, ", "))
}
