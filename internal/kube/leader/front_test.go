package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func frontOf(t *testing.T, client kubernetes.Interface, name, address string,
	holds func(context.Context) error) *Front {
	t.Helper()
	ports := testkit.Value(Ports(map[string]string{"federation": ":8443", "peering": ":8444"}))(t)
	var ips []netip.Addr
	for one := range strings.SplitSeq(address, ",") {
		ips = append(ips, netip.MustParseAddr(one))
	}
	return NewFront(FrontOptions{
		Client: client, Pod: config.Pod{Namespace: "default", Name: name, Node: "n1", UID: types.UID(name), IPs: ips},
		Services: []string{"semaphore-broker"},
		Ports:    ports, Holds: holds, Ready: func() error { return nil },
		Farewell: 3 * time.Minute, // an apiserver that gets no CPU time may take more than a second
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
}

// leadsTo are the addresses in the slices of the Service.
func leadsTo(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	all := testkit.Value(client.DiscoveryV1().EndpointSlices("default").List(t.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=semaphore-broker"}))(t)
	var out []string
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	return strings.Join(slices.Sorted(slices.Values(out)), " ")
}

// A replica that was deposed by force does not take calls back, whenever it finds out: calls lead to one replica at any
// time.
func TestCallsGoToOneReplica(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(kubetest.Start(t))
	const ipv4 = discoveryv1.AddressTypeIPv4
	lead := func(f *Front) error { return f.lead(t.Context(), "semaphore-broker", ipv4) }
	expect := func(what, want string) {
		t.Helper()
		if got := leadsTo(t, client); got != want {
			t.Errorf("%s: calls lead to %q, want %q", what, got, want)
		}
	}
	holds := func(context.Context) error { return nil }
	first, second := frontOf(t, client, "first", "192.0.2.1", holds), frontOf(t, client, "second", "192.0.2.2", holds)
	for _, f := range []*Front{first, first, second} { // the second time changes nothing
		testkit.Must(t, lead(f))
	}
	expect("the second took over", "192.0.2.2")

	// It compares the slices, and the Lease names the other.
	first.Holds = func(context.Context) error { return errors.New("it names another") }
	if err := lead(first); err == nil {
		t.Error("a replica without the Lease has written")
	}
	expect("the first was deposed", "192.0.2.2")

	// It was stopped after it had read the Lease, and the other has written since.
	first.Holds = func(context.Context) error { return nil }
	testkit.Must(t, lead(first))
	second.Holds = func(context.Context) error { return lead(first.with("192.0.2.3")) }
	if err := lead(second); err == nil {
		t.Error("a version that was overwritten was written")
	}
	expect("the second was stopped in between", "192.0.2.3")

	// One that ends takes away its own address only.
	second.leave(t.Context())
	expect("a stranger left", "192.0.2.3")
	first.leave(t.Context())
	expect("the leader left", "")
}

// with is the same replica with another address.
func (f *Front) with(address string) *Front {
	o := f.FrontOptions
	o.Pod.IPs = []netip.Addr{netip.MustParseAddr(address)}
	return NewFront(o)
}

// A pod with addresses of both families is led to by both; one that lost a family empties the other's slice.
func TestFamilies(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(kubetest.Start(t))
	holds := func(context.Context) error { return nil }
	run := func(f *Front, want string) {
		t.Helper()
		stop := testkit.Run(t, f.Run)
		testkit.Eventually(t, 3*time.Minute, "calls lead to "+want, testkit.State(func() (bool, string) {
			got := leadsTo(t, client)
			return got == want, fmt.Sprintf("%q, %v", got, f.Problems())
		}))
		stop()
		if got := leadsTo(t, client); got != "" {
			t.Errorf("it has ended, and calls lead to %q", got)
		}
	}
	run(frontOf(t, client, "dual", "192.0.2.1,2001:db8::1", holds), "192.0.2.1 2001:db8::1")
	run(frontOf(t, client, "single", "2001:db8::2", holds), "2001:db8::2")
}

func TestPodOfEnvironment(t *testing.T) {
	set := map[string]string{"POD_NAME": "b-0", "POD_NAMESPACE": "semaphore", "POD_UID": "u", "NODE_NAME": "n1",
		"POD_IPS": "192.0.2.1,2001:db8::1"}
	for name, value := range set {
		t.Setenv(name, value)
	}
	p, err := PodOfEnvironment()
	if err != nil || len(p.IPs) != 2 || p.Name != "b-0" || p.Node != "n1" {
		t.Errorf("%+v, %v", p, err)
	}
	t.Setenv("NODE_NAME", "")
	if _, err := PodOfEnvironment(); err == nil || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("%v; want an error that names NODE_NAME", err)
	}
	t.Setenv("POD_IPS", "here")
	if _, err := PodOfEnvironment(); err == nil || !strings.Contains(err.Error(), "POD_IPS") {
		t.Errorf("%v; want an error that names POD_IPS", err)
	}
	t.Setenv("POD_IPS", "")
	if p, err := PodOfEnvironment(); err != nil || len(p.IPs) != 0 {
		t.Errorf("outside of a pod: %+v, %v", p, err)
	}
}
