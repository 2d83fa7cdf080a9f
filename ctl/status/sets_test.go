package status

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbSets: the output for sets in the desired state, for one that differs, and for none.
func TestVerbSets(t *testing.T) {
	var asked *semaphorev1.ListSetsRequest
	web, odd := ctltest.WebSet(), ctltest.WebSet()
	odd.Name, odd.Connected = "we\x1bb", false
	odd.Objects = []*semaphorev1.SetObject{{Name: "c2-shop-web", Desired: 2, Present: 1}}
	odd.Missing, odd.Leftover = []string{"10.2.0.6"}, []string{"10.2.0.7", "10.2.0.8", "10.2.0.9", "10.2.0.10"}
	odd.LastHeard, web.LastHeard = nil, nil
	var sets []*semaphorev1.PolicySet
	broker := ctltest.BrokerWith(t, func(req *semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		asked = req
		return sets, nil
	})
	s := ctltest.NewSession(t)
	s.Call("get sets", "--socket", broker)
	sets = []*semaphorev1.PolicySet{web}
	s.Call("get sets c2/shop --pods", "--socket", broker)
	s.Call("get sets c2/shop/web --ip 10.2.0.5", "--socket", broker)
	if asked.Cluster != "c2" || asked.Namespace != "shop" || asked.Name != "web" || asked.Address != "10.2.0.5" {
		t.Errorf("asked for %v", asked)
	}
	sets = []*semaphorev1.PolicySet{odd, web}
	s.Call("get sets", "--socket", broker)
	s.Golden("sets", nil)
}

// TestBigSets: a set that is too large for one message arrives completely.
func TestBigSets(t *testing.T) {
	const pods = 60_000
	big := ctltest.WebSet()
	big.Pods = nil
	for i := range pods {
		big.Pods = append(big.Pods, &semaphorev1.SetPod{Name: fmt.Sprintf("web-7d9f8b6c5d-%05d", i),
			Uid: fmt.Sprintf("%036d", i), Ips: []string{fmt.Sprintf("10.2.%d.%d", i/250, i%250)}})
	}
	other := ctltest.WebSet()
	other.Name = "zoo"
	socket := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		copied := ctltest.WebSet()
		copied.Pods = slices.Clone(big.Pods)
		return []*semaphorev1.PolicySet{copied, other}, nil
	})
	found, err := fleet.AskSets(t.Context(), &fleet.Target{Access: &fleet.Access{}, Sockets: []string{socket}},
		&semaphorev1.ListSetsRequest{}, time.Minute)
	must(t, err)
	if len(found.Sets) != 2 || len(found.Sets[0].Pods) != pods || len(found.Sets[1].Pods) != 2 ||
		found.Sets[0].Pods[pods-1].Name != big.Pods[pods-1].Name {
		t.Errorf("%d sets, of which the first has %d pods", len(found.Sets), len(found.Sets[0].Pods))
	}
}

func TestSetsWrongUse(t *testing.T) {
	standby := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		return nil, grpcstatus.Error(codes.FailedPrecondition, "standby: b leads: ask the leader")
	})
	without := ctltest.BrokerWith(t, nil)
	ctltest.Refuses(t, map[string]string{
		"get sets c2/shop/web/x --socket " + standby:                  "CLUSTER/NAMESPACE/NAME",
		"get sets c2//web --socket " + standby:                        "CLUSTER/NAMESPACE/NAME",
		"get sets -o wide --socket " + standby:                        "table, json or yaml",
		"get sets --socket " + standby:                                "ask the leader",
		"get sets --socket " + without:                                "asked is a broker with the policy feature",
		"get sets --address 192.0.2.1:1 --part exporter --cluster c1": "only a broker has sets",
		"explain --from 10.2.0.5 --to db --socket " + standby:         "--to \"db\": use NAMESPACE/POD",
		"explain --from web --to default/db --socket " + standby:      "--from \"web\": use CLUSTER/NAMESPACE/POD",
		"explain --from c2/shop/web":                                  "give FROM and TO, or --from and --to",

		"explain --from c2/shop/web --to default/db --port http --socket " + standby:    "--port \"http\"",
		"explain --from c2/shop/web --to default/db --port 80/ICMP --socket " + standby: "--port \"80/ICMP\"",
	})
}
