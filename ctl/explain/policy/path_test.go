package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// good returns a path of which everything is known and nothing is broken.
func good() *Facts {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	way := func(node, remote, far string) *Way {
		peer := func() *semaphorev1.PathPeer {
			return &semaphorev1.PathPeer{Node: far, Endpoint: "192.0.2.7:7775", AllowedIp: "10.2.0.0/24"}
		}
		return &Way{node, &semaphorev1.LookUpPathResponse{Cluster: remote, Interface: "wireguard." + remote,
			Route:        &semaphorev1.RouteLookup{Link: "wireguard." + remote, Ruled: true},
			DeviceExists: true, DeviceUp: true, Mtu: 1420, ConfirmedAt: timestamppb.New(now), Desired: peer(), Present: peer(),
			Session: &semaphorev1.PathSession{State: semaphorev1.SessionState_SESSION_STATE_TALKING,
				LastHandshake: timestamppb.New(ago(time.Minute))},
			Measurement: &semaphorev1.PathMeasurement{Answered: true, Carries: 1420, Needed: 1420,
				RoundTrip: durationpb.New(412345 * time.Nanosecond)}}}
	}
	return &Facts{
		Now:    now,
		Source: Pod{Cluster: "c1", Namespace: "shop", Name: "client", Node: "n1", IP: netip.MustParseAddr("10.1.0.5")},
		Target: Pod{Cluster: "c2", Namespace: "shop", Name: "echo-1", Node: "m1", IP: netip.MustParseAddr("10.2.0.5")},
		Name: &Name{Text: "echo.shop.svc.cluster.c2", Remote: "c2", Namespace: "shop", Service: "echo", Known: true,
			Source: &Exported{Exists: true, Selected: true, Ready: 2}},
		DNS: &DNS{Where: "ConfigMap kube-system/coredns", Zone: "cluster.c2", Ready: 2, Servers: 2},
		Mirror: &Mirror{Namespace: "semaphore", Name: "c2-shop-73736d-echo", Exists: true, Owned: true,
			Created:   ago(time.Hour),
			ClusterIP: "10.101.0.9", Ports: []string{"8080/TCP"}, Port: "8080/TCP"},
		Slices: &Slices{Total: 2, Ready: 2, LastHeard: ago(time.Second),
			Chosen: netip.MustParseAddr("10.2.0.5")},
		Proxy: &semaphorev1.ProxyHealth{Answered: true, Healthy: true, LastUpdated: timestamppb.New(ago(time.Second))},
		There: way("n1", "c2", "m1"), Back: way("m1", "c1", "n1"),
		TargetNode: &Node{Name: "m1", Ready: true, Since: ago(time.Hour)},
		Pools:      &Pools{NATOutgoing: true, Covering: "semaphore-c2"}, TargetPools: &Pools{Covering: "semaphore-c1"},
		Sets:   &Sets{Names: []string{"c1/shop/client"}, LastHeard: ago(time.Second), Labelled: true},
		Egress: &Result{Why: "no policy selects the pod for egress"}, Ingress: &Result{Why: "rule 1"},
		NotRead: map[finding.Code][]string{},
	}
}

// imported changes the path to a Service that c2 exports by a ServiceExport.
func imported(f *Facts) *Import {
	f.Name = &Name{Text: "echo.shop.svc.clusterset.local", Remote: "clusterset.local", Namespace: "shop", Service: "echo",
		Known: true, Import: &Import{Exists: true, Clusters: []string{"c2"},
			Exports: []Export{{Cluster: "c2", Problems: []string{"Conflict=True, PortConflict: ports differ"}}}}}
	f.DNS.Zone, f.Mirror.Name = "clusterset.local", "mcs-shop-73736d-echo"
	return f.Name.Import
}

// ownNamed changes the path to a Service of c1 whose own name leads to c2.
func ownNamed(f *Facts) *Own {
	f.Name = &Name{Text: "web.shop.svc.cluster.local", Remote: "c1", Namespace: "shop", Service: "web", Known: true,
		Own: &Own{Use: "failover", Total: 1, Others: []string{"2 of c2"},
			Says: "c2 is in use: 0 of 1 ready here, and enough is 1"}}
	f.DNS, f.Mirror.Namespace, f.Mirror.Name = nil, "shop", "web"
	return f.Name.Own
}

