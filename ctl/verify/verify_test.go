package verify

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

var (
	clientPod   = Pod{Name: "client", Node: "n1", IPs: []netip.Addr{netip.MustParseAddr("10.1.1.5")}}
	strangerPod = Pod{Name: "stranger", Node: "n2", IPs: []netip.Addr{netip.MustParseAddr("10.1.2.5")}}
	serverPod   = Pod{Name: "server", Node: "n7", IPs: []netip.Addr{netip.MustParseAddr("10.2.7.5")}}
	serverIP    = serverPod.IPs[0]
	answered    = Outcome{Answered: true, Answer: Answer{Pod: "server", Client: "10.1.1.5:40000"},
		Seconds: 0.012, Total: 0.4, PathMTU: 1420}
	timedOut = Outcome{Reason: Timeout, Error: "timeout", Seconds: 3, Total: 30.2}
)

func check(name Name) Check { return Check{From: "c1", To: "c2", Name: name, Seconds: 1.2} }

func device(sent, received uint64, routes ...string) *semaphorev1.DeviceStatus {
	return &semaphorev1.DeviceStatus{Cluster: "x", Interface: "wireguard.x", SentBytes: sent, ReceivedBytes: received,
		Routes: routes, LastHandshake: &timestamppb.Timestamp{Seconds: 1}}
}

// TestJudge: the result of each check for what was observed.
func TestJudge(t *testing.T) {
	other, rewritten, closed, unroutable, nameless := answered, answered, timedOut, timedOut, timedOut
	other.Answer.Pod = "somebody"
	rewritten.Answer.Client = "172.18.1.11:1024"
	closed.Reason, closed.Error = Closed, "connection refused"
	unroutable.Reason, unroutable.Error = Unroutable, "no route to host"
	nameless.Reason, nameless.Error = NoName, "no such host"
	mib := 1 << 20
	near := Device{Cluster: "c1", Node: "n1", Before: device(100, 100), After: device(100+1<<21, 100+1<<21,
		"10.2.0.0/16")}
	far := Device{Cluster: "c2", Node: "n7", Before: device(5, 5), After: device(5+1<<21, 5+1<<21, "10.1.0.0/16")}
	still, elsewhere, anew, away := near, near, near, near
	still.After = device(200, 200, "10.2.0.0/16")
	elsewhere.After = device(1<<22, 1<<22, "10.3.0.0/16")
	anew.Before, anew.After = device(1<<40, 1<<40), device(10, 10, "10.2.0.0/16") // the counters restarted
	away.Err = "no pod of the agent runs"
	silent := near
	silent.After = device(1<<22, 1<<22, "10.2.0.0/16")
	silent.After.LastHandshake = nil
	mirror := Service{Namespace: "semaphore", Name: "c2-x-73736d-server", Sought: "x/server", Waited: 2}
	set, none, unheard := Set{Addresses: []string{"10.1.1.5"}}, Set{}, Set{Err: "connection refused"}
	for _, test := range []struct {
		what   string
		is     Check
		result Result
		code   finding.Code
		says   string
	}{
		{"answered", JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, answered), Passed, "", "12 ms"},
		{"dropped", JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, timedOut), Failed, finding.PodUnreachable,
			"no answer in 30.2 s: timeout"},
		{"no route", JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, unroutable), Failed, finding.PodUnreachable,
			"no route"},
		{"another", JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, other), Failed, finding.AnotherPodAnswers,
			`"somebody"`},
		{"SNAT", JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, rewritten), Failed, finding.SourceRewritten,
			"172.18.1.11"},
		{"large", JudgePathMTU(check(PathMTU), mib, answered), Passed, "",
			"1 MiB each way in 12 ms; the pod's kernel knows a path MTU of 1420"},
		{"large lost", JudgePathMTU(check(PathMTU), mib, timedOut), Failed, finding.LargePayloadLost, "1 MiB"},
		{"encrypted", JudgeEncryption(check(Encryption), mib, serverIP, near, far), Passed, "",
			"wireguard.x of c1/n1 sent 2097152 and received 2097152 bytes"},
		{"past the device", JudgeEncryption(check(Encryption), mib, serverIP, still, far), Failed, finding.NotEncrypted,
			"sent only 100"},
		{"past the other device", JudgeEncryption(check(Encryption), mib, serverIP, near, Device{Cluster: "c2", Node: "n7",
			Before: far.Before, After: far.Before}), Failed, finding.NotEncrypted, "c2/n7"},
		{"no route into it", JudgeEncryption(check(Encryption), mib, serverIP, elsewhere, far), Failed,
			finding.NotEncrypted, "no route into wireguard.x leads to 10.2.7.5"},
		{"a new device", JudgeEncryption(check(Encryption), mib, serverIP, anew, far), Failed, finding.NotEncrypted,
			"sent only 10"},
		{"no device", JudgeEncryption(check(Encryption), mib, serverIP, Device{Cluster: "c1", Node: "n1"}, far), Failed,
			finding.NotEncrypted, "no device for c2"},
		{"no handshake", JudgeEncryption(check(Encryption), mib, serverIP, silent, far), Failed, finding.NotEncrypted,
			"no handshake"},
		{"no agent", JudgeEncryption(check(Encryption), mib, serverIP, away, far), Failed, finding.NotEncrypted,
			"no pod of the agent runs"},
		{"mirror", JudgeMirror(check(Mirror), mirror, serverPod, answered), Passed, "", "semaphore/c2-x-73736d-server"},
		{"no mirror", JudgeMirror(check(Mirror), Service{Sought: "x/server", Waited: 30}, serverPod, Outcome{}), Failed,
			finding.MirrorMissing, "c1 has no Service for x/server of c2 after 30 s"},
		{"mirror without endpoints", JudgeMirror(check(Mirror), mirror, serverPod, closed), Failed,
			finding.ServiceUnreachable, "connection refused"},
		{"mirror of another", JudgeMirror(check(Mirror), mirror, serverPod, other), Failed,
			finding.AnotherPodAnswers, "somebody"},
		{"name", JudgeDNS(check(DNS), "a.b.svc.cluster.c2", serverPod, answered), Passed, "", "a.b.svc.cluster.c2"},
		{"no name", JudgeDNS(check(DNS), "a.b.svc.cluster.c2", serverPod, nameless), Failed, finding.NameUnresolved,
			"no such host"},
		{"name of nothing", JudgeDNS(check(DNS), "a.b.svc.cluster.c2", serverPod, closed), Failed,
			finding.ServiceUnreachable, "refused"},
		{"policy", JudgePolicy(check(Policy), clientPod, strangerPod, set, answered, timedOut), Passed, "",
			"is admitted after 0.4 s; stranger is refused (timeout)"},
		{"policy for all", JudgePolicy(check(Policy), clientPod, strangerPod, set, answered, answered), Failed,
			finding.PolicyIgnored, "stranger"},
		{"no set", JudgePolicy(check(Policy), clientPod, strangerPod, none, timedOut, timedOut), Failed, finding.SetMissing,
			"no set with the pod client of c1"},
		{"set not known", JudgePolicy(check(Policy), clientPod, strangerPod, unheard, timedOut, timedOut), Failed,
			finding.PolicyRefuses, "timeout; whether a set of c2 has it is not known: connection refused"},
		{"set without effect", JudgePolicy(check(Policy), clientPod, strangerPod, set, timedOut, timedOut), Failed,
			finding.PolicyRefuses, "10.1.1.5"},
	} {
		t.Run(test.what, func(t *testing.T) {
			c := test.is
			if c.Result != test.result || c.Code != test.code || !strings.Contains(c.Detail, test.says) {
				t.Errorf("%s %s: %s; want %s %s: %s", c.Result, c.Code, c.Detail, test.result, test.code, test.says)
			}
			if (c.Fix == "") != (c.Result == Passed) {
				t.Errorf("%s: what to do is %q", c.Result, c.Fix)
			}
		})
	}
}

