package agent

import (
	"log/slog"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
)

// adopt notes that a device of semaphore-wireguard's was taken over; err is what could not be done of it. It bears our
// marks from then on, so that this is said once for each device.
func (a *agent) adopt(cluster, device string, err error) {
	detail := "from " + config.SemaphoreWireGuard
	if err != nil {
		detail += ", and not all as wanted: " + err.Error()
	}
	slog.Info("device taken over", "device", device, "how", detail)
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "adopt", Detail: detail})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.adopted[cluster] = config.SemaphoreWireGuard
}
