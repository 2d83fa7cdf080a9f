package peers

import (
	"net/netip"
	"slices"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/mtu"
	"github.com/kube-semaphore/semaphore/agent/talk"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// oneDevice is a broker's wish for a device to c2, and to nothing else.
type oneDevice struct{}

func (oneDevice) Device(cluster string) *semaphorev1.Device {
	if cluster != "c2" {
		return nil
	}
	return &semaphorev1.Device{Cluster: cluster}
}
func (oneDevice) Endpoints(string, int) []netip.Addr          { return nil }
func (oneDevice) Nodes(_ string, keys []wgtypes.Key) []string { return make([]string, len(keys)) }

// A device whose MTU has changed is set, once for each change, and no other is.
func TestChangedMTUIsSetOnce(t *testing.T) {
	var set []string
	m := New(nil, oneDevice{}, events.New("c1"), func(cluster string) { set = append(set, cluster) }, func() {})
	at := func(mtuBytes int) mtu.Verdict { return mtu.Verdict{MTU: mtuBytes, Base: 1420} }
	m.reportChanges("c2", false, nil, talk.Counts{}, at(1420), at(1420))
	m.reportChanges("c2", true, nil, talk.Counts{}, at(1420), at(1420))
	m.reportChanges("c3", false, nil, talk.Counts{}, at(1420), at(1300))
	if len(set) != 0 {
		t.Errorf("set without need: %v", set)
	}
	m.reportChanges("c2", false, nil, talk.Counts{}, at(1420), at(1300))
	if !slices.Equal(set, []string{"c2"}) {
		t.Errorf("set: %v", set)
	}
}
