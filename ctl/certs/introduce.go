// Package certs makes authorities and certificates, in files or in clusters, and introduces clusters to each other: who
// is trusted by which roots, under which name.
package certs

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/check"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// Word is the operator's word about clusters, in place of their own.
type Word struct {
	// replace are the names that stand for another cluster from now on.
	replace []string
	// pods and nodes are the subnets of a context, joined by +.
	pods, nodes map[string]string
	yes         bool
	In          io.Reader
}

func (o *Word) Flags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&o.replace, "replace", nil,
		"`NAME` of a cluster that was rebuilt, or whose name another cluster takes over: its earlier roots and subnets do "+
			"not count; may be repeated")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do it without asking; a script needs it")
}

// Bounds adds the flags for verbs that also write subnets.
func (o *Word) Bounds(cmd *cobra.Command) {
	cmd.Flags().StringToStringVar(&o.pods, "pod-subnets", nil,
		"`CONTEXT=CIDR[+CIDR]`: pods of that cluster, in place of what it says itself; may be repeated")
	cmd.Flags().StringToStringVar(&o.nodes, "node-subnets", nil,
		"`CONTEXT=CIDR[+CIDR]`: nodes of that cluster, in place of what it says itself; may be repeated")
}

func subnetsOf(flag string, all map[string]string, context string) (out []netip.Prefix, err error) {
	text, ok := all[context]
	if !ok {
		return nil, nil
	}
	out, err = preflight.Prefixes(strings.Split(text, "+"))
	if i := slices.IndexFunc(out, func(p netip.Prefix) bool { return p != p.Masked() }); err == nil && i >= 0 {
		err = fmt.Errorf("%q is no network, but %s", out[i], out[i].Masked())
	}
	if err != nil {
		return nil, fmt.Errorf("--%s %s=%s: %w", flag, context, text, err)
	}
	return out, nil
}

// Given replaces a cluster's own word by the operator's. It fails for a subnet that it cannot parse.
func (o *Word) Given(facts *preflight.Cluster) error {
	for _, one := range []struct {
		flag string
		all  map[string]string
		to   *preflight.Subnets
	}{{"pod-subnets", o.pods, &facts.Pods}, {"node-subnets", o.nodes, &facts.IPs}} {
		prefixes, err := subnetsOf(one.flag, one.all, facts.Context)
		if err != nil {
			return err
		}
		if len(prefixes) > 0 {
			*one.to = preflight.Subnets{Prefixes: prefixes, From: "--" + one.flag}
		}
	}
	return nil
}

// Ask returns nil if the operator agrees to the changes, or there are none. It fails if the operator does not, without
// a terminal to ask on, and if ctx ends.
func (o *Word) Ask(ctx context.Context, prompt io.Writer, all []*Introduction) error {
	nothing := show.OnlyPlanned("written")
	if o.yes || !slices.ContainsFunc(all, (*Introduction).differs) {
		return nil
	}
	f, ok := o.In.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nothing
	}
	fmt.Fprint(prompt, "Write this? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(f).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case said := <-answer:
		if said != "y" && said != "yes" {
			return nothing
		}
		return nil
	}
}

// keyPair is the certificate by which a cluster shows who it is, with its key.
type keyPair struct{ cert, key []byte }

// Introduction is one cluster's share of another: its roots and, except by pki exchange, its RemoteCluster. introduce
// is the only function that writes either.
type Introduction struct {
	Here *OwnIdentity
	// There is a context, and Name that cluster's word for its name.
	There, Name string
	Bundle      []byte
	// Proof is nil for a cluster in which nothing of semaphore runs.
	Proof *keyPair
	// Doubt is why a cluster without proof is not the one that has the name already; nil for no doubt.
	Doubt error
	// Facts are nil if only roots are written.
	Facts     *preflight.Cluster
	Addresses []string
	// Source is the UID by which the broker knows the cluster (spec.sourceID); empty if it is not known.
	Source string

	// The fields below are the result of judge.
	Pods, Nodes []netip.Prefix
	Object      *unstructured.Unstructured
	before      *known
}

