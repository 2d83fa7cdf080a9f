package catalog

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// withRules is a catalog as newCatalog's, with brokers in c2, c3 and c4.
func withRules(t testing.TB, edit func(*Rules)) *Catalog {
	t.Helper()
	mirror, err := labels.Parse(naming.DefaultMirrorSelector)
	testkit.Must(t, err)
	global, err := labels.Parse(naming.DefaultGlobalSelector)
	testkit.Must(t, err)
	rules := Rules{
		Features: config.Features{config.Encryption, config.Services, config.Policy}, Clusters: []string{"c4", "c2", "c3"},
		Mirror: mirror, Global: global, LabelDomains: []string{naming.DefaultLabelDomain},
	}
	if edit != nil {
		edit(&rules)
	}
	return New(rules)
}

// offering is a rule, with the clusters that it offers objects to; it withholds them from all others.
type offering struct {
	remotes.ExportRule
	clusters []string
}

func offer(c *Catalog, rules []offering) *Catalog {
	offers := map[string][]remotes.ExportRule{}
	for _, cluster := range c.remotes {
		for _, r := range rules {
			r.Offers = slices.Contains(r.clusters, cluster)
			offers[cluster] = append(offers[cluster], r.ExportRule)
		}
	}
	c.SetRemotes(slices.Clone(c.clusters), offers, time.Now())
	return c
}

func exportToAnnotation(value string) map[string]string {
	return map[string]string{naming.AnnotationExportTo: value}
}

// sees are the objects that a cluster may see, by key, without nodes.
func sees(c *Catalog, cluster string) []string {
	var out []string
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		if e.Key.Kind != semaphorev1.Kind_KIND_NODE && e.Value.To.Has(cluster) {
			out = append(out, e.Key.String())
		}
	}
	slices.Sort(out)
	return out
}

