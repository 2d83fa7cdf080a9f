package explain

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestParseEnd(t *testing.T) {
	for text, want := range map[string]end{
		"10.1.0.5":         {address: netip.MustParseAddr("10.1.0.5")},
		"10.1.0.5:80":      {address: netip.MustParseAddr("10.1.0.5"), port: "80"},
		"fd00::5":          {address: netip.MustParseAddr("fd00::5")},
		"[fd00::5]:53":     {address: netip.MustParseAddr("fd00::5"), port: "53"},
		"shop/web":         {namespace: "shop", name: "web"},
		"c2/shop/web:8080": {cluster: "c2", namespace: "shop", name: "web", port: "8080"},
		"echo.shop.svc.cluster.c2:80": {host: "echo.shop.svc.cluster.c2", cluster: "c2", namespace: "shop", name: "echo",
			port: "80"},
		"echo.shop.svc.cluster.eu-1.example.com": {host: "echo.shop.svc.cluster.eu-1.example.com",
			cluster: "eu-1.example.com", namespace: "shop", name: "echo"},
		"db-0.db.shop.svc.cluster.global.": {host: "db-0.db.shop.svc.cluster.global", cluster: "global", namespace: "shop",
			name: "db"},
		"echo.shop.svc.clusterset.local:80": {host: "echo.shop.svc.clusterset.local", cluster: "clusterset.local",
			namespace: "shop", name: "echo", port: "80"},
		"web-0.c2.echo.shop.svc.clusterset.local": {host: "web-0.c2.echo.shop.svc.clusterset.local",
			cluster: "clusterset.local", namespace: "shop", name: "echo"},
	} {
		got, err := parseEnd(text)
		want.text = text
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "web", "a//b", "a/b/c/d", "shop/web:0", "shop/web:http",
		"echo.svc.cluster.c2", "echo.shop.svc.cluster.", "echo.shop.svc.c2", "echo.shop.svc.clusterset.c2",
		"10.1.0.300"} {
		if got, err := parseEnd(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// TestAway: what cannot be looked at names the contexts that do not answer, and an end that is not found does, too.
func TestAway(t *testing.T) {
	g := &pathGatherer{sides: []*side{{name: "c1"}}}
	if got := g.without("c2"); got != "no --context is of c2" {
		t.Error(got)
	}
	if got := g.noSuch("TO", "c3/a/b", "pod").Error(); got != "TO c3/a/b: no such pod in c1: give --context for its "+
		"cluster" {
		t.Error(got)
	}
	g.away = []string{"context two: connection refused"}
	if got := g.without("c2"); got != "no --context that answers is of c2; context two: connection refused" {
		t.Error(got)
	}
	if got := g.noSuch("TO", "c3/a/b", "pod").Error(); got != "TO c3/a/b: no such pod in c1; not asked: "+
		"context two: connection refused" {
		t.Error(got)
	}
}

// TestUsualPrefix: a mirror that does not exist yet is searched for by the name that the broker would give it.
func TestUsualPrefix(t *testing.T) {
	for remote, want := range map[string]string{"c2": "c2", "eu-1.example.com": naming.ClusterLabel("eu-1.example.com"),
		"global": "gl", "clusterset.local": "mcs"} {
		if got := usualPrefix(remote); got != want || strings.Contains(got, ".") {
			t.Errorf("%s: %q, not %q", remote, got, want)
		}
	}
}

// TestPrintChain: the verdict comes first, and no text of another cluster controls the terminal.
func TestPrintChain(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	chain := policy.Judge(policy.Facts{
		Now: now,
		Source: policy.Pod{Cluster: "c1", Namespace: "shop", Name: "client", Node: "n1",
			IP: netip.MustParseAddr("10.1.0.5")},
		Target: policy.Pod{Cluster: "c2", Namespace: "shop", Name: "echo\x1b[31m", Node: "m1",
			IP: netip.MustParseAddr("10.2.0.5")},
		There: &policy.Way{Node: "n1", LookUpPathResponse: &semaphorev1.LookUpPathResponse{Cluster: "c2",
			Route: &semaphorev1.RouteLookup{Link: "wireguard.c2"}, Interface: "wireguard.c2", DeviceExists: true, DeviceUp: true,
			Mtu: 1420, ConfirmedAt: timestamppb.New(now),
			Present: &semaphorev1.PathPeer{Node: "m1", Endpoint: "192.0.2.7:7775", AllowedIp: "10.2.0.0/24"},
			Session: &semaphorev1.PathSession{State: semaphorev1.SessionState_SESSION_STATE_SILENT,
				SilentSince: timestamppb.New(now.Add(-time.Minute)),
				Reason:      "no answer to handshakes; endpoint 192.0.2.7:7775"}}},
		Pools:   &policy.Pools{Covering: "semaphore-c2-10-2-0-0-16"},
		NotRead: map[finding.Code][]string{finding.PathFarNode: {"no --context is of c2"}},
	})
	var out bytes.Buffer
	must(t, printChain(&out, chain, "text"))
	ctltest.Golden(t, "explain-path", out.String())
	out.Reset()
	must(t, printChain(&out, chain, "json"))
	ctltest.Golden(t, "explain-path-json", out.String())
}

// TestPolicyNotKnown: a path does not reach as long as its policies are not known, and is not called closed either.
func TestPolicyNotKnown(t *testing.T) {
	address := netip.MustParseAddr("10.2.0.5")
	for why, in := range map[string]*policy.Result{
		"no policy, as far as is known":    {Verdict: policy.Depends, Why: "no policy, as far as is known"},
		"the policies of c2 were not read": nil,
	} {
		chain := policy.Judge(policy.Facts{Source: policy.Pod{Cluster: "c1"},
			Target: policy.Pod{Cluster: "c2", IP: address}, Egress: &policy.Result{Verdict: policy.Allowed}, Ingress: in})
		if got := chainVerdict(chain); got != "not known: policies of the pod's side (PathPolicyIn): "+why {
			t.Error(got)
		}
		var out bytes.Buffer
		must(t, printChain(&out, chain, "json"))
		if !strings.Contains(out.String(), `"reaches": null`) {
			t.Error(out.String())
		}
	}
}

// TestGathered: drains, ports and problems count where they are about the Service in question.
func TestGathered(t *testing.T) {
	ready := fleet.EndpointSlice{Endpoints: []fleet.SliceEndpoint{{Addresses: []string{"10.2.1.7"}}}}
	ready.Ports = append(ready.Ports, struct {
		Name *string `json:"name"`
		Port *int32  `json:"port"`
	}{new("http"), new(int32(8080))})
	for port, mapped := range map[uint16]uint16{0: 8080, 80: 80, 8080: 8080} {
		g := &pathGatherer{port: port, protocol: "TCP", slices: []fleet.EndpointSlice{ready},
			mirror: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone,
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}}
		if got := g.mirrorOf(g.mirror).Port; got != "" {
			t.Errorf("a headless Service is asked for its port %s", got)
		}
		if g.targetPort(); g.port != mapped {
			t.Errorf("port %d of a headless Service is %d of its pods, not %d", port, g.port, mapped)
		}
		if !g.anyIn([]string{"fd00:2::/64", "10.2.1.0/24"}) || g.anyIn([]string{"10.2.2.0/24"}) || g.anyIn(nil) {
			t.Error("the drain of a node is taken for one of another")
		}
	}
	about := &pathGatherer{source: &side{name: "c1", broker: &semaphorev1.GetStatusResponse{
		Links: []*semaphorev1.LinkStatus{{Cluster: "c2"}, {Cluster: "eu.example.org"}}}}}
	for problem, is := range map[string]bool{"endpointslice gl-shop-73736d-web-c2-0: quota": true,
		"endpointslice gl-shop-73736d-web-c1-0: quota": true, "endpointslice gl-shop-73736d-web-2-c2-0: quota": false,
		"endpointslice gl-shop-73736d-web-" + naming.ClusterLabel("eu.example.org") + "-1: quota": true} {
		if about.isAboutSlice(problem, "gl-shop-73736d-web") != is {
			t.Errorf("%q: %t", problem, !is)
		}
	}
	for problem, is := range map[string]bool{"Service shop/web: refused": true, "shop/web": true, "of shop/web.": true,
		"Service shop/web-2: refused": false, "Service my-shop/web: refused": false} {
		if isAbout(problem, "shop/web") != is {
			t.Errorf("%q: %t", problem, !is)
		}
	}
}

// TestExplainUse: impossible arguments are refused before any cluster is asked.
func TestExplainUse(t *testing.T) {
	ctltest.Refuses(t, map[string]string{
		"explain":                                "give FROM and TO",
		"explain a/b":                            "give FROM and TO",
		"explain a/b c/d --from x":               "without --from",
		"explain a/b c":                          "TO \"c\": use",
		"explain a c/d":                          "FROM \"a\": use",
		"explain a/b c/d:80 --port 80":           "has a port already",
		"explain a/b c/d -o xml":                 "use text, json or yaml",
		"explain --from c2/a/b --to c/d -o json": "--output json: with FROM and TO only",
	})
}
