// Package status holds the current state of the agent's parts for its readers: the broker, Prometheus, a kubelet, a
// person.
//
// The Board owns immutable views that the parts put there. Reports, metrics, readiness and status are functions of a
// View and of the stream's View. The metrics of WireGuard devices are made from devices that the caller of
// DeviceFamilies read; those of semaphore-wireguard keep their names and labels, so that its users' dashboards still
// work.
package status

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Device struct {
	// Report is its part of the report to the broker; nil if only a failure is known of the device.
	Report *semaphorev1.DeviceReport
	// Problem is the difference from the desired state, and Findings are its parts that have a code.
	Problem  string
	Findings []finding.Finding
	// Failure is set while the device could not be set, completely or in part, and is tried again.
	Failure *Failure
	// Roamed is how many peers are at an endpoint to which they roamed.
	Roamed int
	// Clear is set for a permissive remote.
	Clear *Clear
	// AdoptedFrom is the tool from which the agent adopted the device.
	AdoptedFrom string
}

// Failure is why a device could not be set. Partial means that only some routes could not.
type Failure struct {
	Problem string
	Partial bool
}

type Clear struct {
	// Peers is how many peers packets do not reach through the tunnel.
	Peers int
	// Hold is why packets to no further node enter the tunnel; empty for no reason.
	Hold string
}

type Node struct {
	Findings []finding.Finding
	// Heard means that the broker of this stream has named its remotes, and Guarded that each of them is guarded.
	Heard, Guarded bool
	// Counts are the guard's counters by cluster, and LastClear is when packets last passed in the clear, as far as was
	// observed.
	Counts    map[string]GuardCount
	LastClear map[string]time.Time
}

// GuardCount is how many packets of a remote were dropped since it is guarded.
type GuardCount struct {
	// Out would have left without the device, In would have entered without it.
	Out, In uint64
	// Of the tunnel's own packets, Sent were addressed to a host that is no node of the remote, and Arrived came from
	// one. Tunnel means that such packets are dropped.
	Tunnel        bool
	Sent, Arrived uint64
	// PassedOut and PassedIn are the packets of a permissive remote that bypassed the device, since it is permissive.
	Permissive          bool
	PassedOut, PassedIn uint64
}

const shownProblems = 20

// ClearPackets is how many packets of all remotes were dropped outside of their devices.
func (n Node) ClearPackets() (all uint64) {
	for _, c := range n.Counts {
		all += c.Out + c.In
	}
	return all
}

// Problems returns the lines of the findings: the first ones, and how many more there are.
func (n Node) Problems() []string {
	all := finding.Texts(n.Findings)
	if more := len(all) - shownProblems; more > 0 {
		return append(all[:shownProblems], fmt.Sprintf("and %d more", more))
	}
	return all
}

func (n Node) with(code finding.Code) (found []finding.Finding) {
	for _, f := range n.Findings {
		if f.Code == code {
			found = append(found, f)
		}
	}
	return found
}

// View is the state at one time. It is immutable.
type View struct {
	Devices map[string]Device
	// Orphans are devices of the agent that the broker does not name, by cluster.
	Orphans map[string]*semaphorev1.DeviceReport
	Node    Node
	// Traffic are the counts by ClusterIP.
	Traffic []*semaphorev1.ServiceTraffic
	// Programmed means that everything up to an end mark of a broker, or everything restored, was programmed once.
	Programmed bool
}

// Board holds the newest View. The zero value is ready to use.
type Board struct {
	mu   sync.RWMutex
	view View
}

func (b *Board) Get() View {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.view
}

func (b *Board) PutDevice(cluster string, d Device) {
	b.Update(func(v *View) {
		v.Devices = maps.Clone(v.Devices)
		if v.Devices == nil {
			v.Devices = map[string]Device{}
		}
		v.Devices[cluster] = d
	})
}

func (b *Board) DeleteDevice(cluster string) {
	b.Update(func(v *View) {
		v.Devices, v.Orphans = maps.Clone(v.Devices), maps.Clone(v.Orphans)
		delete(v.Devices, cluster)
		delete(v.Orphans, cluster)
	})
}

func (b *Board) PutNode(n Node) { b.Update(func(v *View) { v.Node = n }) }

// Update changes the view. It must replace maps, and not change them: readers have earlier views.
func (b *Board) Update(change func(*View)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.view)
}
