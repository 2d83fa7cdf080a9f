package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/waiting"
)

const (
	// FullCheck is the interval at which everything is checked, also the parts that checks of single devices leave out.
	FullCheck = 30 * time.Second
	// HealGap is the minimal time between two checks of a device that another program changes, so that two programs
	// that change it in turn do not use the processor all the time.
	HealGap = 250 * time.Millisecond
	// A failed device is tried again after MinRetry, then after twice as long each time up to maxRetry, with jitter.
	MinRetry = time.Second
	maxRetry = 30 * time.Second
)

// WireGuard sends no event for a change of a peer or a port, and reading a complete device is the cheapest way to find
// one. A device is checked again after minCheck, so that a change is healed within a second, also a changed endpoint of
// a peer with traffic, which takes two checks, the second after ProofTime. With more than thirty devices the
// interval is checkPerDevice for each, and each of the node's peers beyond fewPeers adds checkPerPeer: the cost of a
// check grows with the peers, and would exceed 2 % of a processor (BenchmarkPolling).
const (
	minCheck       = 300 * time.Millisecond
	fewPeers       = 1000
	checkPerPeer   = 600 * time.Microsecond
	checkPerDevice = 10 * time.Millisecond
)

// checkInterval returns the time between two checks of a device on a node with these numbers of devices and peers.
func checkInterval(devices, peers int) time.Duration {
	few := max(minCheck, time.Duration(max(0, devices-1))*checkPerDevice)
	return min(few+time.Duration(max(0, peers-fewPeers))*checkPerPeer, FullCheck)
}

// heals spaces how often the agent heals a device that another program changes. It cannot win against a program that
// writes all the time.
var heals = waiting.Rule{Free: 10, Least: time.Second, Most: 30 * time.Second, Calm: time.Minute}

// Changes are possible differences from the desired state: devices, by cluster, and single peers, by cluster and node.
type Changes struct {
	Networks map[string]bool
	Peers    map[string]map[string]bool
}

func NewChanges() Changes {
	return Changes{Networks: map[string]bool{}, Peers: map[string]map[string]bool{}}
}

func (c Changes) Peer(cluster, node string) {
	if c.Peers[cluster] == nil {
		c.Peers[cluster] = map[string]bool{}
	}
	c.Peers[cluster][node] = true
}

func (c Changes) Add(other Changes) {
	maps.Copy(c.Networks, other.Networks)
	for cluster, nodes := range other.Peers {
		for node := range nodes {
			c.Peer(cluster, node)
		}
	}
}

func (c Changes) Empty() bool { return len(c.Networks) == 0 && len(c.Peers) == 0 }

// Work is waiting work: changes, and the devices to heal because of an event of the kernel, which the agent itself may
// have caused.
type Work struct {
	Changes
	Heal map[string]bool
}

func NewWork() Work { return Work{NewChanges(), map[string]bool{}} }

// Round is the work due now, by cluster: devices to set, peers to set on other devices, and further devices to check.
type Round struct {
	Devices []string
	Peers   map[string]map[string]bool
	Checks  []string
}

// Scheduler decides which devices of a node are due, and when the next one is. In: the events of a device, with the
// time. Out: rounds of work. It owns the rules of when a device is checked, healed and tried again, and the queue of
// waiting work. The zero value cannot be used. One goroutine uses it.
type Scheduler struct {
	devices map[string]*scheduled
	// deferred waits until its devices may be changed again.
	deferred Work
	// jitter shortens a delay by a random part of up to a half.
	jitter func(time.Duration) time.Duration
}

type scheduled struct {
	// checked is when the device was last set or checked, and healed how often another program's change was lately.
	checked time.Time
	healed  waiting.Repeats
	// set means that it was set as desired, with this number of peers.
	set   bool
	peers int
	// within limits the time until the next check; 0 for no limit.
	within time.Duration
	// failures counts failures in a row; partial means that the device works except for some of its routes, as on a
	// node without IPv6. retryAt is when it is tried again.
	failures int
	partial  bool
	retryAt  time.Time
}

// pause returns how long a device must be left alone after it was last healed.
func (d *scheduled) pause(now time.Time) time.Duration {
	if now.Sub(d.healed.Last) >= heals.Calm {
		return 0
	}
	return heals.After(d.healed.Times)
}

func (d *scheduled) contest(now time.Time) error {
	pause := d.pause(now)
	if pause == 0 {
		return nil
	}
	return fmt.Errorf("another program keeps changing the device: the agent healed it %d times, the next time after %s; "+
		"find who does, or stop the agent", d.healed.Times, pause)
}

func NewScheduler() *Scheduler {
	return &Scheduler{
		devices: map[string]*scheduled{}, deferred: NewWork(),
		jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d/2) },
	}
}

func (s *Scheduler) device(cluster string) *scheduled {
	d := s.devices[cluster]
	if d == nil {
		d = &scheduled{}
		s.devices[cluster] = d
	}
	return d
}

func (s *Scheduler) Checked(cluster string, now time.Time) { s.device(cluster).checked = now }

// Report records that a device is known, and its number of peers. set means that it was set as desired: then it is
// polled.
func (s *Scheduler) Report(cluster string, peers int, set bool) {
	d := s.device(cluster)
	d.peers, d.set = peers, set
}

