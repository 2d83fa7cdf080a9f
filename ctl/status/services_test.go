package status

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestServices: each Service of a remote has the state of what the broker makes of it, and one that cannot be written
// is a fault.
func TestServices(t *testing.T) {
	failing := true
	places := func(of *semaphorev1.ObjectKey) []debug.Place {
		name := of.GetNamespace() + "/" + of.GetName()
		mirror := "service semaphore/c2-" + of.GetNamespace() + "-73736d-" + of.GetName()
		write := debug.Place{Hop: debug.HopWrite, Object: mirror, Cluster: "c2", State: debug.PlaceDone,
			Detail: "IP 10.1.0.9"}
		if of.GetName() == "pay" && failing {
			write.State, write.Detail = debug.PlaceFailed, "quota\x1b[2J"
		}
		return []debug.Place{
			{Hop: debug.HopAccept, Object: "service " + name, Cluster: "c2", State: debug.PlaceDone, Detail: "revision 1"},
			{Hop: debug.HopPlan, Object: mirror, Cluster: "c2", State: debug.PlaceDone,
				Detail: "mirror; c2: 2 of 2 endpoints ready"},
			write,
		}
	}
	locate := func(_ context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
		out := &debug.Places{}
		if req.GetCluster() == "" {
			for _, p := range places(req.GetObject()) {
				out.Add(p)
			}
			return &out.LocateResponse, nil
		}
		for _, name := range []string{"shop/echo", "shop/echo-2", "shop/pay"} {
			like := req.GetObject()
			if strings.HasPrefix(name, like.GetNamespace()+"/"+like.GetName()) || like.GetNamespace() == "" {
				out.Add(debug.Place{Hop: debug.HopAccept, Object: "service " + name, Cluster: req.GetCluster(),
					State: debug.PlaceDone})
			}
		}
		return &out.LocateResponse, nil
	}
	broker := ctltest.ServeAnswers(t, debug.NewRecorder("broker", "c1", ""), ctltest.Well, debug.Answers{Locate: locate})
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), ctltest.Well)
	s := ctltest.NewSession(t)
	s.Call("get services", "--socket", broker, "--socket", agent)
	s.Call("get services shop/echo -o wide", "--socket", broker)
	standby := ctltest.ServeAnswers(t, debug.NewRecorder("broker", "c3", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Standby: true, Leader: "semaphore-broker-a"}
	}, debug.Answers{Locate: locate})
	if out, code, err := ctltest.Run(t, "get", "services", "--socket", standby, "--socket", broker); code != 2 ||
		!strings.Contains(out, "shop/echo-2") || !strings.Contains(err.Error(), "shop/pay") ||
		!strings.Contains(err.Error(), "this broker is a standby") {
		t.Errorf("one broker does not know: %d, %v\n%s", code, err, out)
	}
	failing = false
	s.Call("get services shop -o json", "--socket", broker)
	s.Call("get services other", "--socket", broker)
	s.Golden("services", regexp.MustCompile(`revision|endpoints ready; IP`)) // what is wide or for a program
	if _, code, err := ctltest.Run(t, "get", "services", "--socket", agent); code != 1 ||
		!strings.Contains(err.Error(), "none of the parts asked is a broker") {
		t.Errorf("an agent: %d, %v", code, err)
	}
}

// TestNodes: a node without its agent, or with a problem, is a fault.
func TestNodes(t *testing.T) {
	nodes := []*semaphorev1.NodeStatus{{Node: "n1", Attached: true, Devices: 1},
		{Node: "n2", WithoutEncryption: "labelled"}}
	broker := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Ready: true, Nodes: nodes}
	})
	s := ctltest.NewSession(t)
	s.Call("get nodes", "--socket", broker)
	nodes = append(nodes, &semaphorev1.NodeStatus{Node: "n3", Problems: []string{"the device is\x1b[2J away"}})
	s.Call("get nodes", "--socket", broker)
	nodes = nil
	s.Call("get nodes", "--socket", broker)
	s.Golden("nodes", nil)
}

// TestABrokerThatDoesNotKnow: a leader that does not work yet, and a standby, have no nodes, Services and sets to show,
// and say so; that is not their absence.
func TestABrokerThatDoesNotKnow(t *testing.T) {
	for says, status := range map[string]*semaphorev1.GetStatusResponse{
		"this broker does not work yet: not ready": {},
		"this broker is a standby: ask the leader": {Standby: true, Leader: "semaphore-broker-a"},
	} {
		broker := ctltest.ServeAnswers(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
			return judged(proto.CloneOf(status))
		}, debug.Answers{Sets: func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) { return nil, nil }})
		for _, verb := range []string{"nodes", "services", "sets"} {
			if out, code, err := ctltest.Run(t, "get", verb, "--socket", broker); code != 1 || out != "" ||
				!strings.Contains(err.Error(), says) {
				t.Errorf("get %s: exit code %d, %v\n%s", verb, code, err, out)
			}
		}
	}
}

// TestOwnNameOfAService: the own name of a Service has a line of its own, with where it leads and what is written for
// it.
func TestOwnNameOfAService(t *testing.T) {
	const global, own = "service semaphore/gl-shop-73736d-web", "service shop/web"
	got := describe("c1", "shop/web", []*semaphorev1.Place{
		{Hop: debug.HopPlan, Object: global, State: debug.PlaceDone, Detail: "of several clusters"},
		{Hop: debug.HopWrite, Object: global, State: debug.PlaceDone, Detail: "IP 10.1.0.9"},
		{Hop: debug.HopPlan, Object: own, State: debug.PlaceDone, Detail: "own name: failover, served by c2"},
		{Hop: debug.HopWrite, Object: own, State: debug.PlaceWaiting, Detail: "slices of other clusters: 0"},
	})
	want := []service{{At: "c1", Service: "shop/web", Object: "semaphore/gl-shop-73736d-web", State: "done",
		Detail: "of several clusters; IP 10.1.0.9"}, {At: "c1", Service: "shop/web", State: "waiting",
		Detail: "own name: failover, served by c2; slices of other clusters: 0"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
