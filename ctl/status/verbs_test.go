package status

import (
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbSets: the output for sets in the desired state, and for one that differs.
func TestVerbSets(t *testing.T) {
	odd := ctltest.WebSet()
	odd.Name, odd.Namespace, odd.Connected = "db", "pay", false
	odd.Objects = []*semaphorev1.SetObject{{Name: "c2-pay-db", Wanted: 2, Present: 1}}
	odd.Missing, odd.Leftover = []string{"10.2.0.6"}, []string{"10.2.0.7", "10.2.0.8", "10.2.0.9", "10.2.0.10"}
	web := ctltest.WebSet()
	odd.LastHeard, web.LastHeard = nil, nil
	var sets []*semaphorev1.PolicySet
	broker := ctltest.BrokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) {
		return sets,
			nil
	})
	s := ctltest.NewSession(t)
	s.Call("get sets", "--socket", broker)
	sets = []*semaphorev1.PolicySet{web}
	s.Call("get sets c2/shop --pods", "--socket", broker)
	sets = []*semaphorev1.PolicySet{odd, web}
	s.Call("get sets", "--socket", broker)
	s.Call("get sets c2//web", "--socket", broker)
	s.Golden("sets", nil)
}