func (s *Scheduler) CheckWithin(cluster string, limit time.Duration) {
	s.device(cluster).within = limit
}

// Failed records that a device could not be set; partial, that only some of its routes could not.
func (s *Scheduler) Failed(cluster string, now time.Time, partial bool) {
	d := s.device(cluster)
	d.partial = partial
	d.retryAt = now.Add(s.jitter(min(MinRetry<<min(d.failures, 10), maxRetry)))
	d.failures++
}

// Vanished records, after Failed, that the device was deleted while the agent set it. The first retry is immediate:
// otherwise two deletions in a row would take longer than a heal may.
func (s *Scheduler) Vanished(cluster string, now time.Time) {
	if d := s.device(cluster); d.failures == 1 {
		d.retryAt = now
	}
}

func (s *Scheduler) Succeeded(cluster string) { s.device(cluster).failures = 0 }

func (s *Scheduler) Broken(cluster string) bool {
	d := s.devices[cluster]
	return d != nil && d.failures > 0 && !d.partial
}

func (s *Scheduler) AnyBroken() bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(s.devices)), s.Broken)
}

// Failing reports whether a device is tried again because it could not be set, or not in full.
func (s *Scheduler) Failing(cluster string) bool {
	d := s.devices[cluster]
	return d != nil && d.failures > 0
}

func (s *Scheduler) Set(cluster string) bool {
	d := s.devices[cluster]
	return d != nil && d.set && !s.Broken(cluster)
}

func (s *Scheduler) Healed(cluster string, now time.Time) { s.device(cluster).healed.Add(heals, now) }

// Contest returns an error while another program keeps changing a device; else nil.
func (s *Scheduler) Contest(cluster string, now time.Time) error {
	return s.device(cluster).contest(now)
}

func (s *Scheduler) Forget(cluster string) { delete(s.devices, cluster) }

// earliestRecheck returns when a device may be checked because of an event that the agent itself may have caused, or
// that another program causes repeatedly.
func (s *Scheduler) earliestRecheck(cluster string, now time.Time) time.Time {
	d := s.device(cluster)
	return d.checked.Add(max(HealGap, d.pause(now)))
}

// nextCheck returns when to check a device without an event; zero for one that is tried again anyway, or was not set
// yet.
func (s *Scheduler) nextCheck(cluster string, now time.Time) time.Time {
	if !s.Set(cluster) {
		return time.Time{}
	}
	peers := 0
	for _, d := range s.devices {
		peers += d.peers
	}
	d := s.devices[cluster]
	every := checkInterval(len(s.devices), peers)
	if d.within > 0 {
		every = min(every, d.within)
	}
	return d.checked.Add(max(every, d.pause(now)))
}

// Take returns the due work, and keeps the rest. In a full check all these clusters are due, and all failed devices.
func (s *Scheduler) Take(now time.Time, work Work, full bool, clusters []string) Round {
	s.deferred.Add(work.Changes)
	maps.Copy(s.deferred.Heal, work.Heal)
	waiting := s.deferred
	s.deferred = NewWork()
	due, peers := map[string]bool{}, map[string]map[string]bool{}
	early := func(cluster string) bool { return now.Before(s.earliestRecheck(cluster, now)) }
	for cluster := range waiting.Networks {
		if s.Broken(cluster) && early(cluster) {
			s.deferred.Networks[cluster] = true
		} else {
			due[cluster] = true
		}
	}
	for cluster, nodes := range waiting.Peers {
		if s.Broken(cluster) && early(cluster) {
			s.deferred.Peers[cluster] = nodes
		} else {
			peers[cluster] = nodes
		}
	}
	for cluster := range waiting.Heal {
		switch {
		case s.Broken(cluster): // it is tried again anyway, and the kernel reports each attempt
		case early(cluster):
			s.deferred.Heal[cluster] = true
		default:
			due[cluster] = true
		}
	}
	for cluster, d := range s.devices {
		if d.failures > 0 && (full || !now.Before(d.retryAt)) {
			due[cluster] = true
		}
	}
	if full {
		for _, cluster := range clusters {
			due[cluster] = true
		}
	}
	for cluster := range due {
		delete(peers, cluster)
	}
	round := Round{Devices: slices.Sorted(maps.Keys(due)), Peers: peers}
	for cluster := range s.devices {
		at := s.nextCheck(cluster, now)
		if !at.IsZero() && !now.Before(at) && !due[cluster] && peers[cluster] == nil {
			round.Checks = append(round.Checks, cluster)
		}
	}
	slices.Sort(round.Checks)
	return round
}

func (s *Scheduler) Deferred() bool { return len(s.deferred.Networks) > 0 }

func (s *Scheduler) Next(now time.Time) time.Time {
	var next time.Time
	for cluster := range s.deferred.Heal {
		next = Earlier(next, s.earliestRecheck(cluster, now))
	}
	for cluster, d := range s.devices {
		next = Earlier(next, s.nextCheck(cluster, now))
		if d.failures == 0 {
			continue
		}
		next = Earlier(next, d.retryAt)
		if s.deferred.Networks[cluster] || s.deferred.Peers[cluster] != nil {
			next = Earlier(next, s.earliestRecheck(cluster, now))
		}
	}
	return next
}

// Earlier returns the earlier of two times; zero is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
