package check

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestOf: each limit that a mesh exceeds is named with the value that it needs, and no other.
func TestOf(t *testing.T) {
	for given, want := range map[string][]string{
		"clusters=2 nodes=3 services=5 endpoints=10 members=5 changes=1":  nil,
		"clusters=100 nodes=50 services=20 endpoints=200 members=50":      nil,
		"clusters=3 nodes=1000 services=1000 endpoints=9000 members=9000": nil,
		"clusters=3 nodes=5000": {"spec.size large"},
		"clusters=3 nodes=16385": {"!connections of agents 16385", "spec.size large",
			"spec.limits.nodes 16385"},
		"clusters=3 services=4000 endpoints=200000": {"spec.size large", "service range /19"},
		"clusters=3 services=4001 endpoints=200001": {"spec.size large", "spec.limits.clusterIPs 4001",
			"spec.limits.endpoints 200001", "service range /19"},
		"clusters=2 services=1 endpoints=1000":  nil,
		"clusters=2 services=1 endpoints=10001": {"spec.size large", "spec.limits.endpointsPerService 10001"},
		"clusters=257 nodes=1":                  nil,
		"clusters=258 nodes=1":                  {"!remotes with encryption 257,", "wireguard.portRange 7775-8031"},
		"clusters=700 nodes=1": {"!remotes with encryption 699,", "!RemoteClusters 699",
			"wireguard.portRange 7775-8473"},
		"clusters=11 members=100000":      nil,
		"clusters=12 members=100000":      {"!addresses of all sets 1100000"},
		"clusters=21 changes=50":          nil,
		"clusters=22 changes=50":          {"kube.qps 1050"},
		"clusters=2 nodes=1 changes=4001": {"spec.size large", "spec.limits.changesPerSecond 4001", "kube.qps 4001"},
		"clusters=100 nodes=50 services=200 endpoints=20000 members=1000": {"memory of the broker GOMEMLIMIT 4537MiB",
			"service range /17"},
		"clusters=2 services=1 endpoints=1 ports=101": {"spec.size large", "spec.limits.portsPerService 101"},
		"clusters=600 nodes=1 services=2000 endpoints=2000 changes=0 ports=1": {"!remotes with encryption 599,",
			"!service range /11", "spec.size large", "wireguard.portRange 7775-8373",
			"memory of the broker GOMEMLIMIT 25820MiB"},
	} {
		t.Run(given, func(t *testing.T) {
			p := PlanOf(meshOf(t, given))
			var got []string
			for _, r := range p.Raise {
				sign := ""
				if r.Impossible {
					sign = "!"
				}
				got = append(got, sign+r.Limit+" "+r.What)
			}
			if len(got) != len(want) {
				t.Fatalf("got %q, want %q", got, want)
			}
			for i, w := range want {
				limit, value, _ := cutLast(w)
				if !strings.HasPrefix(got[i], limit+" ") || !strings.Contains(got[i], value) {
					t.Errorf("got %q, want %q", got[i], w)
				}
			}
		})
	}
}

func cutLast(text string) (before, after string, ok bool) {
	i := strings.LastIndex(text, " ")
	return text[:max(i, 0)], text[i+1:], i >= 0
}

func meshOf(t *testing.T, text string) Mesh {
	t.Helper()
	given := map[string]int{}
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		var n int
		testkit.Value(fmt.Sscan(value, &n))(t)
		given[name] = n
	}
	return testkit.Value(ReadMesh(given))(t)
}

// TestRead: a name, a number or a mesh that makes no sense is refused with the ones that do.
func TestRead(t *testing.T) {
	for want, given := range map[string]map[string]int{
		`"pods": use clusters`:          {"clusters": 2, "pods": 1},
		"nodes=-1: use":                 {"clusters": 2, "nodes": -1},
		"nodes=10000001: use":           {"clusters": 2, "nodes": 10_000_001},
		"clusters=1: use a number from": {"clusters": 1},
		"clusters=0: use a number from": {"nodes": 1},
	} {
		if _, err := ReadMesh(given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", given, err, want)
		}
	}
}

