package broker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// endpointStates records the consecutive states of a Service's endpoints over all its slices.
type endpointStates struct {
	mu      sync.Mutex
	slices  map[string][]discoveryv1.Endpoint
	history []string
}

func newEndpointStates() *endpointStates {
	return &endpointStates{slices: map[string][]discoveryv1.Endpoint{}}
}

// saw records the newest endpoints of a slice.
func (s *endpointStates) saw(slice string, endpoints []discoveryv1.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slices[slice] = endpoints
	var all []string
	for _, endpoints := range s.slices {
		for _, e := range endpoints {
			c := e.Conditions
			all = append(all, fmt.Sprintf("%s ready=%t serving=%t terminating=%t", e.Addresses[0],
				ptr.Deref(c.Ready, true), ptr.Deref(c.Serving, true), ptr.Deref(c.Terminating, false)))
		}
	}
	slices.Sort(all)
	now := strings.Join(all, ", ")
	if len(s.history) == 0 || s.history[len(s.history)-1] != now {
		s.history = append(s.history, now)
	}
}

func (s *endpointStates) states() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// follow watches the slices of a Service until the test ends.
func (s *endpointStates) follow(t *testing.T, kube kubernetes.Interface, namespace, service string) {
	t.Helper()
	w := testkit.Value(kube.DiscoveryV1().EndpointSlices(namespace).Watch(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			switch slice, ok := event.Object.(*discoveryv1.EndpointSlice); {
			case !ok:
			case event.Type == watch.Deleted:
				s.saw(slice.Name, nil)
			default:
				s.saw(slice.Name, slice.Endpoints)
			}
		}
	}()
	t.Cleanup(func() {
		w.Stop()
		<-done
	})
}

