package broker

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// remoteClusters is a world with RemoteClusters and clients for them.
type remoteClusters struct {
	*world
	api         dynamic.NamespaceableResourceInterface
	definitions dynamic.NamespaceableResourceInterface
}

// worldOfObjects returns a world whose broker watches RemoteClusters and trusts their bundles. Its files have only the
// own cluster.
func worldOfObjects(t *testing.T) *remoteClusters {
	t.Helper()
	w := newWorld(t)
	kubetest.InstallRemoteClusters(t, w.rest)
	w.cfg = parseConfig(t, w.clusters, " []")
	w.cfg.Kube.KubeConfigPath = kubetest.Kubeconfig(t, w.rest)
	w.cfg.TLS.BundleDir = t.TempDir()
	own, err := os.ReadFile(filepath.Join(w.clusters.Bundles(), "c1.pem"))
	if err == nil {
		err = os.WriteFile(filepath.Join(w.cfg.TLS.BundleDir, "c1.pem"), own, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(w.rest)
	return &remoteClusters{w, client.Resource(v1alpha1.RemoteClusters),
		client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"})}
}

// create makes a RemoteCluster with the bundle of its cluster.
func (r *remoteClusters) create(name, spec string) {
	r.t.Helper()
	var content map[string]any
	testkit.Must(r.t, yaml.Unmarshal([]byte(spec), &content))
	bundle, err := os.ReadFile(filepath.Join(r.clusters.Bundles(), name+".pem"))
	if err == nil {
		content["trustBundle"] = string(bundle)
	} else if !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
	u.SetName(name)
	kubetest.CreateObject(r.t, r.api, u)
}

func (r *remoteClusters) patch(name, spec string) {
	r.t.Helper()
	patch := testkit.Value(json.Marshal(map[string]json.RawMessage{"spec": json.RawMessage(spec)}))(r.t)
	testkit.Value(r.api.Patch(r.t.Context(), name, "application/merge-patch+json", patch,
		metav1.PatchOptions{}))(r.t)
}

// shows waits until an object has this status: the conditions, the false ones with their reasons, and the port.
func (r *remoteClusters) shows(name, want string) (message string) {
	r.t.Helper()
	eventually(r.t, "status of "+name, func() (bool, string) {
		u, err := r.api.Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		var o v1alpha1.RemoteCluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
			return false, err.Error()
		}
		var words []string
		for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionConnected, v1alpha1.ConditionHealthy} {
			c := meta.FindStatusCondition(o.Status.Conditions, kind)
			switch {
			case c == nil:
				words = append(words, "no "+kind)
			case c.ObservedGeneration != o.Generation:
				words = append(words, kind+" of before")
			case c.Status == metav1.ConditionTrue:
				words = append(words, kind)
			case c.Status == metav1.ConditionUnknown:
				words = append(words, kind+" unknown")
			default:
				words, message = append(words, "not "+kind+" ("+c.Reason+")"), c.Message
				if kind == v1alpha1.ConditionAccepted {
					return strings.HasPrefix(want, words[0]), c.Message
				}
			}
		}
		got := fmt.Sprint(strings.Join(words, ", "), ", port ", o.Status.ListenPort)
		return got == want, got
	})
	return message
}

// unchanged checks that none of these objects has been written since.
func (r *remoteClusters) unchanged(before map[string]string) {
	r.t.Helper()
	after := r.written()
	for what, was := range before {
		if is := after[what]; is != was {
			r.t.Errorf("%s was written: %s, and was %s", what, is, was)
		}
	}
}

// A remote is added, changed and removed while the broker runs. The process and the streams of other remotes continue.
// A refused object changes nothing that works, and its status has the reason.
func TestFollowsRemoteClusters(t *testing.T) {
	r := worldOfObjects(t)
	stop := r.start(r.cfg)

	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	e2 := r.exporter("c2")
	e2.SendAll("c2", "e1", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.5"))
	const ofC2 = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
slice of c2-shop-73736d-echo: 10.2.1.5`
	r.becomes("the first remote", ofC2)
	r.shows("c2", "Accepted, Connected, Healthy, port 7775")

	// The second remote. The stream of the first continues: it acknowledges the next change.
	r.create("c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c3", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7776")
	e2.Send(players.Upserts(101, players.Service("shop", "second", 81)))
	e2.Acked(101)
	e3 := r.exporter("c3")
	e3.SendAll("c3", "e1", players.Service("shop", "echo", 90))
	const both = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c2-shop-73736d-echo: 80
service c2-shop-73736d-second: 81
service c3-shop-73736d-echo: 90
slice of c2-shop-73736d-echo: 10.2.1.5`
	r.becomes("two remotes", both)

	// A remote that conflicts with the others, and a change that does.
	before := r.written()
	r.create("c4", "{podSubnets: [10.2.128.0/17], nodeSubnets: [172.16.0.0/12]}")
	if why := r.shows("c4", "not Accepted (SubnetsOverlap)"); !strings.Contains(why,
		"10.2.128.0/17 overlaps 10.2.0.0/16 (c2 spec.podSubnets)") {
		t.Errorf("c4 is not accepted: %s", why)
	}
	r.patch("c3", `{"podSubnets": ["10.1.0.0/17"]}`)
	if why := r.shows("c3", "not Accepted (SubnetsOverlap)"); !strings.Contains(why, "localSubnets[0]") ||
		!strings.Contains(why, "generation 1 stays in effect") {
		t.Errorf("the change of c3 is not accepted: %s", why)
	}
	r.patch("c3", `{"podSubnets": ["10.3.0.0/16"], "wireguard": {"listenPort": 7775}}`)
	r.shows("c3", "not Accepted (PortConflict)")
	e2.Send(players.Upserts(102, players.Service("shop", "third", 82)))
	e2.Acked(102)
	e3.Send(players.Upserts(101, players.Service("shop", "fourth", 91)))
	e3.Acked(101)
	r.becomes("what is not accepted changes nothing", sorted(both+`
service c2-shop-73736d-third: 82
service c3-shop-73736d-fourth: 91`))
	r.unchanged(before)

	// A remote is deleted: its objects are removed, and its exporter's stream is closed. The stream of the other remote
	// continues.
	testkit.Must(t, r.api.Delete(t.Context(), "c3", metav1.DeleteOptions{}))
	const left = ofC2 + `
service c2-shop-73736d-second: 81
service c2-shop-73736d-third: 82`
	r.becomes("one remote is removed", sorted(left))
	if err := e3.Err(); !strings.Contains(err.Error(), "no longer imports from yours") {
		t.Errorf("the stream of the removed remote ends with %v", err)
	}
	e2.Send(players.Upserts(103, players.Service("shop", "third", 83)))
	e2.Acked(103)

	// The CRD is deleted with all objects: nothing that works changes, not even by a restart.
	testkit.Must(t, r.api.Delete(t.Context(), "c4", metav1.DeleteOptions{}))
	kept := r.written()
	testkit.Must(t, r.definitions.Delete(t.Context(), v1alpha1.CRDName, metav1.DeleteOptions{}))
	eventually(t, "the definition is gone", func() (bool, string) {
		_, err := r.definitions.Get(t.Context(), v1alpha1.CRDName, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	r.problem(t, "RemoteClusters c2 disappeared with their CustomResourceDefinition")
	r.problem(t, "RemoteClusters are not served")
	e2.Send(players.Upserts(104, players.Service("shop", "third", 84)))
	e2.Acked(104)
	stop()
	r.start(r.cfg)
	e2 = r.exporter("c2")
	e2.SendAll("c2", "e2", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.5"),
		players.Service("shop", "second", 81), players.Service("shop", "third", 84))
	r.becomes("after a restart without the definition", strings.Replace(sorted(left), "third: 82", "third: 84", 1))
	maps.DeleteFunc(kept, func(what, _ string) bool { return strings.Contains(what, "third") })
	r.unchanged(kept)

	// The CRD is back without objects, and then with the object. A deletion of the object now takes effect.
	kubetest.InstallRemoteClusters(t, r.rest)
	eventually(t, "the resource is followed again", func() (bool, string) {
		problems := strings.Join(r.status(r.cfg).GetProblems(), "\n")
		return !strings.Contains(problems, "not served"), problems
	})
	e2.Send(players.Upserts(105, players.Service("shop", "third", 85)))
	e2.Acked(105)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c2", "Accepted, Connected, Healthy, port 7775")
	e2.Send(players.Upserts(106, players.Service("shop", "third", 86)))
	e2.Acked(106)
	testkit.Must(t, r.api.Delete(t.Context(), "c2", metav1.DeleteOptions{}))
	r.becomes("no remote", "")
}

// A remote that is added, changed or removed does not affect the others: their objects are not written, their
// exporters' streams continue, and agents receive the difference on their existing streams.
func TestRemotesChangeAlone(t *testing.T) {
	r := worldOfObjects(t)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.start(r.cfg)
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	e2 := r.exporter("c2")
	e2.SendAll("c2", "e1", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.5"), players.Member("shop", "p1", "u1", "web", "10.2.1.5"))
	const ofC2 = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
set c2-shop-web: 10.2.1.5/32
slice of c2-shop-73736d-echo: 10.2.1.5`
	r.becomes("the first remote", ofC2)
	const deviceOfC2 = "device c2: 7775 [10.2.0.0/16]\npeer c2/n1: 172.18.2.1:51820 [10.2.1.0/24]"
	a := r.attach("", 0)
	a.until("the first device", deviceOfC2, "c2")
	before := r.written()

	for life := byte(1); life <= 2; life++ { // the second time finds nothing of the first
		r.create("c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12]}")
		r.shows("c3", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7776")
		e3 := r.exporter("c3")
		e3.SendAll("c3", fmt.Sprint("e", life), players.Node("n3", 30+life, "10.3.1.0/24"), players.Service("shop", "echo",
			90),
			players.Slice("shop", "echo-1", "echo", "10.3.1.5"), players.Member("shop", "p3", "u3", "web", "10.3.1.5"))
		a.until("a second device on the same stream", "device c2: 7775 [10.2.0.0/16]\ndevice c3: 7776 [10.3.0.0/16]\n"+
			"peer c2/n1: 172.18.2.1:51820 [10.2.1.0/24]\npeer c3/n3: 172.18.2."+fmt.Sprint(30+life)+
			":51820 [10.3.1.0/24]", "c2", "c3")
		r.becomes("two remotes", sorted(ofC2+`
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c3-shop-73736d-echo: 90
set c3-shop-web: 10.3.1.5/32
slice of c3-shop-73736d-echo: 10.3.1.5`))
		// A change of the device uses the same stream too.
		r.patch("c3", `{"wireguard": {"listenPort": 7779}}`)
		for a.state["device c3"] != "7779 [10.3.0.0/16]" {
			m := testkit.Value(a.stream.Recv())(t)
			a.take(m)
		}
		testkit.Must(t, r.api.Delete(t.Context(), "c3", metav1.DeleteOptions{}))
		a.until("its removal on the same stream", strings.Replace(deviceOfC2, "\n", "\ndevice c3: to go\n", 1), "c2")
		r.becomes("one remote is removed", ofC2)
		if err := e3.Err(); !strings.Contains(err.Error(), "no longer imports from yours") {
			t.Errorf("the stream of the removed remote ends with %v", err)
		}
	}
	e2.Send(players.Upserts(101, players.Service("shop", "second", 81)))
	e2.Acked(101)
	r.unchanged(before)

	// The object's status has the MTU of the nodes' devices and the refusals.
	a.report(&semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", Mtu: 1380, Peers: 1, PeersIdle: 1})
	e2.Send(players.Upserts(102, players.Slice("shop", "bad", "echo", "192.0.2.99")))
	e2.Acked(102)
	r.shows("c2", "Accepted, Connected, not Healthy (Refused), port 7775")
	eventually(t, "MTU and refused object in the status", func() (bool, string) {
		u, err := r.api.Get(t.Context(), "c2", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		mtu, _, _ := unstructured.NestedInt64(u.Object, "status", "mtu")
		problem, _, _ := unstructured.NestedString(u.Object, "status", "problem")
		return mtu == 1380 && strings.HasSuffix(problem, "shop/bad"), fmt.Sprint(mtu, " ", problem)
	})
}

// TestSubnetsChangeAlone: while the subnets of c2 widen and narrow, no stream or object of c3 is touched, the agent
// stays attached, and what of c2 is inside both bounds never leaves. An object outside of narrower subnets goes at
// once, although c2 is not connected.
func TestSubnetsChangeAlone(t *testing.T) {
	r := worldOfObjects(t)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.create("c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.start(r.cfg)
	r.shows("c3", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7776")
	e3 := r.exporter("c3")
	e3.SendAll("c3", "e3", players.Node("n3", 3, "10.3.1.0/24"), players.Service("shop", "echo", 90),
		players.Slice("shop", "echo-1", "echo", "10.3.1.5"), players.Member("shop", "p3", "u3", "web", "10.3.1.5"))
	exports := func() *players.Exporter {
		t.Helper()
		e := r.exporter("c2")
		e.SendAll("c2", "e2", players.Node("n1", 1, "10.2.1.0/24"), players.Node("n2", 2, "10.22.1.0/24"),
			players.Service("shop", "echo", 80), players.Slice("shop", "echo-1", "echo", "10.2.1.5", "10.22.1.5"),
			players.Member("shop", "p1", "u1", "web", "10.2.1.5"), players.Member("shop", "p2", "u2", "web", "10.22.1.5"))
		return e
	}
	e2 := exports()
	const ofC3 = `
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true
service c3-shop-73736d-echo: 90
set c3-shop-web: 10.3.1.5/32
slice of c3-shop-73736d-echo: 10.3.1.5`
	const narrow = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
set c2-shop-web: 10.2.1.5/32
slice of c2-shop-73736d-echo: 10.2.1.5`
	const wide = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c2-10-22-0-0-16: 10.22.0.0/16 disabled true
service c2-shop-73736d-echo: 80
set c2-shop-web: 10.2.1.5/32,10.22.1.5/32
slice of c2-shop-73736d-echo: 10.2.1.5,10.22.1.5`
	const narrowPeers = "device c2: 7775 [10.2.0.0/16]\ndevice c3: 7776 [10.3.0.0/16]\n" +
		"peer c2/n1: 172.18.2.1:51820 [10.2.1.0/24]\npeer c3/n3: 172.18.2.3:51820 [10.3.1.0/24]"
	const widePeers = "device c2: 7775 [10.2.0.0/16 10.22.0.0/16]\ndevice c3: 7776 [10.3.0.0/16]\n" +
		"peer c2/n1: 172.18.2.1:51820 [10.2.1.0/24]\npeer c2/n2: 172.18.2.2:51820 [10.22.1.0/24]\n" +
		"peer c3/n3: 172.18.2.3:51820 [10.3.1.0/24]"
	r.becomes("two remotes", sorted(narrow+ofC3))
	a := r.attach("", 0)
	a.until("the first devices", narrowPeers, "c2", "c3")
	before, stays := r.written(), r.watchSlices("c2", "10.2.1.5")

	for revision := uint64(101); revision <= 104; revision += 2 {
		r.patch("c2", `{"podSubnets": ["10.2.0.0/16", "10.22.0.0/16"]}`)
		if err := e2.Err(); !strings.Contains(err.Error(), "the configuration for your cluster has changed here") {
			t.Errorf("the stream of the changed remote ends with %v", err)
		}
		e2 = exports()
		r.becomes("wider subnets", sorted(wide+ofC3))
		a.until("wider subnets", widePeers, "c2", "c3")
		e3.Send(players.Upserts(revision, players.Service("shop", "second", 81)))
		e3.Acked(revision)

		r.patch("c2", `{"podSubnets": ["10.2.0.0/16"]}`)
		e2.Err()
		e3.Send(players.Deletion(revision+1, players.Service("shop", "second")))
		e3.Acked(revision + 1)
		r.becomes("narrower subnets", sorted(narrow+ofC3))
		a.until("narrower subnets", narrowPeers, "c2", "c3")
		e2 = exports()
	}
	maps.DeleteFunc(before, func(what, _ string) bool { return !strings.Contains(what, "c3") })
	r.unchanged(before)
	stays()
}

// watchSlices watches the slices of a remote's mirrors. The returned function reports each state without an address.
func (r *remoteClusters) watchSlices(cluster, address string) (check func()) {
	r.t.Helper()
	list := testkit.Value(r.admin.DiscoveryV1().EndpointSlices("semaphore").List(r.t.Context(), metav1.ListOptions{}))(r.t)
	w := testkit.Value(r.admin.DiscoveryV1().EndpointSlices("semaphore").Watch(r.t.Context(), metav1.ListOptions{
		LabelSelector: naming.LabelSourceCluster + "=" + cluster, ResourceVersion: list.ResourceVersion}))(r.t)
	var wrong []string
	var stopped atomic.Bool
	seen, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			s, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok && stopped.Load() {
				return
			}
			seen++
			if !ok || e.Type == watch.Deleted || !slices.ContainsFunc(s.Endpoints, func(of discoveryv1.Endpoint) bool {
				return slices.Contains(of.Addresses, address)
			}) {
				wrong = append(wrong, fmt.Sprintf("%s %v", e.Type, e.Object))
			}
		}
	}()
	return func() {
		r.t.Helper()
		stopped.Store(true)
		w.Stop()
		<-done
		if len(wrong) > 0 || seen == 0 {
			r.t.Errorf("%d states of slices were seen; these lack %s: %s", seen, address, strings.Join(wrong, "; "))
		}
	}
}

// TestEncryptionLater: a broker with a configuration that takes a RemoteCluster out of effect does not start, and
// changes nothing: encryption needs nodeSubnets, which the object lacks. With them it starts.
func TestEncryptionLater(t *testing.T) {
	r := worldOfObjects(t)
	clear := *r.cfg
	clear.Features = config.Features{config.Services, config.Policy}
	stop := r.start(&clear)
	r.create("c2", "{podSubnets: [10.2.0.0/16]}")
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	e2 := r.exporter("c2")
	e2.SendAll("c2", "e1", players.Service("shop", "echo", 80), players.Slice("shop", "echo-1", "echo", "10.2.1.5"))
	const ofC2 = `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
slice of c2-shop-73736d-echo: 10.2.1.5`
	r.becomes("before encryption", ofC2)
	stop()
	before := r.written()

	_, done := r.launch(r.cfg)
	if err := <-done; err == nil || !strings.Contains(err.Error(), "RemoteCluster c2: with this configuration it is no "+
		"longer in effect: spec.nodeSubnets: none: name the subnets") {
		t.Errorf("the broker ends with %v", err)
	}
	done <- nil
	if after := r.written(); !reflect.DeepEqual(before, after) {
		t.Errorf("before\n%v\nafter\n%v", before, after)
	}

	r.patch("c2", `{"nodeSubnets": ["172.16.0.0/12"]}`)
	r.start(r.cfg)
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	r.becomes("with encryption", ofC2)
}

// TestCleanupOfRemoteClusters: the cleanup removes the nodes' annotations of RemoteClusters, and no others.
func TestCleanupOfRemoteClusters(t *testing.T) {
	r := worldOfObjects(t)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	nodes := r.admin.CoreV1().Nodes()
	of := func(cluster string) string { return naming.PubKeyAnnotation(cluster) }
	kubetest.Create(t, nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n9",
		Annotations: map[string]string{of("c2"): "k", naming.EndpointAnnotation("c2"): "192.0.2.1:7775", of("c9"): "k"}}})
	for _, one := range []struct {
		options operator.Options
		want    []string
	}{
		{operator.Options{LeaveAnnotations: true}, []string{of("c2"), naming.EndpointAnnotation("c2"), of("c9")}},
		{operator.Options{}, []string{of("c9")}},
	} {
		testkit.Must(t, operator.Run(t.Context(), r.cfg, one.options, t.Output()))
		n := kubetest.Get(t, nodes, "n9")
		slices.Sort(one.want)
		if got := slices.Sorted(maps.Keys(n.Annotations)); !slices.Equal(got, one.want) {
			t.Errorf("%+v: annotations %v, want %v", one.options, got, one.want)
		}
	}
}

func sorted(lines string) string {
	all := strings.Split(strings.TrimSpace(lines), "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}