func denied(why string, needsSet bool) *Result {
	return &Result{Verdict: Denied, Why: why, NeedsSet: needsSet, Missing: []string{"a rule"}}
}

// TestJudge: each fault breaks its own link of the path, and no other, whatever else fails because of it.
func TestJudge(t *testing.T) {
	noTarget := func(f *Facts) {
		f.Target.IP, f.There, f.Back, f.TargetNode, f.Pools, f.Egress, f.Ingress = netip.Addr{}, nil, nil, nil, nil, nil,
			nil
	}
	noMirror := func(f *Facts) { f.Mirror.Exists = false; f.Slices = nil; f.Proxy = nil; noTarget(f) }
	silent := func(w *Way) {
		w.Session = &semaphorev1.PathSession{State: semaphorev1.SessionState_SESSION_STATE_SILENT,
			SilentSince: timestamppb.New(now.Add(-time.Minute)), Reason: "no answer"}
	}
	for _, c := range []struct {
		name   string
		change func(*Facts)
		broken finding.Code
		// says is part of the evidence, and fix of what to do.
		says, fix string
	}{
		{"nothing", func(*Facts) {}, "", "", ""},
		{"no such remote", func(f *Facts) { f.Name.Known = false; f.Name.Source = nil; noMirror(f) }, finding.PathName,
			`"c2" is no remote of c1`, "semaphorectl status"},
		{"no Service there", func(f *Facts) { f.Name.Source.Exists = false; noMirror(f) }, finding.PathName,
			"c2 has no Service shop/echo", "in c2"},
		{"not offered", func(f *Facts) { f.Name.Source.Selected = false; noMirror(f) }, finding.PathName, "no label",
			"label service echo"},
		{"refused", func(f *Facts) { f.Name.Source.Refused = "outside"; noMirror(f) }, finding.PathName, "outside",
			"describe service echo"},
		{"pod without an IP", func(f *Facts) {
			f.Name, f.Target.Problem = nil, "it has no IP; it is Pending"
			noTarget(f)
		}, finding.PathName, "Pending", "start the pod"},
		{"a client that does not run, and a name", func(f *Facts) { f.Source.Problem = "it is Pending" }, finding.PathName,
			"Pending", "start the pod"},
		{"no import", func(f *Facts) { imported(f).Exists = false; noMirror(f) }, finding.PathName,
			"c2 exports it", "semaphorectl status of the broker of c1"},
		{"no import, and no export", func(f *Facts) { *imported(f) = Import{}; noMirror(f) }, finding.PathName,
			"no ServiceExport in the clusters", "does not know that type, turn the API on"},
		{"no namespace", func(f *Facts) { i := imported(f); i.Exists, i.NoNamespace = false, true; noMirror(f) },
			finding.PathName, "its namespace does not exist", "kubectl create namespace shop"},
		{"import that is not ready", func(f *Facts) { imported(f).NotReady = "IPFamilyNotSupported: none" },
			finding.PathName, "IPFamilyNotSupported", "describe serviceimport echo"},
		{"no DNS block of imports", func(f *Facts) { imported(f); f.DNS.Missing = true }, finding.PathDNS,
			"no server block clusterset.local", "semaphorectl coredns prints the block of clusterset.local"},
		{"no endpoints of an import", func(f *Facts) { imported(f); f.Slices.Ready = 0; noTarget(f) }, finding.PathSlices,
			"none of 2 endpoints is ready", "semaphorectl trace service/shop/echo"},
		{"an own name without endpoints", func(f *Facts) {
			ownNamed(f).Others, f.Slices.Ready = nil, 0
			noTarget(f)
		}, finding.PathSlices, "0 of 1 endpoints of c1 are ready; it leads to no other cluster",
			"semaphorectl trace service/shop/web"},
		{"an own name, and another port", func(f *Facts) { ownNamed(f); f.Mirror.Port = "81/TCP"; noTarget(f) },
			finding.PathMirror, "Service shop/web has no port 81/TCP", "add the port to the Service in c1"},
		{"an own name, and no peer", func(f *Facts) { ownNamed(f); f.There.Present, f.There.Session = nil, nil },
			finding.PathPeer, "desires m1", "--agent n1"},
		{"no DNS block", func(f *Facts) { f.DNS.Missing = true }, finding.PathDNS, "no server block cluster.c2",
			"semaphorectl coredns prints the block of cluster.c2"},
		{"another DNS block", func(f *Facts) { f.DNS.Differs = "name regex" }, finding.PathDNS, "lacks the line",
			"in its place"},
		{"no DNS server", func(f *Facts) { f.DNS.Ready = 0 }, finding.PathDNS, "none of 2", "start CoreDNS"},
		{"no mirror", noMirror, finding.PathMirror, "there is no Service", "PROBLEMS"},
		{"somebody's mirror", func(f *Facts) { f.Mirror.Owned = false; f.Slices = nil; noTarget(f) }, finding.PathMirror,
			"is not the broker's", "delete service"},
		{"another port", func(f *Facts) { f.Mirror.Port = "81/TCP"; noTarget(f) }, finding.PathMirror, "no port 81/TCP",
			"one of its ports"},
		{"drained", func(f *Facts) {
			f.Slices.Ready, f.Slices.Drains = 0, []string{"cluster c2"}
			noTarget(f)
		}, finding.PathSlices, "cluster c2 is drained", "undrain cluster c2"},
		{"gone", func(f *Facts) { f.Slices.Ready, f.Slices.Gone = 0, []string{"c2"}; noTarget(f) }, finding.PathSlices,
			"takes c2 for gone", "bring c2 back"},
		{"none ready there", func(f *Facts) { f.Slices.Ready, f.Name.Source.Ready = 0, 0; noTarget(f) }, finding.PathSlices,
			"none is in c2 either", "ready"},
		{"away", func(f *Facts) { f.Slices.Ready, f.Slices.Away = 0, true; noTarget(f) }, finding.PathSlices,
			"not connected", "says why c2"},
		{"none ready here", func(f *Facts) { f.Slices.Ready = 0; noTarget(f) }, finding.PathSlices, "none of 2",
			"semaphorectl trace"},
		{"no tunnel to the nodes", func(f *Facts) {
			f.Slices.Ready, f.Slices.NoTunnel = 0, []string{"2 ready endpoints of cluster c2 are not used: node m1: no key"}
			noTarget(f)
		}, finding.PathSlices, "none of 2 endpoints is in use: 2 ready endpoints of cluster c2 are not used: node m1",
			"in c2: see that each of these nodes has an agent"},
		{"kube-proxy dead", func(f *Facts) { f.Proxy.Answered = false }, finding.PathKubeProxy, "does not answer",
			"start kube-proxy on n1"},
		{"kube-proxy unwell", func(f *Facts) { f.Proxy.Healthy = false }, finding.PathKubeProxy, "rules are of", "log"},
		{"no route", func(f *Facts) { f.There.Route = &semaphorev1.RouteLookup{Error: "no route to host"} },
			finding.PathRoute, "no route to host", "ip rule"},
		{"route elsewhere", func(f *Facts) { f.There.Route = &semaphorev1.RouteLookup{Link: "eth0"} }, finding.PathRoute,
			"leave by eth0, not by wireguard.c2; the rule", "ip route get 10.2.0.5"},
		{"no remote", func(f *Facts) {
			f.There = &Way{"n1", &semaphorev1.LookUpPathResponse{
				Route: &semaphorev1.RouteLookup{Link: "eth0", Ruled: true}}}
		}, finding.PathRoute,
			"subnets of no remote", "add the pod's subnet"},
		{"no device", func(f *Facts) {
			f.There.DeviceExists, f.There.Route.Link, f.There.Present, f.There.Session = false, "eth0", nil, nil
			f.There.DeviceProblem = "does not answer as a WireGuard device"
			silent(f.Back)
		}, finding.PathDevice, "does not answer as", "--agent n1"},
		{"device down", func(f *Facts) { f.There.DeviceUp = false }, finding.PathDevice, "is down", "--agent n1"},
		{"no peer wanted", func(f *Facts) {
			f.There.Desired, f.There.Present, f.There.Session, f.There.Measurement = nil, nil, nil, nil
			silent(f.Back)
		}, finding.PathPeer, "the broker desires none", "c2 does not export node m1"},
		{"no peer wanted, as both call", func(f *Facts) {
			f.There.Desired, f.There.Present, f.There.Session, f.There.Measurement = nil, nil, nil, nil
			f.Apart = true
			silent(f.Back)
		}, finding.PathPeer, "node n1 of c1 and node m1 of c2 both have no address", "reachable-at"},
		{"no peer set", func(f *Facts) { f.There.Present, f.There.Session = nil, nil }, finding.PathPeer, "desires m1",
			"--agent n1"},
		{"another node's prefix", func(f *Facts) { f.There.Present.Node = "m2" }, finding.PathPeer,
			"go to node m2, and the pod is on node m1", "blocks"},
		{"no handshake", func(f *Facts) { silent(f.There); f.There.Measurement.Answered = false }, finding.PathHandshake,
			"n1 has not heard node m1 for 1m0s: no answer", "let UDP pass"},
		{"no handshake, and no agent", func(f *Facts) {
			silent(f.There)
			f.Back, f.TargetNode.AgentProblem = nil, "no pod of the agent is on it"
		}, finding.PathHandshake, "no answer; and its agent cannot be asked: no pod of the agent is on it",
			"in c2: see that an agent runs on node m1"},
		{"no handshake back", func(f *Facts) { silent(f.Back) }, finding.PathHandshake, "m1 has not heard node n1", "UDP"},
		{"narrow", func(f *Facts) { f.There.Measurement.Carries = 1300 }, finding.PathMTU, "carries 1300 bytes", "mtu"},
		{"narrow back, very", func(f *Facts) { f.Back.Measurement.Carries = 0 }, finding.PathMTU, "from c2/m1", "mtu"},
		{"node not ready", func(f *Facts) {
			f.TargetNode.Ready, f.TargetNode.Reason, f.Back = false, "kubelet stopped", nil
			silent(f.There)
		}, finding.PathFarNode, "kubelet stopped", "describe node m1"},
		{"no route back", func(f *Facts) { f.Back.Route.Error = "no route to host" }, finding.PathFarNode,
			"no route to host",
			"in c2, on node m1"},
		{"no device back", func(f *Facts) { f.Back.DeviceExists, f.Back.Present = false, nil; silent(f.There) },
			finding.PathFarNode,
			"wireguard.c1 does not exist", "in c2"},
		{"no peer back", func(f *Facts) { f.Back.Present = nil; silent(f.There) }, finding.PathFarNode,
			"no peer of wireguard.c1",
			"--agent m1"},
		{"SNAT", func(f *Facts) { f.Pools.Covering = "" }, finding.PathPool, "replaces the source IP", "manageIPPools"},
		{"pool assigns", func(f *Facts) { f.Pools.Enabled = true }, finding.PathPool, "assigns IPs of c2", "patch ippool"},
		{"no label", func(f *Facts) { f.Sets.Names, f.Sets.Labelled = nil, false; f.Ingress = denied("none allows", true) },
			finding.PathSet, "no label semaphore.uw.systems/name", "label pod client"},
		{"set lacks it", func(f *Facts) { f.Sets.Names = nil; f.Ingress = denied("none allows", true) }, finding.PathSet,
			"no network set there has 10.1.0.5", "semaphorectl get sets"},
		{"denied out", func(f *Facts) { f.Egress = denied("only DNS", false) }, finding.PathPolicyOut, "only DNS", "in c1"},
		{"denied in, by a policy with a typo", func(f *Facts) {
			f.Ingress = denied("closed", false)
			f.Ingress.Policies = []Judged{{Policy: "NetworkPolicy shop/typo", Outcome: saysNothing, Detail: "rule 1"}}
		}, finding.PathPolicyIn, "NetworkPolicy shop/typo says nothing: rule 1", "in c2"},
		{"denied in", func(f *Facts) { f.Ingress = denied("closed", false) }, finding.PathPolicyIn, "closed",
			"in c2: add a rule"},
	} {
		f := good()
		c.change(f)
		chain := Judge(*f)
		if len(chain.Links) != len(finding.Of(finding.Paths)) {
			t.Errorf("%s: %d links", c.name, len(chain.Links))
		}
		var broken []finding.Code
		for _, l := range chain.Links {
			if l.Verdict == Broken {
				broken = append(broken, l.Code)
			}
		}
		if c.broken == "" {
			if len(broken) > 0 || chain.Count(OK) != len(chain.Links) {
				t.Errorf("%s: broken %v, %d ok", c.name, broken, chain.Count(OK))
			}
			continue
		}
		if !slices.Equal(broken, []finding.Code{c.broken}) {
			t.Errorf("%s: broken are %v", c.name, broken)
			continue
		}
		l := chain.Broken()
		if !strings.Contains(strings.Join(l.Evidence, "\n"), c.says) || !strings.Contains(l.Fix, c.fix) {
			t.Errorf("%s: evidence %q, fix %q", c.name, l.Evidence, l.Fix)
		}
	}
}

