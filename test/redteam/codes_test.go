package redteam

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// wrong turns an honest object into one that a rule refuses.
func wrong[T any](o *semaphorev1.Object, spec T, change func(T)) *semaphorev1.Object {
	change(spec)
	return o
}

func wrongNode(name string, change func(*semaphorev1.Node)) *semaphorev1.Object {
	o := node("c2", name, 1, "10.2.1.0/24")
	return wrong(o, o.GetNode(), change)
}

func wrongService(name string, change func(*semaphorev1.Service)) *semaphorev1.Object {
	o := service(name, 1)
	return wrong(o, o.GetService(), change)
}

func wrongSlice(name string, change func(*semaphorev1.EndpointSlice)) *semaphorev1.Object {
	o := slice(name, 1, 1)
	return wrong(o, o.GetEndpointSlice(), change)
}

// TestMetricsNameWhatIsRefused sends, for each code of a refusal in docs/troubleshooting.md, an object that the rule
// refuses to the broker with the shipped configuration. The metrics count it under that code, the cluster and the kind,
// and there are no other codes. The test also uses the metrics of retained and limited objects, so that dashboards and
// alerts find them.
func TestMetricsNameWhatIsRefused(t *testing.T) {
	page := testkit.Value(os.ReadFile("../../docs/troubleshooting.md"))(t)
	_, table, found := strings.Cut(string(page), "\n## Refusal codes\n")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| <a id=\"[A-Za-z]+\"></a>`([A-Za-z]+)` \\|")
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		documented[m[1]] = true
	}
	if !found || len(documented) < 16 {
		t.Fatalf("the document has the words %v", documented)
	}

	// With the shipped limits, rate limiting would take a minute and more.
	v := start(t, limit("c3", v1alpha1.Limits{ChangesPerSecond: 10, KibibytesPerSecond: 8, StreamsPerMinute: 3}))
	type attack struct {
		rule, code, kind string
		object           *semaphorev1.Object
	}
	attacks := []attack{
		{"R7", "InvalidCIDR", "node", wrongNode("a1", func(n *semaphorev1.Node) { n.PodCidrs = []string{"10.2.0.1/24"} })},
		{"R7", "CIDROutsidePodSubnets", "node",
			wrongNode("a2", func(n *semaphorev1.Node) { n.PodCidrs = []string{"10.3.0.0/24"} })},
		{"R10", "InvalidPublicKey", "node",
			wrongNode("a3", func(n *semaphorev1.Node) { n.Wireguard.PublicKey = make([]byte, 32) })},
		{"R11", "InvalidEndpoint", "node",
			wrongNode("a4", func(n *semaphorev1.Node) { n.Wireguard.Address = "localhost:51820" })},
		{"R11", "EndpointNotAllowed", "node",
			wrongNode("a5", func(n *semaphorev1.Node) { n.Wireguard.Address = "169.254.169.254:80" })},
		{"R5", "OverLimit", "service", service("b0", 101)},
		{"R20", "TooLarge", "service", service("b1", 1001)},
		{"R15", "InvalidPort", "service", wrongService("b2", func(s *semaphorev1.Service) { s.Ports[0].Protocol = "ICMP" })},
		{"R15", "InvalidSetting", "service",
			wrongService("b3", func(s *semaphorev1.Service) { s.ClientIpAffinitySeconds = -1 })},
		{"R30", "InvalidExport", "service", wrongService("b7", func(s *semaphorev1.Service) {
			s.MultiCluster = &semaphorev1.MultiClusterExport{
				Labels: []*semaphorev1.Label{{Key: "app.kubernetes.io/instance", Value: "theirs"}}}
		})},
		{"R14", "InvalidName", "service", service("-b-", 1)},
		{"R14", "InvalidAddressType", "endpointslice",
			wrongSlice("b4", func(s *semaphorev1.EndpointSlice) { s.AddressType = "FQDN" })},
		{"R14", "InvalidIP", "endpointslice",
			wrongSlice("b5", func(s *semaphorev1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"::ffff:10.2.0.1"} })},
		{"R13", "IPOutsidePodSubnets", "endpointslice",
			wrongSlice("b6", func(s *semaphorev1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"169.254.169.254"} })},
		{"R21", "IPOutsidePodSubnets", "setmember", member(1, "10.1.0.1")},
		{"R2", "Malformed", "setmember", &semaphorev1.Object{Key: member(2).GetKey(), Spec: node("c2", "x", 1).GetSpec()}},
	}
	byKind := map[semaphorev1.Kind][]*semaphorev1.Object{}
	kinds := []semaphorev1.Kind{nodeKind, serviceKind, sliceKind, memberKind}
	for _, a := range attacks {
		kind := a.object.GetKey().GetKind()
		byKind[kind] = append(byKind[kind], a.object)
	}
	const n = 200
	for i := range n { // to be withdrawn
		byKind[memberKind] = append(byKind[memberKind], member(100+i, fmt.Sprintf("10.2.9.%d", i+1)))
	}
	s := v.publish("c2")
	// later is a kind that a later version may have.
	const later = semaphorev1.Kind(99)
	s.tell(hello("c2", "e1", 1000, append(slices.Clone(kinds), later)...))
	for _, kind := range kinds {
		s.tell(snapshot(kind, 1000, byKind[kind]...)...)
	}
	unknown := member(3, "10.2.0.3")
	unknown.Key.Kind = later
	s.tell(snapshot(later, 1000, unknown)...)
	s.acked(1000)
	attacks = append(attacks, attack{"R2", "UnknownKind", "", unknown})

	own := v.publish("c1")
	own.tell(hello("c1", "e1", 1, nodeKind))
	own.tell(snapshot(nodeKind, 1, node("c2", "mine", 1, "10.1.1.0/24"))...)

	has := func(what, name string, labels ...string) {
		t.Helper()
		v.eventually(what, func() error {
			if v.metric(name, labels...) < 1 {
				return fmt.Errorf("%s%v is not on /metrics, or 0", name, labels)
			}
			return nil
		})
	}
	tried := map[string]bool{"KindNotAccepted": true}
	for _, a := range attacks {
		tried[a.code] = true
		labels := []string{`cluster="c2"`, `code="` + a.code + `"`}
		if a.kind != "" {
			labels = append(labels, `kind="`+a.kind+`"`)
		}
		has(a.rule+", "+a.code, "semaphore_broker_refused_total", labels...)
	}
	has("R2, KindNotAccepted", "semaphore_broker_refused_total", `cluster="c1"`, `code="KindNotAccepted"`, `kind="node"`)
	for code := range documented {
		if !tried[code] {
			t.Errorf("nothing is sent here that is refused as %s", code)
		}
	}
	text := testkit.Value(v.get("/metrics"))(t)
	counted := regexp.MustCompile(`(?m)^semaphore_broker_refused_total\{.*code="([^"]*)"`)
	for _, m := range counted.FindAllStringSubmatch(text, -1) {
		if !documented[m[1]] {
			t.Errorf("the metric has %s, the document does not", m[1])
		}
	}

	// R24: everything is withdrawn at once. The unknown kind ends the stream at the latest.
	again := v.publish("c2")
	again.tell(hello("c2", "e2", 5, memberKind))
	again.tell(snapshot(memberKind, 5)...)
	has("R24", "semaphore_broker_retained", `cluster="c2"`, `kind="setmember"`)

	// R5: changes that come too fast.
	fast := v.publish("c3")
	fast.tell(hello("c3", "e1", 1, memberKind))
	fast.tell(snapshot(memberKind, 1)...)
	for i := range uint64(300) {
		if fast.call.SendMsg(encode(t, changesOf(upsert(2+i, member(int(i%10), "10.3.0.1"))))) != nil {
			break
		}
	}
	has("R5", "semaphore_broker_limited_total", `cluster="c3"`, `limit="changes"`)
	fast.cancel()
	large := v.publish("c3")
	large.tell(hello("c3", "e2", 20_000, memberKind))
	var members []*semaphorev1.Object
	for i := range 15_000 {
		members = append(members, member(i, fmt.Sprintf("10.3.%d.%d", i/250, i%250+1)))
	}
	go func() {
		for _, m := range snapshot(memberKind, 20_000, members...) {
			if large.call.SendMsg(encode(t, m)) != nil {
				return
			}
		}
	}()
	has("R5", "semaphore_broker_limited_total", `cluster="c3"`, `limit="bytes"`)
	for range 4 {
		v.publish("c3").end(100 * time.Millisecond)
	}
	has("R5", "semaphore_broker_limited_total", `cluster="c3"`, `limit="streams"`)
}
