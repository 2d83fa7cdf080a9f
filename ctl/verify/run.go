package verify

import (
	"cmp"
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

	"golang.org/x/sync/errgroup"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// attempt bounds one request. A policy drops packets without an answer.
	attempt = 3 * time.Second
	// largePayload is many times a packet of any link.
	largePayload = 1 << 20
	largeWithin  = 10 * time.Second // for a large answer
	// namespacePrefix begins the name of the namespace, which is the same in all clusters. It is as short as it must be
	// for the names of mirrors with the longest servicePrefix of a RemoteCluster, of 32 characters.
	namespacePrefix = "sem-verify-"
)

type verifier struct {
	Traffic
	access    *fleet.Access
	progress  *progress
	namespace string
	clusters  []*verified
}

// run creates the pods, checks, removes them, and reports. An error means that it could not check.
func (v *verifier) run(ctx context.Context) (*Report, error) {
	if err := v.open(ctx); err != nil {
		return nil, err
	}
	v.namespace = namespacePrefix + rand.String(5)
	checks, removed, err := v.made(ctx)
	var left []string
	for _, c := range removed {
		if c.Result == Failed {
			left = append(left, c.From+": "+c.Detail)
		}
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		if len(left) > 0 {
			return nil, fmt.Errorf("%w; not all was removed (check --traffic --clean): %s", err, strings.Join(left, "; "))
		}
		return nil, fmt.Errorf("%w; what the check made is removed", err)
	}
	var clusters []Cluster
	for _, c := range v.clusters {
		one := Cluster{Context: c.Context, Name: c.name, Image: cmp.Or(v.Image, c.image)}
		for _, name := range []string{verifyClient, verifyStranger, verifyServer} {
			one.Pods = append(one.Pods, c.pods[name])
		}
		clusters = append(clusters, one)
	}
	return NewReport(v.namespace, clusters, append(checks, removed...), time.Since(v.progress.began).Seconds()), nil
}

func (v *verifier) open(ctx context.Context) error {
	clusters, err := v.access.Clusters()
	if err != nil {
		return err
	}
	if v.clusters, err = fleet.AllOf(clusters, func(c *fleet.Cluster) (*verified, error) {
		return openVerified(ctx, c, v.progress)
	}); err != nil {
		return err
	}
	for i, c := range v.clusters {
		c.number = i
		for _, other := range v.clusters[:i] {
			if c.name == other.name {
				return fmt.Errorf("%s and %s: both are named %q", other.Context, c.Context, c.name)
			}
		}
	}
	return nil
}

