package follow

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func inEffect(name string, age int64, port uint16, subnets ...v1alpha1.Subnet) remotes.Object {
	return remotes.Object{Name: name, Created: time.Unix(age, 0), Generation: 1, ListenPort: port,
		Spec: v1alpha1.RemoteClusterSpec{PodSubnets: subnets, NodeSubnets: []v1alpha1.Subnet{"192.0.2.0/24"}}}
}

func ownBroker(t *testing.T) *config.Broker {
	t.Helper()
	return testkit.Value(described.Broker([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]")))(t)
}

// TestBoundsOf: agents get each remote in a form that they can use beside the others, whatever its status says.
func TestBoundsOf(t *testing.T) {
	ports := config.DevicePorts{First: 7775, Last: 7800}
	before := []config.Remote{
		{Name: "c2", PodSubnets: []string{"10.2.0.0/16"}, NodeSubnets: []string{"192.0.2.0/24"},
			WireGuard: config.WireGuard{ListenPort: 7775}},
		{Name: "c3", PodSubnets: []string{"10.3.0.0/16"}, NodeSubnets: []string{"192.0.2.0/24"},
			WireGuard: config.WireGuard{ListenPort: 7776}},
	}
	for name, test := range map[string]struct {
		c2, c3      remotes.Object
		want, first string
	}{
		"as they were": {inEffect("c2", 1, 7775, "10.2.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776"},
		"another port": {inEffect("c2", 1, 7790, "10.2.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7790, c3 [10.3.0.0/16] 7776", "c2 [10.2.0.0/16] 7790, c3 [10.3.0.0/16] 7776"},
		"the port of the other": {inEffect("c2", 1, 7776, "10.2.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c2 [10.2.0.0/16] 7776"},
		"exchanged ports": {inEffect("c2", 1, 7776, "10.2.0.0/16"), inEffect("c3", 2, 7775, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7776, c3 [10.3.0.0/16] 7775", "c2 [10.2.0.0/16] 7776, c3 [10.3.0.0/16] 7775"},
		"no port": {inEffect("c2", 1, 0, "10.2.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c3 [10.3.0.0/16] 7776"},
		"a port out of range": {inEffect("c2", 1, 53, "10.2.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c3 [10.3.0.0/16] 7776"},
		"subnets of the own cluster": {inEffect("c2", 1, 7775, "10.1.0.0/24"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c3 [10.3.0.0/16] 7776"},
		"subnets of the other": {inEffect("c2", 1, 7775, "10.3.0.0/24"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c2 [10.3.0.0/24] 7775"},
		"no subnet": {inEffect("c2", 1, 7775, "x"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.2.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c3 [10.3.0.0/16] 7776"},
		"other subnets": {inEffect("c2", 1, 7775, "10.9.0.0/16"), inEffect("c3", 2, 7776, "10.3.0.0/16"),
			"c2 [10.9.0.0/16] 7775, c3 [10.3.0.0/16] 7776", "c2 [10.9.0.0/16] 7775, c3 [10.3.0.0/16] 7776"},
	} {
		t.Run(name, func(t *testing.T) {
			all := remotes.Objects{"c2": test.c2, "c3": test.c3}
			for _, from := range []struct {
				before []config.Remote
				want   string
			}{{before, test.want}, {nil, test.first}} {
				own := ownBroker(t)
				use, wrong := bounds.JudgeRemotes(own,
					boundsOf(remotes.Decision{InEffect: all}, all, ports, from.before), from.before)
				var words []string
				for _, r := range use {
					words = append(words, fmt.Sprint(r.Name, " ", r.PodSubnets, " ", r.WireGuard.ListenPort))
				}
				if got := strings.Join(words, ", "); got != from.want {
					t.Errorf("%d before: %s\nwant %s\n%v", len(from.before), got, from.want, wrong)
				}
				if again := bounds.ReadRemotes([]byte(bounds.RemotesText(use))); len(again) != len(use) {
					t.Errorf("read again: %v", again)
				}
			}
		})
	}
}

// TestJudgedOnce: what is as it was is neither decided nor judged again. The broker writes each object's status, with
// the time of the remote's last message, every minute.
func TestJudgedOnce(t *testing.T) {
	own := ownBroker(t)
	f := New(nil, nil, nil)
	e := &InEffect{Follower: f, setRoots: func(map[string]string) error { return nil }}
	c2 := inEffect("c2", 1, 7775, "10.2.0.0/16")
	f.apply(func(tr *remotes.Tracker) { tr.Put(c2); tr.Put(inEffect("c3", 2, 7775, "10.3.0.0/16")) })
	d, anew := e.Decide(own, nil)
	if !anew {
		t.Fatal("nothing is decided")
	}
	c2.Status.LastHeard = new(metav1.Now())
	f.apply(func(tr *remotes.Tracker) { tr.Put(c2) })
	if _, anew := e.Decide(own, nil); anew {
		t.Error("another status leads to another decision")
	}
	if all, _ := f.Objects(); all["c2"].Status.LastHeard == nil {
		t.Error("the follower does not know the status")
	}
	// A status says what was decided about a specification, and nothing about one that came since.
	reported := func(what string, want ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(e.Judged())); !slices.Equal(got, want) {
			t.Errorf("%s: the decision is about %v as they are, want %v", what, got, want)
		}
	}
	reported("with another status", "c2", "c3")
	if e.Judged()["c2"].Status.LastHeard == nil {
		t.Error("the status of an object that was decided on is not known")
	}
	changed, again := c2, inEffect("c3", 3, 7775, "10.3.0.0/16")
	changed.Generation, again.UID = 2, "again"
	f.apply(func(tr *remotes.Tracker) { tr.Put(changed); tr.Put(inEffect("c4", 4, 7775, "10.4.0.0/16")) })
	reported("with another specification and a new object", "c3")
	f.apply(func(tr *remotes.Tracker) { tr.Put(again) })
	reported("with an object that was created again")
	e.Decide(own, nil)
	reported("decided again", "c2", "c3", "c4")
	c2.ListenPort = 7777
	f.apply(func(tr *remotes.Tracker) { tr.Put(c2) })
	if _, anew := e.Decide(own, nil); !anew {
		t.Error("another port leads to no other decision")
	}

	b := NewBounds(kubernetes.NewForConfigOrDie(&rest.Config{}), "", slog.New(slog.DiscardHandler))
	judge := func(own *config.Broker) *config.Remote {
		b.judge(basis{own, boundsOf(*d, d.InEffect, config.DevicePorts{First: 7775, Last: 7800}, nil), nil})
		return &b.use[0]
	}
	first := judge(own)
	other := ownBroker(t)
	if judge(other) != first {
		t.Error("the same bounds are judged again")
	}
	if other.Encryption = config.Permissive; judge(other) == first {
		t.Error("bounds are not judged with another configuration")
	}
}

// TestAnotherClustersObject: an object that was deleted and created again for another cluster inherits nothing from the
// first one, even if no decision was made between. One that was restored keeps what it had.
func TestAnotherClustersObject(t *testing.T) {
	own, first := ownBroker(t), inEffect("c2", 1, 7775, "10.2.0.0/16")
	first.UID, first.Definition, first.SourceID = "1", "d1", "first"
	with := func(uid, definition types.UID, subnet v1alpha1.Subnet, bundle string) remotes.Object {
		o := inEffect("c2", 2, 0, subnet)
		o.UID, o.Definition, o.Spec.TrustBundle = uid, definition, bundle
		return o
	}
	for name, test := range map[string]struct {
		object     remotes.Object
		once, then string
	}{
		"other subnets":              {with("2", "d1", "10.9.0.0/16", ""), "", "[10.9.0.0/16] "},
		"subnets that are refused":   {with("2", "d1", "10.1.0.0/16", ""), "", ""},
		"another trust bundle":       {with("2", "d1", "10.2.0.0/16", "#"), "", ""},
		"restored":                   {with("2", "d1", "10.2.0.0/16", ""), "[10.2.0.0/16] first", "[10.2.0.0/16] first"},
		"changed":                    {with("1", "d1", "10.9.0.0/16", ""), "[10.9.0.0/16] first", "[10.9.0.0/16] first"},
		"after its definition ended": {with("2", "d2", "10.9.0.0/16", ""), "[10.9.0.0/16] first", "[10.9.0.0/16] first"},
	} {
		f := New(nil, nil, nil)
		e := &InEffect{Follower: f, setRoots: func(map[string]string) error { return nil },
			before: remotes.Objects{"c2": first}}
		f.apply(func(tr *remotes.Tracker) { tr.Put(test.object) })
		for _, want := range []string{test.once, test.then} {
			d, _ := e.Decide(own, nil)
			got := ""
			if o, ok := d.InEffect["c2"]; ok {
				got = fmt.Sprint(o.Spec.PodSubnets, " ", o.SourceID)
			}
			if got != want {
				t.Errorf("%s: %q is in effect, want %q", name, got, want)
			}
		}
	}
}

// TestStoredIsRestored: ConfigMaps of bounds and of objects in effect that somebody deletes or changes are restored at
// the next look, and a new process continues from what is stored. A memory that may not be read is not an empty one.
func TestStoredIsRestored(t *testing.T) {
	api := kubetest.Start(t)
	client := kubernetes.NewForConfigOrDie(api)
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		testkit.Must(t, err)
	}
	const namespace = "default"
	maps := client.CoreV1().ConfigMaps(namespace)
	own, ports := ownBroker(t), config.DevicePorts{First: 7775, Last: 7800}
	all := remotes.Objects{"c2": inEffect("c2", 1, 7775, "10.2.0.0/16"), "c3": inEffect("c3", 2, 7776, "10.3.0.0/16")}
	d := remotes.Decision{InEffect: all}
	saved := NewBounds(client, namespace, log)
	store := NewStore(client, namespace, "kept", log)
	saved.config.Every, store.config.Every = 0, 0
	save := func() {
		t.Helper()
		must(saved.Save(t.Context(), own, d, all, ports))
		must(store.Save(t.Context(), all))
	}
	read := func() string {
		t.Helper()
		a, err := maps.Get(t.Context(), bounds.RemotesIn, metav1.GetOptions{})
		must(err)
		b, err := maps.Get(t.Context(), "kept", metav1.GetOptions{})
		must(err)
		return fmt.Sprint(a.Data, b.Data)
	}
	save()
	want := read()
	for _, name := range []string{bounds.RemotesIn, "kept"} {
		must(maps.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	if save(); read() != want {
		t.Errorf("after they were deleted: %s\nwant %s", read(), want)
	}
	for _, name := range []string{bounds.RemotesIn, "kept"} {
		_, err := maps.Patch(t.Context(), name, "application/merge-patch+json",
			[]byte(`{"data":{"remotes.yaml":"remotes: []","remotes.json":"{}"}}`), metav1.PatchOptions{})
		must(err)
	}
	if save(); read() != want {
		t.Errorf("after they were changed: %s\nwant %s", read(), want)
	}
	for name, reported := range map[string][]string{bounds.RemotesIn: saved.Reports(), "kept": store.config.Reports()} {
		if len(reported) != 1 || !strings.Contains(reported[0], "ConfigMap "+name) {
			t.Errorf("reported of %s: %v", name, reported)
		}
	}

	// A new process, while the port of c2 in its status is that of c3. The apiserver fails at its first request, and
	// refuses the second.
	var asked atomic.Int32
	failing := rest.CopyConfig(api)
	failing.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			switch asked.Add(1) {
			case 1:
				return nil, errors.New("broken for the test")
			case 2:
				return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
			}
			return next.RoundTrip(r)
		})
	})
	next := NewBounds(kubernetes.NewForConfigOrDie(failing), namespace, log)
	must(next.Load(t.Context()))
	stolen := remotes.Objects{"c2": inEffect("c2", 1, 7776, "10.2.0.0/16"), "c3": all["c3"]}
	must(next.Save(t.Context(), own, remotes.Decision{InEffect: stolen}, stolen, ports))
	if read() != want || len(next.Problems()) != 1 {
		t.Errorf("with one port for two: %s\nwant %s\n%v", read(), want, next.Problems())
	}
	asked.Store(1)
	loaded, err := NewStore(kubernetes.NewForConfigOrDie(failing), namespace, "kept", log).Load(t.Context())
	if must(err); len(loaded) != 2 {
		t.Errorf("after a refusal these are loaded: %v", loaded)
	}
	// One object that cannot be read takes nothing from the others.
	_, err = maps.Patch(t.Context(), "kept", "application/merge-patch+json",
		[]byte(`{"data":{"remotes.json":"{\"c2\":{\"name\":\"c2\",\"created\":7},\"c3\":{\"name\":\"c3\"}}"}}`),
		metav1.PatchOptions{})
	must(err)
	loaded, err = NewStore(client, namespace, "kept", log).Load(t.Context())
	if must(err); len(loaded) != 1 || loaded["c3"].Name != "c3" {
		t.Errorf("loaded are %v", loaded)
	}
}