// A rolling update, as the source's EndpointSlice controller writes it: each new endpoint becomes ready before an old
// one terminates, and an old one terminates before it is removed. The mirror has only states of the source, in order;
// closely following changes may be merged. If the source pauses, the mirror has each of its states: a terminating
// endpoint that still serves is the same in the mirror. Labels of the source that the default list allows are on the
// mirror, and an Event in the source's cluster says why a Service has none.
func TestRollingUpdateInOrder(t *testing.T) {
	cfg1 := kubetest.Start(t)
	w, there := newPair(t, cfg1, "services", "remotes: [{name: c2, podSubnets: [10.2.0.0/16]}]")
	c1, c2 := w.c1, w.c2
	w.start(cfg1, there)
	offer := func(t *testing.T, name string, labels map[string]string) {
		t.Helper()
		labels["mirror.semaphore.uw.io/mirror-service"] = "true"
		kubetest.Create(t, c2.CoreV1().Services("shop"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
	}

	for _, c := range []struct {
		name string
		// pause means that the test waits for each state in the mirror before it writes the next one.
		pause bool
	}{{"paused", true}, {"at once", false}} {
		t.Run(c.name, func(t *testing.T) {
			service := "web-" + strings.ReplaceAll(c.name, " ", "-")
			offer(t, service, map[string]string{})
			source, mirror := newEndpointStates(), newEndpointStates()
			mirror.follow(t, c1, "semaphore", "c2-shop-73736d-"+service)
			u := &update{t: t, kube: c2, service: service, source: source, mirror: mirror, pause: c.pause}
			u.roll(4)
			eventually(t, "the mirror has the last state", u.caughtUp)
			u.compare(t)
		})
	}
	// The view of the developer of a Service of c2, in both clusters.
	t.Run("labels", func(t *testing.T) {
		offer(t, "labelled", map[string]string{"app.kubernetes.io/name": "web", "team": "shop"})
		eventually(t, "the mirror has the label that the default list allows, and no other", func() (bool, string) {
			s, err := c1.CoreV1().Services("semaphore").Get(t.Context(), "c2-shop-73736d-labelled", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			_, team := s.Labels["team"]
			return s.Labels["app.kubernetes.io/name"] == "web" && !team, fmt.Sprint(s.Labels)
		})
	})
	t.Run("a name that is too long", func(t *testing.T) {
		long := strings.Repeat("x", 50)
		offer(t, long, map[string]string{})
		eventually(t, "an Event on the Service, in its own cluster", func() (bool, string) {
			all, err := c2.EventsV1().Events("shop").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			var notes []string
			for _, e := range all.Items {
				notes = append(notes, fmt.Sprint(e.Regarding.Kind, " ", e.Regarding.Name, " ", e.Reason, ": ", e.Note))
			}
			return slices.ContainsFunc(notes, func(note string) bool {
				return strings.HasPrefix(note, "Service "+long+" Refused: cluster c1: ") &&
					strings.Contains(note, "c2-shop-73736d-"+long)
			}), strings.Join(notes, "\n")
		})
	})
}

// update is a rolling update of a Service of c2. Its old endpoints are in one slice, and its new ones in another.
type update struct {
	t              *testing.T
	kube           kubernetes.Interface
	service        string
	source, mirror *endpointStates
	pause          bool
	slices         [2]*discoveryv1.EndpointSlice
}

// roll replaces n endpoints one after the other.
func (u *update) roll(n int) {
	u.t.Helper()
	is := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	for i := range n {
		u.set(0, fmt.Sprint("10.2.0.", i+1), is(true, true, false))
	}
	for i := range n {
		before, after := fmt.Sprint("10.2.0.", i+1), fmt.Sprint("10.2.1.", i+1)
		u.set(1, after, is(false, false, false))
		u.set(1, after, is(true, true, false))
		u.set(0, before, is(false, true, true))
		u.set(0, before, is(false, false, true))
		u.remove(0, before)
	}
}

func (u *update) set(slice int, address string, conditions discoveryv1.EndpointConditions) {
	u.t.Helper()
	endpoint := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: conditions}
	u.write(slice, func(all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
		i := slices.IndexFunc(all, func(e discoveryv1.Endpoint) bool { return e.Addresses[0] == address })
		if i < 0 {
			return append(all, endpoint)
		}
		all[i] = endpoint
		return all
	})
}

func (u *update) remove(slice int, address string) {
	u.t.Helper()
	u.write(slice, func(all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
		return slices.DeleteFunc(all, func(e discoveryv1.Endpoint) bool { return e.Addresses[0] == address })
	})
}

// write changes a slice, records the state of the source and, with pause, waits until the mirror has it.
func (u *update) write(n int, change func([]discoveryv1.Endpoint) []discoveryv1.Endpoint) {
	u.t.Helper()
	api := u.kube.DiscoveryV1().EndpointSlices("shop")
	slice := u.slices[n]
	if slice == nil {
		slice = &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(u.service, "-", n), Labels: map[string]string{
				discoveryv1.LabelServiceName: u.service, "mirror.semaphore.uw.io/mirror-service": "true",
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{
				Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080)),
			}},
		}

		slice = kubetest.Create(u.t, api, slice)
	}
	slice = slice.DeepCopy()
	slice.Endpoints = change(slice.Endpoints)

	u.slices[n] = kubetest.Update(u.t, api, slice)
	u.source.saw(slice.Name, u.slices[n].DeepCopy().Endpoints)
	if u.pause {
		eventually(u.t, "the mirror follows", u.caughtUp)
	}
}

// caughtUp reports whether the mirror's last state is the source's.
func (u *update) caughtUp() (bool, string) {
	there, here := u.source.states(), u.mirror.states()
	if len(here) == 0 {
		return false, "no slice"
	}
	return here[len(here)-1] == there[len(there)-1], here[len(here)-1] + "; want " + there[len(there)-1]
}

// compare checks that the mirror's states are states of the source in order, and all of them with pause.
func (u *update) compare(t *testing.T) {
	there, here := u.source.states(), slices.DeleteFunc(u.mirror.states(), func(s string) bool { return s == "" })
	if u.pause && !slices.Equal(here, there) {
		t.Errorf("the mirror's states are\n%s\nand the source's\n%s", strings.Join(here, "\n"), strings.Join(there, "\n"))
	}
	next := 0
	for _, state := range here {
		i := slices.Index(there[next:], state)
		if i < 0 {
			t.Fatalf("the mirror has the state\n%s\nwhich the source did not have after\n%s", state, there[max(next-1, 0)])
		}
		next += i + 1
	}
	t.Logf("%d states of the source, %d of the mirror", len(there), len(here))
}