// made creates the pods and checks; it removes them in any case.
func (v *verifier) made(ctx context.Context) (checks, removed []Check, err error) {
	defer func() {
		if ctx.Err() != nil {
			v.progress.say("interrupted: removing namespace %s; a second signal leaves it", v.namespace)
		} else {
			v.progress.say("removing namespace %s", v.namespace)
		}
		removed = v.remove(ctx)
	}()
	v.progress.say("making namespace %s in %s", v.namespace, v.names())
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range v.clusters {
		g.Go(func() error {
			if err := c.create(gctx, v.namespace, v.Image); err != nil {
				return err
			}
			return c.awaitPods(gctx, v.namespace, v.Timeout)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for _, c := range v.clusters {
		v.progress.say("%s: client on %s, server on %s", c.name, c.pods[verifyClient].Node, c.pods[verifyServer].Node)
	}
	checks, err = v.checkAll(ctx)
	return checks, nil, err
}

func (v *verifier) names() string {
	var out []string
	for _, c := range v.clusters {
		out = append(out, c.name)
	}
	return strings.Join(out, ", ")
}

// way is one direction: from a pod of one cluster to a pod of another.
type way struct {
	from, to *verified
	checks   map[Name]Check
}

// checkAll runs the checks of all directions, one after the other: the devices' counters then count only that
// direction's bytes. Policies come last, because they refuse packets that the other checks need.
func (v *verifier) checkAll(ctx context.Context) ([]Check, error) {
	var ways []*way
	for _, from := range v.clusters {
		for _, to := range v.clusters {
			if from != to {
				ways = append(ways, &way{from, to, map[Name]Check{}})
			}
		}
	}
	for _, w := range ways {
		if err := v.checkWay(ctx, w); err != nil {
			return nil, err
		}
	}
	var out, measured []Check
	if v.Bench {
		var err error
		if measured, err = v.measure(ctx, ways); err != nil {
			return nil, err
		}
	}
	if err := v.checkPolicies(ctx, ways); err != nil {
		return nil, err
	}
	for _, w := range ways {
		for _, name := range Directed {
			out = append(out, w.checks[name])
		}
	}
	return append(out, measured...), nil
}

func (v *verifier) check(w *way, name Name, do func(Check) (Check, error)) error {
	began := time.Now()
	c, err := do(Check{From: w.from.name, To: w.to.name, Name: name})
	if err != nil {
		return err
	}
	c.Seconds = time.Since(began).Seconds()
	w.checks[name] = c
	v.progress.say("%s → %s: %s %s", w.from.name, w.to.name, name, c.Result)
	return nil
}

// skip records checks that are not made, with one reason.
func (w *way) skip(why string, names ...Name) {
	for _, name := range names {
		w.checks[name] = Check{From: w.from.name, To: w.to.name, Name: name}.Skip("%s", why)
	}
}

func url(host string) string {
	return "http://" + net.JoinHostPort(host, strconv.Itoa(Port)) + "/"
}

// checkWay runs the checks of a direction, except policy.
func (v *verifier) checkWay(ctx context.Context, w *way) error {
	forth, back := slices.Contains(w.from.links, w.to.name), slices.Contains(w.to.links, w.from.name)
	switch {
	case !forth && !back:
		w.skip("the clusters are not linked", Directed...)
		return nil
	case !forth || !back:
		who, other := w.from, w.to
		if forth {
			who, other = w.to, w.from
		}
		w.checks[PodIP] = Check{From: w.from.name, To: w.to.name, Name: PodIP, Result: Failed,
			Code: finding.NotLinked, Detail: fmt.Sprintf("%s has no remote %s", who.name, other.name),
			Fix: fleet.Command("link", []string{who.Context, other.Context}, v.access.Kubeconfig, v.access.Namespace)}
		w.skip("the clusters are linked on one side only", Directed[1:]...)
		return nil
	}
	client, server := w.from.pods[verifyClient], w.to.pods[verifyServer]
	ip, ok := sharedIP(client, server)
	if !ok {
		w.skip("the pods have no IP family in common", Directed...)
		return nil
	}
	if err := v.check(w, PodIP, func(c Check) (Check, error) {
		o, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(ip.String())})
		return JudgePodIP(c, client, server, ip, o), err
	}); err != nil {
		return err
	}
	if w.checks[PodIP].Result != Passed {
		w.skip("needs pod-ip, which failed", Encryption, PathMTU, Policy)
	} else if err := v.checkPath(ctx, w, client, server, ip); err != nil {
		return err
	}
	return v.checkServices(ctx, w, server)
}

func sharedIP(client, server Pod) (netip.Addr, bool) {
	for _, to := range server.IPs {
		if slices.ContainsFunc(client.IPs, func(from netip.Addr) bool { return from.Is4() == to.Is4() }) {
			return to, true
		}
	}
	return netip.Addr{}, false
}

// ask makes a pod ask, with the command's limits if the question has none.
func (v *verifier) ask(ctx context.Context, c *verified, pod string, q Question) (Outcome, error) {
	q.Attempt, q.Within = cmp.Or(q.Attempt, attempt), cmp.Or(q.Within, v.Timeout)
	return c.ask(ctx, v.namespace, pod, q)
}

// checkPath sends a large payload, and reads the devices before and after.
func (v *verifier) checkPath(ctx context.Context, w *way, client, server Pod, ip netip.Addr) error {
	clear := w.withoutEncryption()
	sender := Device{Cluster: w.from.name, Node: client.Node}
	receiver := Device{Cluster: w.to.name, Node: server.Node}
	look := func() {
		for _, side := range []struct {
			*Device
			here, there *verified
		}{{&sender, w.from, w.to}, {&receiver, w.to, w.from}} {
			d, err := side.here.device(ctx, side.Node, side.there.name)
			if err != nil {
				side.Err = grpcstatus.Convert(err).Message()
			}
			side.Before, side.After = side.After, d
		}
	}
	if clear == "" {
		look()
	}
	passed := false
	if err := v.check(w, PathMTU, func(c Check) (Check, error) {
		o, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(ip.String()), Bytes: largePayload,
			Attempt: largeWithin})
		passed = o.Answered
		return JudgePathMTU(c, largePayload, o), err
	}); err != nil {
		return err
	}
	if clear != "" {
		w.skip(clear, Encryption)
		return nil
	}
	return v.check(w, Encryption, func(c Check) (Check, error) {
		bytes := largePayload
		if !passed { // something small has passed
			bytes = 1
			if _, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(ip.String())}); err != nil {
				return c, err
			}
		}
		look()
		return JudgeEncryption(c, bytes, ip, sender, receiver), nil
	})
}