// TestRoundTrip: the evidence of the path has the time of a round trip from both ends, where it was measured.
func TestRoundTrip(t *testing.T) {
	f := good()
	f.Back.Measurement.RoundTrip = nil
	chain := Judge(*f)
	mtu := chain.Links[slices.IndexFunc(chain.Links, func(l Link) bool { return l.Code == finding.PathMTU })]
	want := []string{"from c1/n1 the path carries 1420 bytes with a round trip of 410µs, measured now",
		"from c2/m1 the path carries 1420 bytes, measured now"}
	if !slices.Equal(mtu.Evidence, want) {
		t.Errorf("%q; want %q", mtu.Evidence, want)
	}
}

// TestJudgeUnknown: unknown facts are named, and are neither broken nor well.
func TestJudgeUnknown(t *testing.T) {
	f := good()
	f.Back, f.TargetNode, f.Ingress, f.Sets, f.TargetPools, f.Name.Source = nil, nil, nil, nil, nil, nil
	for _, code := range []finding.Code{finding.PathName, finding.PathFarNode, finding.PathSet, finding.PathPolicyIn} {
		f.NotRead[code] = []string{"no --context is of c2"}
	}
	chain := Judge(*f)
	for _, l := range chain.Links {
		_, unread := f.NotRead[l.Code]
		if unread != (l.Verdict == Unknown) {
			t.Errorf("%s is %s: %q", l.Code, l.Verdict, l.Evidence)
		}
	}
	if chain.Broken() != nil || len(chain.NotRead) != 4 || chain.NotRead[0] != "name: no --context is of c2" {
		t.Errorf("%+v", chain.NotRead)
	}
	f = good()
	f.Egress = nil
	if l := Judge(*f).Links[12]; l.Code != finding.PathSet || l.Verdict != Unknown {
		t.Errorf("without the policies of the client's side: %+v", l)
	}
	f = good()
	f.There.Session = &semaphorev1.PathSession{State: semaphorev1.SessionState_SESSION_STATE_IDLE}
	if l := Judge(*f).Links[8]; l.Verdict != Unknown || !strings.Contains(l.Evidence[0], "was never") {
		t.Errorf("an idle session: %+v", l)
	}
	f = good()
	f.There, f.Proxy = nil, nil
	if chain := Judge(*f); chain.Broken() != nil || chain.Count(Unknown) != 6 {
		t.Errorf("without an agent: %d unknown, broken %+v", chain.Count(Unknown), chain.Broken())
	}
}