// Introduce returns a cluster's share of another, as their certificates and roots have it. It fails for roots that no
// other cluster may have.
func Introduce(here, there *OwnIdentity) (*Introduction, error) {
	bundle, err := identity.PeerBundle(here.Name, there.Name, there.Bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", there.Cluster.Context, err)
	}
	return &Introduction{Here: here, There: there.Cluster.Context, Name: there.Name, Bundle: bundle,
		Proof: &there.Proof}, nil
}

// known is a remote that a cluster has already.
type known struct {
	preflight.Remote
	// roots of the RemoteCluster, else of the ConfigMap.
	roots     []byte
	addresses []string
	source    string
}

// remotesOf returns a cluster's remotes, by name: RemoteClusters, and roots without one. It reads no status.
func (p *Store) remotesOf(ctx context.Context) (map[string]*known, error) {
	out := map[string]*known{}
	bundles, err := p.bundles(ctx)
	if err != nil {
		return nil, err
	}
	for file, text := range bundles {
		if name, ok := strings.CutSuffix(file, ".pem"); ok {
			out[name] = &known{Remote: preflight.Remote{Name: name}, roots: []byte(text)}
		}
	}
	list, err := p.Cluster.Objects.RemoteClusters(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		k := &known{Remote: preflight.Remote{Name: r.Name}, roots: []byte(r.Spec.TrustBundle), source: r.Spec.SourceID}
		if has := out[k.Name]; has != nil && len(k.roots) == 0 {
			k.roots = has.roots
		}
		if b := r.Spec.Broker; b != nil && b.Address != "" {
			k.addresses = []string{b.Address}
			for _, other := range b.OtherAddresses {
				k.addresses = append(k.addresses, string(other))
			}
		}
		if k.Pods, err = preflight.Prefixes(r.Spec.PodSubnets); err != nil {
			return nil, fmt.Errorf("%s: RemoteCluster %s: spec.podSubnets: %w", p.Cluster.Context, k.Name, err)
		}
		if k.Nodes, err = preflight.Prefixes(r.Spec.NodeSubnets); err != nil {
			return nil, fmt.Errorf("%s: RemoteCluster %s: spec.nodeSubnets: %w", p.Cluster.Context, k.Name, err)
		}
		out[k.Name] = k
	}
	return out, nil
}