// TestVerdict: only checks that were made and passed count as well, and each cluster needs one.
func TestVerdict(t *testing.T) {
	clusters := []Cluster{{Name: "c1"}, {Name: "c2"}}
	cleanup := JudgeCleanup(Check{From: "c1", Name: Cleanup}, "x", nil)
	for _, test := range []struct {
		checks []Check
		want   string
		well   bool
	}{
		{[]Check{check(PodIP).passed(""), check(DNS).Skip("no block"), cleanup}, "c1, c2: all is well", true},
		{[]Check{check(PodIP).passed(""), check(Mirror).failed("x", "", ""), cleanup}, "c1, c2: 1 of 3 checks failed",
			false},
		{[]Check{check(PodIP).Skip("not linked"), cleanup}, "c1, c2: nothing was checked", false},
		{[]Check{check(PodIP).passed(""), check(DNS).Skip("Corefile: forbidden").notRead(), cleanup},
			"c1, c2: no check failed, and not all was checked: Corefile: forbidden", false},
		{[]Check{check(PodIP).passed(""), {From: "c1", To: "c3", Name: PodIP, Result: Unchecked}, cleanup},
			"c1, c2, c3: no check failed, and not all was checked: no traffic from or to c3", false},
	} {
		clusters := clusters
		if strings.Contains(test.want, "c3") {
			clusters = append(clusters, Cluster{Name: "c3"})
		}
		if r := NewReport("x", clusters, test.checks, 1); r.Verdict != test.want || r.Well() != test.well {
			t.Errorf("%q, %t; want %q", r.Verdict, r.Well(), test.want)
		}
	}
}

// TestPrint compares the output with testdata, which a person has checked. Nothing in it controls a terminal.
func TestPrint(t *testing.T) {
	evil := check(Mirror).failed(finding.MirrorMissing, "look \x1b[2J there", "a\u009b2Jb\nc")
	r := NewReport("sem-verify-x7k2p", []Cluster{
		{Context: "eu", Name: "c1", Image: "ghcr.io/x@sha256:1", Pods: []Pod{clientPod, strangerPod}},
		{Context: "us", Name: "c2", Image: "ghcr.io/x@sha256:1", Pods: []Pod{serverPod}},
	}, []Check{
		JudgePodIP(check(PodIP), clientPod, serverPod, serverIP, answered),
		JudgePathMTU(check(PathMTU), 1<<20, answered), evil, check(DNS).Skip("CoreDNS of c1 has no block for cluster.c2"),
		JudgeCleanup(Check{From: "c1", Name: Cleanup, Seconds: 6}, "sem-verify-x7k2p", nil),
	}, 12.34)
	for _, output := range []string{"table", "json", "yaml"} {
		var out bytes.Buffer
		must(t, r.Print(&out, output))
		ctltest.Compare(t, filepath.Join("testdata", "report."+output), out.String())
		if output == "json" {
			var back Report
			if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back.Checks) != len(r.Checks) {
				t.Errorf("read again: %v, %d checks", err, len(back.Checks))
			}
		}
	}
}