// TestPortThatNoContainerDeclares: explain names it, and calls nothing broken, because a container may listen there.
func TestPortThatNoContainerDeclares(t *testing.T) {
	f := good()
	f.Port, f.Target.Ports = "8081/TCP", []string{"8080/TCP", "8081/UDP"}
	chain := Judge(*f)
	if chain.Broken() != nil || len(chain.NotRead) != 1 || !strings.Contains(chain.NotRead[0],
		"c2/shop/echo-1 (10.2.0.5) declares port 8081/TCP, but 8080/TCP, 8081/UDP; ") {
		t.Errorf("%+v, broken %+v", chain.NotRead, chain.Broken())
	}
	for _, declared := range [][]string{nil, {"8081/TCP"}} {
		if f.Target.Ports = declared; len(Judge(*f).NotRead) != 0 {
			t.Errorf("with %v: %+v", declared, Judge(*f).NotRead)
		}
	}
}

// TestJudgeImport: a name in clusterset.local leads to a ServiceImport, with its exports and conflicts.
func TestJudgeImport(t *testing.T) {
	f := good()
	imported(f)
	chain := Judge(*f)
	if chain.Broken() != nil || chain.Count(OK) != len(chain.Links) {
		t.Errorf("%d ok, broken %+v", chain.Count(OK), chain.Broken())
	}
	if got := strings.Join(chain.Links[0].Evidence, "\n"); got != "ServiceImport shop/echo, exported by c2\n"+
		"the ServiceExport in c2: Conflict=True, PortConflict: ports differ" {
		t.Errorf("%q", got)
	}
}