func TestR26WhoSeesWhat(t *testing.T) {
	payments, err := labels.Parse("team=payments")
	testkit.Must(t, err)
	rules := []offering{
		{remotes.ExportRule{Features: config.Features{config.Services}, Selector: payments}, []string{"c2"}},
		{remotes.ExportRule{Namespaces: []string{"other"}}, []string{"c3"}},
		{remotes.ExportRule{Features: config.Features{config.Policy}, Namespaces: []string{"shop"}, Selector: payments}, nil},
	}
	long := strings.Repeat("x", 100_000)
	for name, test := range map[string]struct {
		rules   []offering
		labels  map[string]string
		value   *string
		service string // clusters that see the Service and its slice
		pod     string
		problem string
	}{
		"nothing said":   {service: "c2 c3 c4", pod: "c2 c3 c4"},
		"two clusters":   {value: ptr("c3,c2"), service: "c2 c3", pod: "c2 c3"},
		"blanks":         {value: ptr(" c3 , c2 "), service: "c2 c3", pod: "c2 c3"},
		"the same twice": {value: ptr("c2,c2"), service: "c2", pod: "c2"},
		"all by name":    {value: ptr("c2,c3,c4"), service: "c2 c3 c4", pod: "c2 c3 c4"},
		"none":           {value: ptr("none")},
		"a cluster that there is not": {value: ptr("c2,c9"), service: "c2", pod: "c2",
			problem: `annotation semaphore.uw.io/export-to: "c2,c9" names "c9", for which no broker is configured: the object ` +
				`is exported to c2 at most`},
		"no cluster that there is": {value: ptr("c9"), problem: `the object is exported to no cluster at most`},
		"none and a cluster":       {value: ptr("none,c2"), service: "c2", pod: "c2", problem: `names "none"`},
		"empty": {value: ptr(""),
			problem: `annotation semaphore.uw.io/export-to: "" cannot be parsed, so no cluster receives the object`},
		"an empty part":           {value: ptr("c2,,c3"), problem: "cannot be parsed"},
		"a pattern":               {value: ptr("c*"), problem: "cannot be parsed"},
		"two lines":               {value: ptr("c2\nc3"), problem: `"c2\nc3" cannot be parsed`},
		"a long one is cut short": {value: &long, problem: `: "` + strings.Repeat("x", 200) + `" cannot be`},
		"no rule matches":         {rules: rules, service: "c2 c3 c4", pod: "c2 c3 c4"},
		"a rule each":             {rules: rules, labels: map[string]string{"team": "payments"}, service: "c2"},
		"the annotation narrows the rule": {rules: rules, labels: map[string]string{"team": "payments"},
			value: ptr("none")},
		"the annotation widens nothing": {rules: rules, labels: map[string]string{"team": "payments"},
			value: ptr("c2,c3"), service: "c2"},
		"the annotation misses the rule": {rules: rules, labels: map[string]string{"team": "payments"}, value: ptr("c3")},
		"the first that matches decides": {rules: append([]offering{{clusters: []string{"c4"}}}, rules...),
			labels: map[string]string{"team": "payments"}, service: "c4", pod: "c4"},
		"a rule for all clusters is no end": {rules: []offering{{clusters: []string{"c2", "c3", "c4"}}},
			service: "c2 c3 c4", pod: "c2 c3 c4"},
	} {
		t.Run(name, func(t *testing.T) {
			c := offer(withRules(t, nil), test.rules)
			var annotations map[string]string
			if test.value != nil {
				annotations = exportToAnnotation(*test.value)
			}
			now := time.Now()
			service := newService("echo", with(mirrorLabels), func(s *corev1.Service) { s.Annotations = annotations })
			pod := newPod("web", "front", func(p *corev1.Pod) { p.Annotations = annotations })
			for k, v := range test.labels {
				service.Labels[k], pod.Labels[k] = v, v
			}
			c.PutService(service, now)
			c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), now)
			c.PutPod(pod, now)
			var services, pods []string
			for _, cluster := range c.clusters {
				got := sees(c, cluster)
				if slices.Contains(got, "service shop/echo") != slices.Contains(got, "endpointslice shop/echo-1") {
					t.Errorf("%s sees %q: the Service and its slice are not for the same clusters", cluster, got)
				}
				if slices.Contains(got, "service shop/echo") {
					services = append(services, cluster)
				}
				if slices.Contains(got, "setmember shop/web") {
					pods = append(pods, cluster)
				}
				if n := c.Objects(cluster, semaphorev1.Kind_KIND_SET_MEMBER); n != strings.Count(strings.Join(got, " "),
					"setmember") {
					t.Errorf("%d pods are counted for %s, which sees %q", n, cluster, got)
				}
			}
			if got := strings.Join(services, " "); got != test.service {
				t.Errorf("the Service is seen by %q, not %q", got, test.service)
			}
			if got := strings.Join(pods, " "); got != test.pod {
				t.Errorf("the pod is seen by %q, not %q", got, test.pod)
			}
			problems := finding.Texts(c.Findings())
			want := 0
			if test.problem != "" {
				want = 2
			}
			if len(problems) != want || c.CountProblems()[finding.InvalidExportTo] != want || want > 0 &&
				!strings.Contains(problems[0], test.problem) {
				t.Errorf("problems are %q, not %d with %q", problems, want, test.problem)
			}
			c.DeleteService("shop", "echo", now)
			c.DeletePod("shop", "web", now)
			if p := finding.Texts(c.Findings()); len(p) != 0 {
				t.Errorf("all is gone but %q", p)
			}
			for kind, counted := range c.objects {
				if len(counted) > 0 {
					t.Errorf("all is gone, and of %s are counted %v", kind, counted)
				}
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// TestEachReaderSeesOnlyItsObjects: each reader is sent an object's end, or that of its right to see it, and nobody
// else is sent anything.
func TestEachReaderSeesOnlyItsObjects(t *testing.T) {
	c := withRules(t, nil)
	put := func(value string) {
		c.PutPod(newPod("web", "front", func(p *corev1.Pod) {
			if p.Annotations = nil; value != "" {
				p.Annotations = exportToAnnotation(value)
			}
		}), time.Now())
	}
	look := func(whole uint64) string {
		t.Helper()
		e, ok := c.Journal().Last(podKey("shop", "web"))
		if !ok {
			t.Fatal("there is nothing")
		}
		out := ""
		for _, cluster := range c.clusters {
			out += []string{"-", "upsert", "delete"}[ChangeFor(e, cluster, whole)] + " "
		}
		return strings.TrimSpace(out)
	}
	for i, step := range []struct {
		do     func()
		whole  uint64
		sights string // of c2, c3 and c4
	}{
		{func() { put("c2,c3") }, 0, "upsert upsert -"},                                // 1
		{func() { put("c2") }, 0, "upsert delete -"},                                   // 2
		{func() {}, 1, "- delete -"},                                                   // c2 has it as it is, c3 had it
		{func() {}, 2, "- - -"},                                                        // has heard
		{func() { put("c2,c4") }, 1, "- delete upsert"},                                // 3
		{func() { put("c4") }, 2, "delete delete upsert"},                              // 4: c3 is sent it again, too
		{func() { c.DeletePod("shop", "web", time.Now()) }, 3, "delete delete delete"}, // 5
		{func() {}, 4, "- - delete"},                                                   //
		{func() { put("c3") }, 4, "delete upsert delete"},                              // 6
		{func() {}, 5, "- upsert -"},                                                   //
		{func() { put("none") }, 5, "- delete -"},                                      // 7: its end
		{func() { put("none") }, 5, "- delete -"},                                      // nothing happened
		{func() { put("") }, 6, "upsert upsert upsert"},                                // 8
		{func() { put("none"); put("c2") }, 8, "upsert delete delete"},                 // 9, 10
		{func() { c.DeletePod("shop", "web", time.Now()); c.DeletePod("shop", "web", time.Now()) }, 9, "delete - -"}, // 11
	} {
		step.do()
		if got := look(step.whole); got != step.sights {
			t.Errorf("step %d: readers that have received all up to %d see %q, not %q", i, step.whole, got, step.sights)
		}
	}
	if head := c.Journal().Head(); head != 11 {
		t.Errorf("%d revisions, not 11", head)
	}
}

// TestNarrowerServiceLosesSlicesFirst: nowhere is a slice without its Service.
func TestNarrowerServiceLosesSlicesFirst(t *testing.T) {
	c := withRules(t, nil)
	echo := func(value string) {
		c.PutService(newService("echo", mirrorLabels, func(s *corev1.Service) { s.Annotations = exportToAnnotation(value) }),
			time.Now())
	}
	since := func(from uint64) string {
		changes, _, _ := c.Journal().Since(from, 10)
		var out []string
		for _, e := range changes {
			out = append(out, fmt.Sprintf("%s: %s", e.Key, e.Value.To))
		}
		return strings.Join(out, "; ")
	}
	echo("c2")
	c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), time.Now())
	for _, step := range []struct{ value, want string }{
		{"c2,c3", "service shop/echo: c2, c3; endpointslice shop/echo-1: c2, c3"},
		{"c3", "endpointslice shop/echo-1: c3; service shop/echo: c3"},
		{"none", "endpointslice shop/echo-1: c3; service shop/echo: c3"}, // both ended
	} {
		head := c.Journal().Head()
		echo(step.value)
		if got := since(head); got != step.want {
			t.Errorf("%s: %q, not %q", step.value, got, step.want)
		}
	}
	if got := sees(c, "c3"); len(got) != 0 {
		t.Errorf("c3 still sees %q", got)
	}
}

func TestR12PodCIDRs(t *testing.T) {
	now := time.Now()
	cidrs := func(c *Catalog, name string) string {
		e, ok := c.Journal().Get(nodeKey("c2", name))
		if !ok {
			return "no such node"
		}
		return strings.Join(e.Object.GetNode().GetPodCidrs(), " ")
	}
	c := withRules(t, func(r *Rules) {
		r.PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")}
	})
	check := func(want map[string]string, problems ...string) {
		t.Helper()
		for name, w := range want {
			if got := cidrs(c, name); got != w {
				t.Errorf("%s has %q, not %q", name, got, w)
			}
		}
		got := finding.Texts(c.Findings())
		if len(got) != len(problems) {
			t.Errorf("problems are %q, not %q", got, problems)
			return
		}
		for i := range got {
			if !strings.Contains(got[i], problems[i]) {
				t.Errorf("problem %q, not %q", got[i], problems[i])
			}
		}
	}
	// node was created in the second that is its number, but for those that say otherwise.
	node := func(name string, cidrs ...string) *corev1.Node {
		n := newNode(name, cidrs, nil)
		n.UID, n.CreationTimestamp = types.UID("of-"+name), metav1.Unix(int64(name[1]-'0'), 0)
		return n
	}
	late := func(n *corev1.Node) *corev1.Node { n.CreationTimestamp = metav1.Unix(99, 0); return n }
	c.PutNode(node("n2", "10.1.2.0/24", "fd00:1:0:2::/64"), now)
	c.PutNode(node("n3", "10.2.3.0/24", "fd00:1:0:3::/64"), now)
	c.PutNode(node("n4", "10.0.0.0/8"), now)
	check(map[string]string{"n2": "10.1.2.0/24 fd00:1:0:2::/64", "n3": "fd00:1:0:3::/64", "n4": ""},
		"node n3: spec.podCIDRs: 10.2.3.0/24 lies outside podSubnets and is not exported",
		"node n4: spec.podCIDRs: 10.0.0.0/8 lies outside podSubnets")

	// A node takes nothing from others that it cannot have, however old it is.
	c.PutNode(node("n0", "0.0.0.0/0", "::/0"), now)
	check(map[string]string{"n0": "", "n2": "10.1.2.0/24 fd00:1:0:2::/64", "n3": "fd00:1:0:3::/64", "n4": ""},
		"node n0: spec.podCIDRs: 0.0.0.0/0 lies outside podSubnets", "node n3:", "node n4:")
	c.DeleteNode("n0", now)

	// Of two that overlap, the one that was created first has it, and no newcomer takes it by its name.
	c.PutNode(node("n4", "10.1.2.128/25"), now)
	c.PutNode(node("n3", "10.1.3.0/24"), now)
	check(map[string]string{"n2": "10.1.2.0/24 fd00:1:0:2::/64", "n3": "10.1.3.0/24", "n4": ""},
		"node n4: spec.podCIDRs: 10.1.2.128/25 overlaps that of node n2 and is not exported")
	c.PutNode(late(node("n1", "10.1.2.0/24")), now)
	check(map[string]string{"n1": "", "n2": "10.1.2.0/24 fd00:1:0:2::/64", "n4": ""},
		"node n1: spec.podCIDRs: 10.1.2.0/24 overlaps that of node n2 and is not exported", "node n4: ")
	c.DeleteNode("n1", now)

	// One that had it before, which this exporter sees late, has it; when it goes, the other.
	head := c.Journal().Head()
	c.PutNode(node("n1", "10.1.2.0/24"), now)
	check(map[string]string{"n1": "10.1.2.0/24", "n2": "fd00:1:0:2::/64", "n4": ""},
		"node n2: spec.podCIDRs: 10.1.2.0/24 overlaps that of node n1",
		"node n4: spec.podCIDRs: 10.1.2.128/25 overlaps that of node n1")
	if changes, _, _ := c.Journal().Since(head, 1); changes[0].Key.Name != "n2" {
		t.Errorf("%s changed first: two nodes had one CIDR", changes[0].Key)
	}
	head = c.Journal().Head()
	c.DeleteNode("n1", now)
	check(map[string]string{"n1": "no such node", "n2": "10.1.2.0/24 fd00:1:0:2::/64", "n4": ""},
		"node n4: spec.podCIDRs: 10.1.2.128/25 overlaps that of node n2")
	if changes, _, _ := c.Journal().Since(head, 1); changes[0].Key.Name != "n1" {
		t.Errorf("%s changed first: two nodes had one CIDR", changes[0].Key)
	}
	c.PutNode(node("n2"), now)
	check(map[string]string{"n2": "", "n4": "10.1.2.128/25"})
	for _, name := range []string{"n2", "n3", "n4"} {
		c.DeleteNode(name, now)
	}
	check(nil)
	if !c.prefixes.Empty() || len(c.nodes) != 0 {
		t.Errorf("memory is kept of nodes that are gone: %+v %v", c.prefixes, c.nodes)
	}
}

func TestR12IPsOutsideThePodSubnets(t *testing.T) {
	c := withRules(t, func(r *Rules) { r.PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")} })
	now := time.Now()
	c.PutService(newService("echo", mirrorLabels), now)
	slice := newSlice("echo-1", "echo", "10.1.1.1", "169.254.169.254", "10.2.0.1", "no address")
	slice.Endpoints[0].Addresses = append(slice.Endpoints[0].Addresses, "127.0.0.1")
	c.PutSlice(slice, now)
	c.PutPod(newPod("half", "front",
		func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.1.1.2"}, {IP: "192.0.2.1"}} }), now)
	c.PutPod(newPod("out", "front", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}} }), now)
	exports(t, c, "service shop/echo", "endpointslice shop/echo-1", "setmember shop/half")
	if got := content(c)["endpointslice shop/echo-1"].GetEndpointSlice().GetEndpoints(); len(got) != 1 ||
		len(got[0].GetAddresses()) != 1 || got[0].GetAddresses()[0] != "10.1.1.1" {
		t.Errorf("endpoints are %v", got)
	}
	want := []string{
		`endpointslice shop/echo-1: 4 IPs lie outside podSubnets and are not exported, the first is "127.0.0.1"`,
		`setmember shop/half: IP "192.0.2.1" lies outside podSubnets and is not exported`,
		`setmember shop/out: IP "192.0.2.1" lies outside podSubnets and is not exported`,
	}
	if got := finding.Texts(c.Findings()); !slices.Equal(got, want) {
		t.Errorf("problems are %q", got)
	}
	c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), now)
	c.PutPod(newPod("half", "front"), now)
	c.DeletePod("shop", "out", now)
	if got := finding.Texts(c.Findings()); len(got) != 0 {
		t.Errorf("all is well, and problems are %q", got)
	}
}

