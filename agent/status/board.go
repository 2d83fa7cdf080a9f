// Package status keeps what the agent's parts know, for its readers: the broker, Prometheus, a kubelet, a person.
//
// The Board owns no state but views that the parts put there and never change afterwards. Reports, metrics, readiness
// and status are functions of a View and of the session's. The package must not import the parts whose views it keeps
// but for their plain values: device, hostnet and keys put, and are never asked.
//
// Of the agent's packages it may import guard, problem, session and wireguard.
package status

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Device is what is known of one device of ours.
type Device struct {
	// Report is its part of the report to the broker; nil for a device of which only a failure is known.
	Report *semaphorev1.DeviceReport
	// Problem is what is not as desired, and Findings what of it has which code.
	Problem  string
	Findings []finding.Finding
	// Failure is set while the device could not be set, or not in full, and is tried again.
	Failure *Failure
	// Roamed is how many peers are left at an endpoint that they roamed to.
	Roamed int
	// Clear is set for a permissive remote.
	Clear *Clear
	// AdoptedFrom is the tool whose device this was.
	AdoptedFrom string
}

// Failure is why a device could not be set. Partial says that it works, but for some routes.
type Failure struct {
	Problem string
	Partial bool
}

// Clear is what is known of a permissive remote.
type Clear struct {
	// Peers is how many peers are not sent to through the tunnel.
	Peers int
	// Hold is why nobody new is sent to through the tunnel, if so.
	Hold string
}

// Node is what is known of the node around the devices.
type Node struct {
	// Findings are what is wrong with it.
	Findings     []finding.Finding
	ClearPackets uint64
	// Heard says that the broker of this stream has named its remotes, and Guarded that each of them is guarded.
	Heard, Guarded bool
	// Counts are those of the guard by cluster, and LastClear when packets last passed in the clear, as far as was
	// seen.
	Counts    map[string]guard.Count
	LastClear map[string]time.Time
}

// shownProblems is how many problems of a node are named.
const shownProblems = 20

// Problems are the lines of the findings: the first ones, and how many more there are.
func (n Node) Problems() []string {
	all := finding.Texts(n.Findings)
	if more := len(all) - shownProblems; more > 0 {
		return append(all[:shownProblems], fmt.Sprintf("and %d more", more))
	}
	return all
}

// View is what is known at one time. Nobody may change it.
type View struct {
	Devices map[string]Device
	// Orphans are our devices of which the broker says nothing, by cluster.
	Orphans map[string]*semaphorev1.DeviceReport
	Node    Node
	// Programmed says that all that a broker sent up to an end mark was programmed once, and Restored that all that was
	// restored was.
	Programmed, Restored bool
}

// Board keeps the newest View. The zero value is ready.
type Board struct {
	mu   sync.RWMutex
	view View
}

// Get returns the newest view.
func (b *Board) Get() View {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.view
}

// PutDevice replaces what is known of a device.
func (b *Board) PutDevice(cluster string, d Device) {
	b.update(func(v *View) {
		v.Devices = maps.Clone(v.Devices)
		if v.Devices == nil {
			v.Devices = map[string]Device{}
		}
		v.Devices[cluster] = d
	})
}

// DeleteDevice drops a device that was removed.
func (b *Board) DeleteDevice(cluster string) {
	b.update(func(v *View) {
		v.Devices, v.Orphans = maps.Clone(v.Devices), maps.Clone(v.Orphans)
		delete(v.Devices, cluster)
		delete(v.Orphans, cluster)
	})
}

// PutOrphans replaces the orphans.
func (b *Board) PutOrphans(orphans map[string]*semaphorev1.DeviceReport) {
	b.update(func(v *View) { v.Orphans = orphans })
}

// PutNode replaces what is known of the node.
func (b *Board) PutNode(n Node) { b.update(func(v *View) { v.Node = n }) }

// PutProgrammed records that all that a broker sent was programmed.
func (b *Board) PutProgrammed() { b.update(func(v *View) { v.Programmed = true }) }

// PutRestored records that all that was restored was programmed.
func (b *Board) PutRestored() { b.update(func(v *View) { v.Restored = true }) }

func (b *Board) update(change func(*View)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.view)
}