// TestJudgeUnheard: where no broker says when it heard of the remote, the evidence says so instead of an age. That the
// remote is not connected is no cause then.
func TestJudgeUnheard(t *testing.T) {
	for ready, fault := range map[int]string{2: "", 0: "none of 2 endpoints is ready"} {
		f := good()
		f.Slices.Ready, f.Slices.LastHeard = ready, time.Time{}
		chain := Judge(*f)
		l := chain.Links[slices.IndexFunc(chain.Links, func(l Link) bool { return l.Code == finding.PathSlices })]
		got := l.Evidence[len(l.Evidence)-1]
		if got != "the broker of c1 does not say when it heard of c2" || l.Fault != fault {
			t.Errorf("%q, fault %q", got, l.Fault)
		}
	}
}

// TestJudgePods: a path between pods has no name; within one cluster it has no tunnel.
func TestJudgePods(t *testing.T) {
	f := good()
	f.Name, f.DNS, f.Mirror, f.Slices, f.Proxy = nil, nil, nil, nil, nil
	if chain := Judge(*f); chain.Count(None) != 5 || chain.Count(OK) != 10 || chain.To != "c2/shop/echo-1 (10.2.0.5)" {
		t.Errorf("%d none, %d ok, to %s", chain.Count(None), chain.Count(OK), chain.To)
	}
	f.Target.Cluster = "c1"
	f.There, f.Back = nil, nil
	if chain := Judge(*f); chain.Broken() != nil || chain.Count(None) != 13 {
		t.Errorf("one cluster: %d none, broken %+v", chain.Count(None), chain.Broken())
	}
}