// withoutEncryption returns why there is no encryption; empty if there is.
func (w *way) withoutEncryption() string {
	for _, c := range []*verified{w.from, w.to} {
		if !c.brokerConfig.Has(config.Encryption) {
			return "the broker of " + c.name + " has no feature encryption"
		}
	}
	return ""
}

// checkServices asks by the names that the broker of from created for Services of to.
func (v *verifier) checkServices(ctx context.Context, w *way, server Pod) error {
	all := []Name{Mirror, DNS, Global}
	for _, side := range []struct {
		part   string
		config *fleet.PartConfig
		of     *verified
	}{{"exporter", &w.to.exporterConfig, w.to}, {"broker", &w.from.brokerConfig, w.from}} {
		if !side.config.Has(config.Services) {
			w.skip("the "+side.part+" of "+side.of.name+" has no feature services", all...)
			return nil
		}
	}
	if w.checks[PodIP].Result != Passed {
		w.skip("needs pod-ip, which failed", all...)
		return nil
	}
	// The broker makes the mirror and the global Service at the same time, so one wait is for both.
	began := time.Now()
	byName := func(name Name, sought string, is func(corev1.Service) bool) error {
		return v.check(w, name, func(c Check) (Check, error) {
			s, err := w.from.awaitMirror(ctx, v.namespace, sought, began, v.Timeout, is)
			if err != nil || s.Name == "" {
				return JudgeMirror(c, s, server, Outcome{}), err
			}
			o, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(s.Name + "." + s.Namespace + ".svc")})
			return JudgeMirror(c, s, server, o), err
		})
	}
	if err := byName(Mirror, v.namespace+"/"+verifyService, func(s corev1.Service) bool {
		return s.Labels[naming.LabelSourceCluster] == w.to.name &&
			s.Annotations[naming.AnnotationSourceName] == verifyService
	}); err != nil {
		return err
	}
	if err := v.checkDNS(ctx, w, server); err != nil {
		return err
	}
	name := verifyGlobalService(w.to.number)
	return byName(Global, "the global service "+v.namespace+"/"+name, func(s corev1.Service) bool {
		return s.Name == naming.Global(v.namespace, name)
	})
}

func (v *verifier) checkDNS(ctx context.Context, w *way, server Pod) error {
	want := coredns.Block{Cluster: w.to.name, Prefix: naming.ClusterLabel(w.to.name)}
	zone := want.Zone()
	switch {
	case w.from.noCorefile != nil:
		w.skip("whether CoreDNS of "+w.from.name+" has a block for "+zone+" cannot be read: "+w.from.noCorefile.Error(), DNS)
		w.checks[DNS] = w.checks[DNS].notRead()
		return nil
	case !serves(w.from.corefile, want):
		w.skip("CoreDNS of "+w.from.name+" has no block for "+zone, DNS)
		return nil
	case w.checks[Mirror].Result != Passed:
		w.skip("needs the mirror, which failed", DNS)
		return nil
	}
	return v.check(w, DNS, func(c Check) (Check, error) {
		name := verifyService + "." + v.namespace + ".svc." + zone
		o, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(name)})
		return JudgeDNS(c, name, server, o), err
	})
}

// serves reports whether a Corefile has a server block for a zone, with any content: whether names resolve is checked
// by a query.
func serves(corefile string, want coredns.Block) bool {
	return !slices.ContainsFunc(coredns.Compare(corefile, []coredns.Block{want}),
		func(f coredns.Fault) bool { return f.Missing })
}

