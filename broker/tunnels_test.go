package broker

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/peering"
)

// TestTheMTUIsReadRarely: the status of the RemoteClusters, which is computed each second, has all reports of agents
// summed every ten seconds.
func TestTheMTUIsReadRarely(t *testing.T) {
	f, read, now := &following{}, 0, time.Now()
	for second := range 30 {
		all := f.tunnelsNow(now.Add(time.Duration(second)*time.Second), func() map[string]peering.Tunnels {
			read++
			return map[string]peering.Tunnels{"c2": {MTU: 1000 + read}}
		})
		if got, want := all["c2"].MTU, 1001+second/10; got != want {
			t.Errorf("the MTU after %d s is %d, want %d", second, got, want)
		}
	}
	if read != 3 {
		t.Errorf("read %d times in 30 s", read)
	}
}