// TestJudgeOwnName: the own name of a Service leads to another cluster by the same links as a mirror, without a block
// of the DNS; while it leads to none, no tunnel is between the pods.
func TestJudgeOwnName(t *testing.T) {
	f := good()
	own := ownNamed(f)
	chain := Judge(*f)
	if chain.Broken() != nil || chain.Count(OK) != len(chain.Links)-1 || chain.Count(None) != 1 ||
		chain.To != "web.shop.svc.cluster.local → c2/shop/echo-1 (10.2.0.5)" {
		t.Errorf("%d ok, %d none, broken %+v, to %s", chain.Count(OK), chain.Count(None), chain.Broken(), chain.To)
	}
	says := func(link int, want string) {
		t.Helper()
		if got := strings.Join(chain.Links[link].Evidence, "\n"); got != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
	says(0, "Service shop/web of c1, with own name failover")
	says(3, "0 of 1 endpoints of c1 are ready; 2 of c2 are in use; the chain below is that of 10.2.0.5\n"+
		"the broker says: c2 is in use: 0 of 1 ready here, and enough is 1")
	own.Use = "fail-over"
	chain = Judge(*f)
	says(0, `Service shop/web of c1: its annotation semaphore.uw.io/own-name is "fail-over", which changes nothing: use `+
		"failover or all")
	own.Use, own.Ready, own.Others, own.Says = "failover", 1, nil, ""
	f.Target.Cluster, f.There, f.Back = "c1", nil, nil
	chain = Judge(*f)
	says(3, "1 of 1 endpoints of c1 are ready; it leads to no other cluster; the chain below is that of 10.2.0.5")
	if chain.Broken() != nil || chain.Links[5].Verdict != None {
		t.Errorf("within one cluster: broken %+v, route %+v", chain.Broken(), chain.Links[5])
	}
}
