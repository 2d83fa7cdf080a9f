package redteam

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// ran returns the CPU time of the broker's threads.
func (v *victim) ran() time.Duration {
	v.t.Helper()
	ran, _ := scheduled(v.t, v.PID)
	return ran
}

// scheduled returns how long the threads of a process have run, and how long they have waited for a CPU.
func scheduled(t *testing.T, pid int) (ran, waited time.Duration) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		t.Fatal("the process has no threads", err)
	}
	for _, file := range files {
		var on, off int64
		if data, err := os.ReadFile(file); err == nil { // a thread may end
			fmt.Sscan(string(data), &on, &off)
		}
		ran, waited = ran+time.Duration(on), waited+time.Duration(off)
	}
	return ran, waited
}

// price bounds the cost of an attack.
type price struct {
	cpu time.Duration
	// written and grown are for all attempts together: the number of objects and Events, and bytes of memory.
	written, grown float64
}

// TestPriceOfEachRule breaks each rule of docs/rules.md between a remote and the broker hundreds of times, on the
// broker with the shipped configuration. It logs and bounds the cost in CPU, memory and writes.
func TestPriceOfEachRule(t *testing.T) {
	tier.OnlyAll(t, "each rule has its tests, and those of broker/replica and broker/report count what a refusal keeps "+
		"and writes")
	v := start(t, withMCS)
	const n = 500
	// Nothing is imported before all clusters have reported.
	v.sends("c1", "e1", 1, ofMirrors)
	honest, _ := v.sends("c3", "e1", 1, ofMirrors)
	refused := price{cpu: 2 * time.Millisecond, written: 40, grown: 48 << 20}
	var s *stream
	at := uint64(0)
	open := func() {
		at += 10
		s, _ = v.sends("c2", fmt.Sprint("e", at), at, players.AllKinds)
	}
	open()
	wire := 0
	send := func(objects ...*semaphorev1.Object) {
		for some := range slices.Chunk(objects, 100) {
			m := players.Upserts(at+1, some...)
			at += uint64(len(some))
			wire += proto.Size(m)
			s.tell(m)
		}
		s.acked(at)
	}
	each := func(make func(i int) *semaphorev1.Object) func() int {
		return func() int {
			var all []*semaphorev1.Object
			for i := range n {
				all = append(all, make(i))
			}
			send(all...)
			return n
		}
	}
	key := func(i int) []byte { return append([]byte{byte(i), byte(i >> 8), 7}, make([]byte, 29)...) }
	nodes := func(change func(i int, n *semaphorev1.Node)) func() int {
		return each(func(i int) *semaphorev1.Object {
			o := node("c2", fmt.Sprint("p", i), 1, cidrs(i%250, 1)...)
			o.GetNode().GetWireguard().PublicKey = key(i)
			change(i, o.GetNode())
			return o
		})
	}
	streams := func(attack func(conn *stream)) func() int {
		return func() int {
			const few = 4 // a remote may begin 30 streams a minute
			for range few {
				one := v.publish("c2")
				attack(one)
				one.end(5 * time.Second)
				one.cancel()
			}
			return few
		}
	}
	type attack struct {
		rules, what string
		most        price
		do          func() int
	}
	attacks := []attack{
		{"R1", "a Hello for another cluster", price{50 * time.Millisecond, 20, 48 << 20},
			streams(func(s *stream) { s.tell(hello("c3", "e1", 1, memberKind)) })},
		{"R3", "a handshake without a certificate", price{50 * time.Millisecond, 20, 48 << 20}, func() int {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				conn, err := (&tls.Dialer{Config: trust.ClientTLS(v.path("bundles", "c1.pem"),
					identity.Broker("c1"))}).DialContext(ctx, "tcp", v.federation)
				if err == nil { // with TLS 1.3 the refusal comes with the first read
					_, err = conn.Read(make([]byte, 1))
					conn.Close()
				}
				cancel()
				if err == nil {
					t.Error("a client without a certificate is served")
				}
			}
			return 100
		}},
		{"R4", "a message of 4 MiB", price{200 * time.Millisecond, 20, 96 << 20},
			streams(func(s *stream) { _ = s.call.SendMsg(make([]byte, 4<<20)) })},
		{"R6", "a snapshot from before the Hello", price{50 * time.Millisecond, 20, 48 << 20}, streams(func(s *stream) {
			s.tell(hello("c2", "other", 1<<40, players.AllKinds...), snapshot(nodeKind, 1)[0])
		})},
		{"R2", "an object of another kind than it says", refused, each(func(i int) *semaphorev1.Object {
			return &semaphorev1.Object{Key: member(i).GetKey(), Spec: node("c2", "x", 1).GetSpec()}
		})},
		{"R7", "a pod CIDR of another cluster", refused,
			nodes(func(_ int, n *semaphorev1.Node) { n.PodCidrs = []string{"10.3.0.0/24"} })},
		{"R8", "a pod CIDR that another node has", refused,
			nodes(func(_ int, n *semaphorev1.Node) { n.PodCidrs = []string{"10.2.0.0/28"} })},
		{"R10", "another's public key", refused, nodes(func(_ int, n *semaphorev1.Node) { n.Wireguard.PublicKey = key(1) })},
		{"R11", "a tunnel to a metadata address", refused,
			nodes(func(_ int, n *semaphorev1.Node) { n.Wireguard.Address = "169.254.169.254:80" })},
		{"R13, R14, R20", "slices of addresses that are not the remote's, in another spelling, and too many", refused,
			each(func(i int) *semaphorev1.Object {
				o := slice("web", 1, 1)
				o.Key.Name = fmt.Sprint("web-", i)
				switch e := o.GetEndpointSlice().Endpoints[0]; i % 3 {
				case 0:
					e.Addresses = []string{"169.254.169.254"}
				case 1:
					e.Addresses = []string{"::ffff:10.2.0.1"}
				default:
					for j := range 100 {
						e.Addresses = append(e.Addresses, fmt.Sprintf("10.2.1.%d", j))
					}
				}
				return o
			})},
		{"R5", "Services with more ports than limits.portsPerService", refused,
			each(func(i int) *semaphorev1.Object { return service(fmt.Sprint("wide-", i), 101) })},
		{"R15, R25", "Services with settings out of bounds, of a clock years ahead", refused, func() int {
			var changes []*semaphorev1.Change
			for i := range n {
				o := service(fmt.Sprint("set-", i), 1)
				o.GetService().Ports[0].Protocol, o.GetService().ClientIpAffinitySeconds = "ICMP", -1
				at++
				c := upsert(at, o)
				c.ObservedAt = timestamppb.New(time.Now().AddDate(50, 0, 0))
				changes = append(changes, c)
			}
			m := changesOf(changes...)
			wire += proto.Size(m)
			s.tell(m)
			s.acked(at)
			return n
		}},
		// One of each pair gets the name and is written.
		{"R18", "Services of which each two would have mirrors of one name", price{8 * time.Millisecond, n/2 + 40, 48 << 20},
			func() int {
				written := func() float64 {
					return v.metric("semaphore_broker_writes_total", `kind="service"`, `result="ok"`)
				}
				before := written()
				each(func(i int) *semaphorev1.Object {
					o := service(fmt.Sprint("b-", i/2), 1)
					if o.Key.Namespace = "shop-73736d-a"; i%2 == 0 {
						o.Key.Namespace, o.Key.Name = "shop", fmt.Sprint("a-73736d-b-", i/2)
					}
					return o
				})()
				v.eventually("the Services that have their names are written", func() error {
					if got := written() - before; got < n/2 {
						return fmt.Errorf("%v of %d", got, n/2)
					}
					return nil
				})
				return n
			}},
		{"R21, R22", "members of sets that are no pods of the remote, or whose sets no label can name", refused,
			each(func(i int) *semaphorev1.Object {
				o := member(i, "10.1.0.1")
				if i%2 == 0 {
					o = member(i, "10.2.0.1")
					o.GetSetMember().SetName = strings.Repeat("/", 100)
				}
				return o
			})},
		{"R24", "all that is exported withdrawn at once", refused, func() int {
			each(func(i int) *semaphorev1.Object { return member(i, fmt.Sprintf("10.2.%d.%d", 128+i/250, 1+i%250)) })()
			time.Sleep(time.Second)
			var changes []*semaphorev1.Change
			for i := range n {
				at++
				changes = append(changes,
					&semaphorev1.Change{Revision: at, Change: &semaphorev1.Change_Delete{Delete: member(i).GetKey()}})
			}
			s.tell(changesOf(changes...))
			s.acked(at)
			if back := v.metric("semaphore_broker_retained", `cluster="c2"`, `kind="setmember"`); back < n/2-1 {
				t.Errorf("%v are retained", back)
			}
			return 2 * n
		}},
	}
	measure := func(a attack) {
		writes := func() float64 {
			return v.metric("semaphore_broker_writes_total") + v.metric("semaphore_broker_events_total", `result="written"`)
		}
		v.forgetPeak()
		now, _ := v.resident()
		wire = 0
		ran, wrote, begun := v.ran(), writes(), time.Now()
		times := a.do()
		if a.rules == "R1" || a.rules == "R4" || a.rules == "R6" {
			open() // the attack ended the stream; that is part of its price
		}
		time.Sleep(500 * time.Millisecond) // for follow-up work
		_, peak := v.resident()
		cpu, written, grown := (v.ran()-ran)/time.Duration(times), writes()-wrote, float64(peak-now)
		t.Logf("| %s | %s | %.2f ms | %.1f MiB | %.0f | %d B | (%d times in %s)", a.rules, a.what,
			float64(cpu.Microseconds())/1000, grown/(1<<20), written, wire/times,
			times, time.Since(begun).Round(time.Millisecond))
		if cpu > a.most.cpu || written > a.most.written || grown > a.most.grown {
			t.Errorf("%s, %s: %s of CPU each, %.0f writes and %.0f bytes of memory in all; %v is the most", a.rules, a.what, cpu,
				written, grown, a.most)
		}
	}
	for _, a := range attacks {
		measure(a)
	}
	export := func(i int) *semaphorev1.Object { return exported(fmt.Sprintf("of-c3-%03d", i)) }
	imports := v.importsOfRemotes(honest, n, export)
	for _, a := range []attack{
		{"R29", "exports of a namespace that the operator denies", refused, func() int {
			each(func(i int) *semaphorev1.Object {
				o := export(i)
				o.Key.Namespace = "kube-system"
				return o
			})()
			v.eventually("the broker denies them", func() error {
				if got := v.metric("semaphore_broker_service_problems", `cluster="c2"`, `reason="NamespaceDenied"`); got != n {
					return fmt.Errorf("%v of %d", got, n)
				}
				return nil
			})
			return n
		}},
		// Each import is written once more: c2 is one of its clusters.
		{"R31", "exports of names that another exports, of a clock years behind", price{8 * time.Millisecond, 3*n + 40,
			48 << 20}, func() int {
			var changes []*semaphorev1.Change
			for i := range n {
				o := export(i)
				o.GetService().Headless, o.GetService().Ports[0].Port = false, 6666
				at++
				c := upsert(at, o)
				c.ObservedAt = timestamppb.New(time.Now().AddDate(-50, 0, 0))
				changes = append(changes, c)
			}
			m := changesOf(changes...)
			wire += proto.Size(m)
			s.tell(m)
			s.acked(at)
			imports("c2", "c3")
			return n
		}},
	} {
		measure(a)
	}
	imports("c2", "c3")
}