// TestF26WhatCannotBeSent: one object that is too large, or has text that is none, is reported and not sent.
func TestF26WhatCannotBeSent(t *testing.T) {
	c := withRules(t, nil)
	now := time.Now()
	c.PutService(newService("echo", mirrorLabels), now)
	big := newSlice("big", "echo")
	for i := range 1000 {
		big.Endpoints = append(big.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.1.1"},
			Zone: ptr(fmt.Sprint(i, strings.Repeat("z", 2000)))})
	}
	c.PutSlice(newSlice("big", "echo", "10.1.1.1"), now)
	c.PutSlice(big, now)
	c.PutPod(newPod("bad", "front", func(p *corev1.Pod) { p.UID = types.UID("\xff") }), now)
	many := newService("many", mirrorLabels)
	many.Spec.Ports = slices.Repeat(many.Spec.Ports, 40_000)
	c.PutService(many, now)
	exports(t, c, "service shop/echo")
	got := strings.Join(finding.Texts(c.Findings()), "\n")
	if !strings.Contains(got, "endpointslice shop/big: it has 20") ||
		!strings.Contains(got, "setmember shop/bad: it cannot be encoded") ||
		!strings.Contains(got, "service shop/many: its 6") { // of the 1 MiB that an object may have
		t.Errorf("problems are %q", got)
	}
	c.PutSlice(newSlice("big", "echo", "10.1.1.1"), now)
	c.PutPod(newPod("bad", "front"), now)
	c.DeleteService("shop", "many", now)
	exports(t, c, "service shop/echo", "endpointslice shop/big", "setmember shop/bad")
	if got := finding.Texts(c.Findings()); len(got) != 0 {
		t.Errorf("all is well, and problems are %q", got)
	}
	// The digest is that of the messages that brokers get.
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		if e.Value.Digest != streams.DigestOf(e.Value.Object) {
			t.Errorf("%s has another digest than its message", e.Key)
		}
	}
}

func TestAudiences(t *testing.T) {
	u := universe{"a", "b", "c", "c-d"}
	var all []Audience
	for bits := range 1 << len(u) {
		all = append(all, u.filter(func(c string) bool { return bits>>slices.Index(u, c)&1 == 1 }))
	}
	for _, a := range all {
		for _, b := range all {
			both, either, without := u.intersect(a, b), u.union(a, b), u.subtract(a, b)
			for _, c := range u {
				if both.Has(c) != (a.Has(c) && b.Has(c)) || either.Has(c) != (a.Has(c) || b.Has(c)) ||
					without.Has(c) != (a.Has(c) && !b.Has(c)) {
					t.Errorf("%s of %q and %q: both %q, either %q, the first only %q", c, a, b, both, either, without)
				}
			}
			for _, got := range []Audience{both, either, without} {
				if !slices.Contains(all, got) {
					t.Errorf("%q is not written in the one way", string(got))
				}
			}
		}
	}
	if a := For("c-d"); a.Has("c") || a.Has("d") || a.Has("") || Nobody.Has("a") || a.String() != "c-d" {
		t.Errorf("%q has what it has not", string(a))
	}
}