// TestCostsGrow: each part costs more in a larger mesh, by the figure of what was added.
func TestCostsGrow(t *testing.T) {
	base := "clusters=11 nodes=10 services=10 endpoints=100 members=10 changes=10"
	part := func(given, name string) Part {
		for _, p := range PlanOf(meshOf(t, given)).Parts {
			if p.Name == name {
				return p
			}
		}
		t.Fatalf("no part %s", name)
		return Part{}
	}
	for _, one := range []struct {
		name, more string
		cost       func(Part) float64
		want       float64
	}{
		{"broker", "nodes=11", func(p Part) float64 { return p.Memory }, 10 * perObject.Value},
		{"exporter", "nodes=11", func(p Part) float64 { return p.Memory }, 10 * perObject.Value},
		{"broker", "services=11", func(p Part) float64 { return p.Memory }, 10 * perMirror.Value},
		{"exporter", "members=11", func(p Part) float64 { return p.Memory }, perObject.Value},
		{"agent", "nodes=11", func(p Part) float64 { return p.Memory }, 10 * perPeer.Value},
		{"agent", "nodes=11", func(p Part) float64 { return p.Cores }, 10 * idlePeer.Value},
		{"broker", "changes=11", func(p Part) float64 { return p.Cores }, 10 * perWrite.Value},
		{"exporter", "changes=11", func(p Part) float64 { return p.Cores }, 10 * perSend.Value},
		{"exporter", "changes=11", func(p Part) float64 { return p.Sends }, 10 * (objectWire.Value + 10*endpointWire.Value)},
		{"broker", "changes=11", func(p Part) float64 { return p.Receives }, 10 * (objectWire.Value + 10*endpointWire.Value)},
	} {
		got := one.cost(part(base+" "+one.more, one.name)) - one.cost(part(base, one.name))
		if diff := got - one.want; diff > one.want/1e6 || diff < -one.want/1e6 {
			t.Errorf("%s with %s costs %v more, want %v", one.name, one.more, got, one.want)
		}
	}
}

// TestSizesOnTheWire: the messages have the sizes that the plan takes.
func TestSizesOnTheWire(t *testing.T) {
	const uid = "9b2f3c1e-6f0c-4d39-9d0a-2f4f5f1b7c11"
	change := func(o *semaphorev1.Object) int {
		o.Key = &semaphorev1.ObjectKey{Kind: 1, Namespace: "shop", Name: "web-7d9c5f6b8d-x2x4z"}
		return proto.Size(&semaphorev1.Changes{Changes: []*semaphorev1.Change{{Revision: 100_000,
			ObservedAt: timestamppb.Now(), Change: &semaphorev1.Change_Upsert{Upsert: o}}}})
	}
	slice := func(endpoints int) int {
		s := &semaphorev1.EndpointSlice{Service: "web", AddressType: "IPv4",
			Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}}}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i/250, i%250)},
				Ready: proto.Bool(true), Serving: proto.Bool(true), Terminating: proto.Bool(false)})
		}
		return change(&semaphorev1.Object{Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}})
	}
	var sources []*semaphorev1.SourceRevision
	for kind := range 4 {
		sources = append(sources, &semaphorev1.SourceRevision{Kind: semaphorev1.Kind(kind + 1), SourceRevision: 100_000_000})
	}
	for _, one := range []struct {
		figure Figure
		size   int
	}{
		{endpointWire, (slice(101) - slice(1)) / 100},
		{objectWire, slice(0)},
		{objectWire, change(&semaphorev1.Object{Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{
			PodUid: uid, SetName: "front", Ips: []string{"10.2.40.155"}}}})},
		{objectWire, change(&semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{
			PodCidrs: []string{"10.2.40.0/24"}, Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: make([]byte, 32),
				Address: "192.0.2.21:7775"}}}})},
		{heartbeat, proto.Size(&semaphorev1.Heartbeat{HeadRevision: 100_000, SentRevision: 100_000, Sources: sources})},
	} {
		if got := float64(one.size); got < one.figure.Value/1.5 || got > one.figure.Value*1.5 {
			t.Errorf("%s has %d bytes, and the plan takes %.0f", one.figure.Of, one.size, one.figure.Value)
		}
	}
}

// TestPlanOfDocument: docs/scale.md shows lines that the command prints, in their order; … stands for others.
func TestPlanOfDocument(t *testing.T) {
	text := testkit.Value(os.ReadFile("../../docs/scale.md"))(t)
	_, section, _ := strings.Cut(string(text), "\n## Plan\n")
	_, command, _ := strings.Cut(section, "semaphorectl check --plan ")
	given, rest, _ := strings.Cut(command, "\n")
	_, block, _ := strings.Cut(rest, "```text\n")
	shown, _, ok := strings.Cut(block, "```")
	prints := PlanOf(meshOf(t, strings.ReplaceAll(given, ",", " "))).Text()
	if !ok {
		t.Error("docs/scale.md, Plan, has no block of text after the command")
	}
	left := prints
	for line := range strings.Lines(shown) {
		if _, after, found := strings.Cut(left, line); found {
			left = after
		} else if line != "…\n" {
			t.Errorf("docs/scale.md, Plan, shows %q, and the command prints\n%s", line, prints)
		}
	}
	figures := strings.Builder{}
	for _, f := range Figures {
		if f.Source == "" || f.Value <= 0 {
			fmt.Fprintln(&figures, f.Of)
		}
	}
	if figures.Len() > 0 {
		t.Errorf("without a source or a value: %s", figures.String())
	}
}