// importsOfRemotes has a remote export n Services, and waits until they are imported. The returned function waits until
// the imports name the given clusters, and fails unless the first remote decides what they are.
func (v *victim) importsOfRemotes(s *stream, n int, export func(i int) *semaphorev1.Object) func(clusters ...string) {
	v.t.Helper()
	client := testkit.Value(mcs.New(v.rest, "redteam"))(v.t)
	var all []*semaphorev1.Object
	for i := range n {
		all = append(all, export(i))
	}
	s.tell(players.Upserts(2, all...))
	s.acked(uint64(n) + 1)
	expect := func(clusters ...string) {
		v.t.Helper()
		v.eventually(fmt.Sprint("imports of ", clusters), func() error {
			list, err := client.Imports().Follow("", nil).ListWithContext(v.t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			items, named := list.(*mcsv1beta1.ServiceImportList).Items, 0
			for _, i := range items {
				if i.Namespace != "shop" || i.Spec.Type != mcsv1beta1.Headless || i.Spec.Ports[0].Port == 6666 {
					v.t.Fatalf("the import %s/%s is %+v", i.Namespace, i.Name, i.Spec)
				}
				var has []string
				for _, c := range i.Status.Clusters {
					has = append(has, c.Cluster)
				}
				if slices.Sort(has); slices.Equal(has, clusters) {
					named++
				}
			}
			if len(items) != n || named != n {
				return fmt.Errorf("%d of %d, %d of these clusters", len(items), n, named)
			}
			return nil
		})
	}
	expect("c3")
	return expect
}
