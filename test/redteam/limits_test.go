package redteam

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

var (
	nodeKind    = semaphorev1.Kind_KIND_NODE
	serviceKind = semaphorev1.Kind_KIND_SERVICE
	sliceKind   = semaphorev1.Kind_KIND_ENDPOINT_SLICE
	memberKind  = semaphorev1.Kind_KIND_SET_MEMBER

	ofNodes, ofServices, ofMembers = []semaphorev1.Kind{nodeKind}, []semaphorev1.Kind{serviceKind},
		[]semaphorev1.Kind{memberKind}
	ofMirrors = []semaphorev1.Kind{serviceKind, sliceKind}
)

// service returns a Service that is offered as a mirror, with a number of ports.
func service(name string, ports int) *semaphorev1.Object {
	s := &semaphorev1.Service{Mirror: true}
	for i := range ports {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: fmt.Sprintf("port-%d", i), Protocol: "TCP", Port: int32(1000 + i)})
	}
	return players.ServiceOf("shop", name, s)
}

// slice returns the slice of a Service, with endpoints of c2 whose addresses begin at a third octet.
func slice(service string, third, endpoints int) *semaphorev1.Object {
	s := &semaphorev1.EndpointSlice{Service: service, AddressType: "IPv4",
		Ports: []*semaphorev1.Port{{Name: "port-0", Protocol: "TCP", Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", third, i+1)}})
	}
	return players.SliceOf("shop", service+"-1", s)
}

// cidrs returns n pod CIDRs of c2, beginning at a number.
func cidrs(from, n int) (out []string) {
	for i := from; i < from+n; i++ {
		out = append(out, fmt.Sprintf("10.2.%d.%d/28", i/16, i%16*16))
	}
	return out
}

func (v *victim) services() []corev1.Service {
	v.t.Helper()
	all := testkit.Value(v.kube.CoreV1().Services("semaphore").List(v.t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=semaphore-broker"}))(v.t)
	return all.Items
}

func (v *victim) slices() []discoveryv1.EndpointSlice {
	v.t.Helper()
	all := testkit.Value(v.kube.DiscoveryV1().EndpointSlices("semaphore").List(v.t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=semaphore-broker"}))(v.t)
	return all.Items
}

// refusedBy returns how many refusals name a limit.
func refusedBy(all []*semaphorev1.Refusal, limit string) (n int) {
	for _, r := range all {
		if r.GetCode() == "OverLimit" && strings.Contains(r.GetReason(), "(limits."+limit+" ") {
			n++
		}
	}
	return n
}

// TestARemoteTakesNoMoreThanItsLimits checks the limits on pod CIDRs, ports and cluster IPs of a remote, the first two
// as shipped. An
// existing object stays when it grows over a limit or when others precede it in a snapshot. The metrics and the code of
// the refusals show it.
func TestARemoteTakesNoMoreThanItsLimits(t *testing.T) {
	const most, extra = 200, 101
	v := start(t, limit("c2", v1alpha1.Limits{ClusterIPs: most}))
	token := v.agentToken("n1", "192.0.2.9")
	kinds := []semaphorev1.Kind{nodeKind, serviceKind, sliceKind}
	m1, web, itsSlice := node("c2", "m1", 1, cidrs(0, 3)...), service("web", 100), slice("web", 200, 5)
	s, _ := v.sends("c2", "e1", 9, kinds, m1, web, itsSlice)
	v.sends("c3", "e1", 1, ofNodes, node("c3", "good", 1, "10.3.1.0/24"))
	v.eventually("the mirror exists", func() error {
		if all := v.services(); len(all) != 1 || len(all[0].Spec.Ports) != 100 {
			return fmt.Errorf("%d Services", len(all))
		}
		return nil
	})

	// A node with more pod CIDRs than the limit keeps its old ones, and one port too many changes nothing.
	s.tell(changesOf(upsert(10, node("c2", "m1", 1, append(cidrs(100, 900), cidrs(0, 3)...)...)),
		upsert(11, service("web", 101))))
	refused := s.acked(11)
	if refusedBy(refused, "podCIDRsPerNode") != 1 || refusedBy(refused, "portsPerService") != 1 {
		t.Errorf("refused: %v", refused)
	}
	had := func() {
		t.Helper()
		_, _, peers := v.agent(token, 2)
		allowed := map[string]bool{}
		for _, cidr := range peers["c2/m1"].GetAllowedIps() {
			allowed[cidr] = true
		}
		if len(allowed) > 64 || !allowed[cidrs(0, 1)[0]] || !allowed[cidrs(1, 1)[0]] || !allowed[cidrs(2, 1)[0]] {
			t.Errorf("the node has %d allowed IPs, and not those that it had", len(allowed))
		}
	}
	had()
	// 300 nodes with 64 CIDRs each exceed the limit of 10,000 for the kind.
	var all []*semaphorev1.Object
	for i := range 300 {
		n := node("c2", fmt.Sprintf("a%03d", i), 1, cidrs(3+i%4*64, 64)...)
		n.GetNode().GetWireguard().PublicKey = append([]byte{byte(i), byte(i >> 8), 7}, make([]byte, 29)...)
		all = append(all, n)
	}
	// Half as many Services again as the limit of cluster IPs. All of them precede the existing ones.
	for i := range most + extra - 1 {
		all = append(all, service(fmt.Sprintf("a-%d", i), 1))
	}
	_, refused = v.sends("c2", "e2", 2000, kinds, append(all, m1, web, itsSlice)...)
	if refusedBy(refused, "podCIDRs") < 143 || refusedBy(refused, "clusterIPs") != extra {
		t.Errorf("%d refused by limits.podCIDRs, want 143 at least, and %d by limits.clusterIPs, want %d",
			refusedBy(refused, "podCIDRs"), refusedBy(refused, "clusterIPs"), extra)
	}
	for _, r := range refused {
		if name := r.GetKey().GetName(); name == "web" || name == "m1" {
			t.Errorf("what existed is refused: %v", r)
		}
	}
	had()
	if n := v.metric("semaphore_broker_objects", `cluster="c2"`, `kind="service"`); n != most {
		t.Errorf("%v Services are held", n)
	}
	over := []string{`cluster="c2"`, `kind="service"`, `code="OverLimit"`}
	if n := v.metric("semaphore_broker_refused_total", over...); n != extra+1 {
		t.Errorf("semaphore_broker_refused_total counts %v Services", n)
	}
	if n := v.metric("semaphore_broker_refused_total", `cluster="c2"`, `kind="node"`, `code="OverLimit"`); n < 144 {
		t.Errorf("semaphore_broker_refused_total counts %v nodes", n)
	}
	v.eventually("all that is desired is written", func() error {
		kind := `kind="service"`
		desired, present := v.metric("semaphore_broker_objects_desired", kind), v.metric("semaphore_broker_objects_present",
			kind)
		if waiting := v.metric("semaphore_broker_queue_depth", `queue="service"`); desired < most || present != desired ||
			waiting > 0 {
			return fmt.Errorf("%v desired, %v present, %v wait", desired, present, waiting)
		}
		return nil
	})
	made := v.services()
	stays := slices.ContainsFunc(made, func(s corev1.Service) bool {
		return s.Name == "c2-shop-73736d-web" && len(s.Spec.Ports) == 100
	})
	if len(made) > most || !stays {
		t.Errorf("%d Services were made; what existed is there: %v", len(made), stays)
	}
	t.Logf("%d Services made of %d sent", len(made), most+extra)
}

// TestTheBrakeCountsEmptiedAndRefused checks that a remote that sends all its objects so that they are refused, or
// empties them, removes no more than one that deletes them.
func TestTheBrakeCountsEmptiedAndRefused(t *testing.T) {
	v := start(t)
	token := v.agentToken("n1", "192.0.2.9")
	const n = 60 // the brake works from 20 withdrawn objects on
	var all []*semaphorev1.Object
	for i := range n {
		o := node("c2", fmt.Sprintf("m%d", i), 1, cidrs(i, 1)...)
		o.GetNode().GetWireguard().PublicKey = append([]byte{byte(i), 7}, make([]byte, 30)...)
		o.GetNode().GetWireguard().Address = fmt.Sprintf("192.0.2.%d:%d", 17+i%14, 20000+i)
		all = append(all, o, service(fmt.Sprintf("s-%d", i), 1), slice(fmt.Sprintf("s-%d", i), i, 1),
			member(i, fmt.Sprintf("10.2.%d.77", i)))
	}
	s, _ := v.sends("c2", "e1", 1000, players.AllKinds, all...)
	v.sends("c3", "e1", 1, ofNodes)
	endpoints := func() (all int) {
		for _, s := range v.slices() {
			all += len(s.Endpoints)
		}
		return all
	}
	v.eventually("all endpoints exist", func() error {
		if got := endpoints(); got != n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
	// Half of the objects are emptied, the other half is sent so that it is refused.
	at := uint64(1000)
	for i := range n {
		of := fmt.Sprintf("s-%d", i)
		gone := []*semaphorev1.Object{node("c2", fmt.Sprintf("m%d", i), 1), service(of, 1), slice(of, i, 0), member(i)}
		gone[0].GetNode().Wireguard = nil
		gone[1].GetService().Mirror = false
		if i%2 == 1 {
			gone[0].GetNode().PodCidrs = []string{"8.8.8.0/24"}
			gone[1].GetService().Ports[0].Port = 70000
			gone[2] = slice(of, i, 1)
			gone[2].GetEndpointSlice().AddressType = "FQDN"
			gone[3] = member(i, "8.8.8.8")
		}
		s.tell(players.Upserts(at+1, gone...))
		at += uint64(len(gone))
	}
	s.acked(at)
	for _, kind := range []string{"node", "service", "endpointslice", "setmember"} {
		if back := v.metric("semaphore_broker_retained", `cluster="c2"`, `kind="`+kind+`"`); back < n/2-1 {
			t.Errorf("semaphore_broker_retained of kind %s is %v of %d", kind, back, n)
		}
	}
	// The last export of c2 is written after all consequences of the rest.
	at++
	s.tell(changesOf(upsert(at, service("last", 1))))
	s.acked(at)
	v.eventually("the last Service is written", func() error {
		_, err := v.kube.CoreV1().Services("semaphore").Get(t.Context(), "c2-shop-73736d-last", metav1.GetOptions{})
		return err
	})
	_, _, peers := v.agent(token, 2)
	if got := endpoints(); got < n/2-1 || len(peers) < n/2-1 {
		t.Errorf("%d endpoints and %d peers are left of %d", got, len(peers), n)
	}
	t.Logf("of %d each: %d endpoints and %d peers are left", n, endpoints(), len(peers))
}

// TestWritesForARemoteAreBounded checks that a remote with large sets and slices, which changes one address of each by
// small messages as fast as it may, causes no more written bytes than limits.kibibytesPerSecond. Another remote's
// objects are written meanwhile.
func TestWritesForARemoteAreBounded(t *testing.T) {
	const rate = 4 << 10
	v := start(t, limit("c2", v1alpha1.Limits{KibibytesPerSecond: rate >> 10}))
	var written struct {
		sync.Mutex
		bytes float64
		of    map[string]int
	}
	written.of = map[string]int{}
	v.versions(func(resource string, u *unstructured.Unstructured, deleted bool) {
		if deleted || u.GetLabels()[naming.LabelSourceCluster] != "c2" {
			return
		}
		// Compute the size in etcd, without the fields that the apiserver adds.
		u.SetManagedFields(nil)
		size := 0
		if resource == "endpointslices" {
			var slice discoveryv1.EndpointSlice
			testkit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &slice))
			size = slice.Size()
		} else if data, err := json.Marshal(u); err != nil {
			t.Error(err)
		} else if size = len(data); resource == "services" {
			size = 0 // each is written once
		}
		written.Lock()
		defer written.Unlock()
		written.bytes += float64(size)
		written.of[resource]++
	})
	const sets, pods, services = 5, 200, 10
	kinds := []semaphorev1.Kind{serviceKind, sliceKind, memberKind}
	pod := func(i, version int) *semaphorev1.Object {
		o := member(i, fmt.Sprintf("10.2.%d.%d", i%250, 1+i/250+100*(version%2)))
		o.GetSetMember().SetName = fmt.Sprint("set-", i%sets)
		return o
	}
	var all []*semaphorev1.Object
	for i := range services {
		all = append(all, service(fmt.Sprint("s-", i), 1), slice(fmt.Sprint("s-", i), i, 99))
	}
	for i := range sets * pods {
		all = append(all, pod(i, 0))
	}
	at := uint64(20_000)
	begun := time.Now()
	s, _ := v.sends("c2", "e1", at, kinds, all...)
	done, received, stop := make(chan struct{}), 0, make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			var some []*semaphorev1.Change
			for j := range sets { // one address in each set and one endpoint of a slice
				some = append(some, upsert(at+uint64(i*(sets+1)+j+1), pod(i%pods*sets+j, 1+i/pods)))
			}
			more := slice("extra", 200, 1)
			more.Key.Name, more.GetEndpointSlice().Service = "extra", fmt.Sprint("s-", i%services)
			more.GetEndpointSlice().Endpoints[0].Ready = new(bool)
			*more.GetEndpointSlice().Endpoints[0].Ready = i/services%2 == 0
			m := encode(t, changesOf(append(some, upsert(at+uint64((i+1)*(sets+1)), more))...))
			if s.call.SendMsg(m) != nil {
				return
			}
			received += len(m)
		}
	}()
	time.Sleep(5 * time.Second)
	// The other remote's Service is written immediately.
	v.sends("c3", "e1", 10, ofServices, service("good", 1))
	acked := time.Now()
	v.eventually("another remote's Service", func() error {
		_, err := v.kube.CoreV1().Services("semaphore").Get(t.Context(), "c3-shop-73736d-good", metav1.GetOptions{})
		return err
	})
	other := time.Since(acked)
	delayed := func() float64 {
		return min(v.metric("semaphore_broker_writes_delayed_total", `cluster="c2"`, `kind="globalnetworkset"`),
			v.metric("semaphore_broker_writes_delayed_total", `cluster="c2"`, `kind="endpointslice"`))
	}
	for time.Since(begun) < 20*time.Second || time.Since(begun) < 5*time.Minute && delayed() == 0 {
		time.Sleep(time.Second)
	}
	close(stop)
	s.cancel()
	<-done
	took := time.Since(begun)
	written.Lock()
	defer written.Unlock()
	// The burst is the quota of a minute (config.ByteBurst).
	bound := rate * (64 + took.Seconds())
	t.Logf(
		"in %s: %d KiB sent, %.1f MiB written (bound: %.1f MiB): %v versions; another remote's Service was there after %s",
		took.Round(time.Millisecond), received>>10, written.bytes/(1<<20), bound/(1<<20), written.of,
		other.Round(time.Millisecond))
	if written.bytes > bound {
		t.Errorf("%.0f bytes were written, and %.0f is the most", written.bytes, bound)
	}
	if delayed() == 0 {
		t.Error("semaphore_broker_writes_delayed_total does not count it")
	}
}

// TestNodeSubnetsAreRequired checks that the broker accepts no remote without node subnets, and names the missing
// field. With them, no tunnel has an endpoint elsewhere.
func TestNodeSubnetsAreRequired(t *testing.T) {
	v := prepare(t)
	remote := v.remote("c2")
	nodes := remote.Spec.NodeSubnets
	remote.Spec.NodeSubnets = nil
	v.run()
	v.decides("c2", "SubnetsOverlap",
		`spec.nodeSubnets: none: name the subnets that the nodes of "c2" have their InternalIPs from`)
	if s, err := open(t, v.dial("c2", "exporter"), publishMethod, ""); err == nil && s.end(patience) == nil {
		t.Error("a remote that is not accepted has a stream")
	}

	patch := testkit.Value(json.Marshal(map[string]any{"spec": map[string]any{"nodeSubnets": nodes}}))(t)
	testkit.Value(v.objects().Patch(t.Context(), "c2", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	v.decides("c2", "Accepted", "")
	var all []*semaphorev1.Object
	for i, at := range []string{
		"10.3.1.1:53", "192.0.2.33:51820", "8.8.8.8:53", "[fd00:ec2::254]:80", "100.100.100.200:80", "169.254.169.254:80",
		"[64:ff9b::a01:1]:1", "[2002:a01:1::1]:1",
		"240.0.0.1:1", "0.1.2.3:1", "224.0.0.1:1", "[ff02::1]:1", "192.0.2.9:1", "10.2.1.1:1", "10.101.0.1:443",
		"127.0.0.1:1",
	} {
		o := node("c2", fmt.Sprintf("n%d", i), 1, cidrs(i, 1)...)
		o.GetNode().GetWireguard().PublicKey = append([]byte{byte(i), 7}, make([]byte, 30)...)
		o.GetNode().GetWireguard().Address = at
		all = append(all, o)
	}
	if _, refused := v.sends("c2", "e1", 100, ofNodes, all...); len(refused) != len(all) {
		t.Errorf("%d of %d tunnels to elsewhere were refused: %v", len(refused), len(all), refused)
	}
	if n := v.metric("semaphore_broker_refused_total", `cluster="c2"`, `kind="node"`,
		`code="EndpointNotAllowed"`); n != float64(len(all)) {
		t.Errorf("semaphore_broker_refused_total counts %v of %d", n, len(all))
	}
}