// checkPolicies creates a policy in each cluster that admits only sets of the others.
func (v *verifier) checkPolicies(ctx context.Context, ways []*way) error {
	var checked []*way
	for _, w := range ways {
		if _, decided := w.checks[Policy]; decided {
			continue
		}
		why := ""
		switch {
		case w.to.calico.Empty():
			why = w.to.name + " has no Calico"
		case !w.to.brokerConfig.Has(config.Policy):
			why = "the broker of " + w.to.name + " has no feature policy"
		case !w.from.exporterConfig.Has(config.Policy):
			why = "the exporter of " + w.from.name + " has no feature policy"
		}
		if why == "" {
			ip, _ := sharedIP(w.from.pods[verifyStranger], w.to.pods[verifyServer])
			o, err := v.ask(ctx, w.from, verifyStranger, Question{URL: url(ip.String())})
			if err != nil {
				return err
			}
			if !o.Answered {
				why = "the pod in no set is refused already: " + o.Error
			}
		}
		if why != "" {
			w.skip(why, Policy)
			continue
		}
		checked = append(checked, w)
	}
	for _, to := range v.clusters {
		if !slices.ContainsFunc(checked, func(w *way) bool { return w.to == to }) {
			continue
		}
		var others []string
		for _, c := range v.clusters {
			if c != to {
				others = append(others, c.name)
			}
		}
		policy := verifyPolicyObject(to.calico, v.namespace, to.brokerConfig.Domains(), others)
		if err := to.createOne(ctx, policy); err != nil {
			return err
		}
	}
	for _, w := range checked {
		if err := v.check(w, Policy, func(c Check) (Check, error) {
			return v.checkPolicy(ctx, w, c)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) checkPolicy(ctx context.Context, w *way, c Check) (Check, error) {
	client, stranger := w.from.pods[verifyClient], w.from.pods[verifyStranger]
	ip, _ := sharedIP(client, w.to.pods[verifyServer])
	refused, err := v.ask(ctx, w.from, verifyStranger, Question{URL: url(ip.String()), Refused: true})
	if err != nil {
		return c, err
	}
	admitted, err := v.ask(ctx, w.from, verifyClient, Question{URL: url(ip.String())})
	if err != nil {
		return c, err
	}
	sets, err := w.to.sets(ctx, v.namespace)
	set := Set{Err: grpcstatus.Convert(err).Message()}
	for _, s := range sets {
		for _, p := range s.GetPods() {
			if s.GetCluster() == w.from.name {
				set.Addresses = append(set.Addresses, p.GetIps()...)
			}
		}
	}
	return JudgePolicy(c, client, stranger, set, admitted, refused), nil
}

// remove removes the created objects, in all clusters concurrently, and reports the remaining ones in each.
func (v *verifier) remove(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin) // also after an interruption
	defer cancel()
	began := time.Now()
	out, _ := fleet.All(v.clusters, func(c *verified) (Check, error) {
		left := errors.Join(removeNamespace(ctx, c.Applier, v.namespace), c.awaitNothing(ctx, v.namespace))
		return JudgeCleanup(Check{From: c.name, Name: Cleanup, Seconds: time.Since(began).Seconds()}, v.namespace, left), nil
	})
	return out
}

// clean removes the remains of interrupted calls of verify from the clusters.
func (v *verifier) clean(ctx context.Context, w io.Writer) error {
	clusters, err := v.access.Clusters()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for _, c := range clusters {
		all, err := fleet.List[corev1.Namespace](ctx, c.Objects, fleet.NamespacesGVR, "",
			metav1.ListOptions{LabelSelector: labelVerify})
		if err != nil {
			return err
		}
		said := "nothing of the check is left"
		var names []string
		for _, n := range all {
			if !strings.HasPrefix(n.Name, namespacePrefix) {
				continue // not one of verify
			}
			if err := removeNamespace(ctx, apply.New(c, v.progress), n.Name); err != nil {
				return err
			}
			names = append(names, n.Name)
		}
		if len(names) > 0 {
			said = "removed " + strings.Join(names, ", ")
		}
		fmt.Fprintf(w, "%s: %s\n", c.Context, show.Printable(said))
	}
	return nil
}