// Judge decides each cluster's share of others, and returns the obstacles. It reads, and writes nothing. It fails if an
// object cannot be read.
func (o *Word) Judge(ctx context.Context, all []*Introduction) ([]show.Finding, error) {
	var found []show.Finding
	has := map[*OwnIdentity]map[string]*known{}
	for _, x := range all {
		if has[x.Here] == nil {
			known, err := x.Here.remotesOf(ctx)
			if err != nil {
				return nil, err
			}
			has[x.Here] = known
		}
		remotes := has[x.Here]
		in := preflight.Introduction{Here: x.Here.Cluster.Context, There: x.There, Says: preflight.Remote{Name: x.Name},
			RootsOnly: x.Facts == nil, Replace: slices.Contains(o.replace, x.Name), Doubt: x.Doubt}
		if x.Facts != nil {
			in.Says.Pods, in.Says.Nodes = x.Facts.Pods.Prefixes, x.Facts.IPs.Prefixes
		}
		var err error
		if in.Pods, err = subnetsOf("pod-subnets", o.pods, x.There); err != nil {
			return nil, err
		}
		if in.Nodes, err = subnetsOf("node-subnets", o.nodes, x.There); err != nil {
			return nil, err
		}
		if x.before = remotes[x.Name]; x.before != nil {
			in.Before = &x.before.Remote
			if x.Proof != nil && !in.Replace {
				in.Doubt = identity.CheckCertificate(x.before.roots, x.Proof.cert, x.Proof.key, x.Name, "semaphorectl", time.Now())
			}
		}
		for name, other := range remotes {
			if name != x.Name {
				in.Others = append(in.Others, other.Remote)
			}
		}
		slices.SortFunc(in.Others, func(a, b preflight.Remote) int { return strings.Compare(a.Name, b.Name) })
		var one []show.Finding
		x.Pods, x.Nodes, one = preflight.Pin(in)
		found = append(found, one...)
		// The next cluster of this call has to be apart from this one, too.
		remotes[x.Name] = &known{Remote: preflight.Remote{Name: x.Name, Pods: x.Pods, Nodes: x.Nodes}}
		if x.Facts != nil {
			// The broker lets another cluster of the name in by the operator's word; that word stays.
			if x.before == nil {
				x.Source = ""
			} else if !in.Replace {
				x.Source = x.before.source
			}
			if x.Object, err = x.remote(); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func subnets(all []netip.Prefix) (out []v1alpha1.Subnet) {
	for _, p := range all {
		out = append(out, v1alpha1.Subnet(p.String()))
	}
	return out
}

// remote returns the RemoteCluster. Without addresses of its broker nothing is exported to it. It fails only if JSON
// cannot hold it.
func (x *Introduction) remote() (*unstructured.Unstructured, error) {
	remote := &v1alpha1.RemoteCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: x.Name},
		Spec: v1alpha1.RemoteClusterSpec{PodSubnets: subnets(x.Pods), NodeSubnets: subnets(x.Nodes),
			TrustBundle: string(x.Bundle), SourceID: x.Source},
	}
	if len(x.Addresses) > 0 {
		remote.Spec.Broker = &v1alpha1.Broker{Address: x.Addresses[0]}
		for _, other := range x.Addresses[1:] {
			remote.Spec.Broker.OtherAddresses = append(remote.Spec.Broker.OtherAddresses, v1alpha1.BrokerAddress(other))
		}
	}
	object, err := fleet.Object(remote)
	if err != nil {
		return nil, err
	}
	delete(object.Object, "status")
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	return object, nil
}

// differs reports whether the share differs from the one that the cluster has.
func (x *Introduction) differs() bool {
	k := x.before
	if k == nil || x.Bundle != nil && strings.TrimSpace(string(k.roots)) != strings.TrimSpace(string(x.Bundle)) {
		return true
	}
	return x.Facts != nil && (!slices.Equal(k.Pods, x.Pods) || !slices.Equal(k.Nodes, x.Nodes) ||
		!slices.Equal(k.addresses, x.Addresses) || k.source != x.Source)
}

// describe prints a cluster's share of another.
func (x *Introduction) describe(w io.Writer) {
	say := func(what, was, is string) {
		switch {
		case is == "":
			return
		case x.before == nil || was == "":
		case was == is:
			is += " (as before)"
		default:
			is += " (instead of " + was + ")"
		}
		for _, line := range finding.Wrap(show.Printable(fmt.Sprintf("  %-7s %s", what, is)), "          ", show.LineWidth) {
			fmt.Fprintln(w, line)
		}
	}
	fmt.Fprintf(w, "%s gets of %s, which says that it is %s:\n", show.Printable(x.Here.Cluster.Context),
		show.Printable(x.There), show.Printable(x.Name))
	was := cmp.Or(x.before, &known{})
	say("roots", fingerprints(was.roots), fingerprints(x.Bundle))
	if x.Facts != nil {
		text := func(all []netip.Prefix) string { return preflight.Subnets{Prefixes: all}.String() }
		say("pods", text(was.Pods), text(x.Pods))
		say("nodes", text(was.Nodes), text(x.Nodes))
		say("broker", strings.Join(was.addresses, " "), strings.Join(x.Addresses, " "))
		say("source", was.source, x.Source)
	}
}

// fingerprints returns those of roots, as other verbs print them.
func fingerprints(bundle []byte) string {
	var out []string
	for _, root := range check.ParseBundle("", "", bundle).Roots {
		out = append(out, check.Fingerprint(root))
	}
	return strings.Join(out, " ")
}

// Propose prints the new parts of clusters' shares of each other. If there are obstacles it prints these instead, and
// fails.
func (o *Word) Propose(ctx context.Context, w io.Writer, all []*Introduction) error {
	if err := o.refuse(ctx, w, all); err != nil {
		return err
	}
	for _, x := range all {
		if x.differs() {
			x.describe(w)
		}
	}
	return nil
}

// refuse judges a proposal. If there are obstacles it prints them, and fails.
func (o *Word) refuse(ctx context.Context, w io.Writer, all []*Introduction) error {
	found, err := o.Judge(ctx, all)
	if err != nil || len(found) == 0 {
		return err
	}
	return show.Report(w, found, "table")
}

// Agreed writes a proposal to which the operator agrees, in a time of its own: the answer may take long. It fails as
// Ask, Confirm and write do.
func (o *Word) Agreed(ctx context.Context, within time.Duration, w, prompt io.Writer, all []*Introduction,
	write func(context.Context) error) error {
	if err := o.Ask(ctx, prompt, all); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := o.Confirm(ctx, w, all); err != nil {
		return err
	}
	return write(ctx)
}

// Confirm judges a proposal again right before it is written: another operator may have written since, and of two
// writes by semaphorectl the apiserver takes the later one. It fails with the obstacles, and if a share is another than
// before.
func (o *Word) Confirm(ctx context.Context, w io.Writer, all []*Introduction) error {
	var before []*known
	for _, x := range all {
		before = append(before, x.before)
	}
	if err := o.refuse(ctx, w, all); err != nil {
		return err
	}
	for i, x := range all {
		if !reflect.DeepEqual(before[i], x.before) {
			return fmt.Errorf("%s: remote %s has changed since it was read: run this again", x.Here.Cluster.Context, x.Name)
		}
	}
	return nil
}

// Write writes the proposal. It tries every write as a dry run first; roots come last. It fails at the first that is
// refused, after which a further call writes the rest.
func Write(ctx context.Context, all []*Introduction, wrote func(*Introduction) error) error {
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		for _, x := range all {
			if x.Object != nil {
				// First: admission policies refuse endpoints of a remote whose subnets they do not know.
				if err := x.Here.PinSubnets(ctx, x.Name, x.Pods, dryRun...); err != nil {
					return err
				}
				if err := x.Here.applyRemote(ctx, x.Object, dryRun...); err != nil {
					return err
				}
			}
			if dryRun != nil {
				if err := x.Here.trust(ctx, x.Name, x.Bundle, dryRun...); err != nil {
					return err
				}
			}
		}
	}
	for _, x := range all {
		if err := x.Here.trust(ctx, x.Name, x.Bundle); err != nil {
			return err
		}
		if err := wrote(x); err != nil {
			return err
		}
	}
	return nil
}

func (p *Store) applyRemote(ctx context.Context, object *unstructured.Unstructured, dryRun ...string) error {
	ref := apply.RefOf(object)
	if _, err := apply.ServerSideApply(ctx, p.Of(ref), ref.Name, object, false, dryRun...); err != nil {
		return fmt.Errorf("%s: %s: %w", p.Cluster.Context, ref, err)
	}
	return nil
}

// trust writes the roots of a cluster to the ConfigMap of bundles, and keeps those of others.
func (p *Store) trust(ctx context.Context, name string, bundle []byte, dryRun ...string) error {
	ref := apply.ConfigMapRef(p.Cluster.Namespace, identity.BundlesConfigMap)
	roots := map[string]any{name + ".pem": string(bundle)}
	if err := apply.SetData(ctx, p.Of(ref), ref, roots, "", dryRun...); err != nil {
		return fmt.Errorf("%s: %w", p.Cluster.Context, err)
	}
	return nil
}
