package device

// A Rotator decides when the node's private keys are replaced, and replaces them in their files.
//
// The Rotator owns the key files, the Schedule, and the orders of brokers, under a lock that it never
// holds during a call to another package. In: orders (Order, Renew, SetUndelivered). Out: keys (Key, Replace) and
// decisions (Due). It touches no device: the Reconciler sets a key on its device.
//
// The Schedule decides when a key is due: because an operator requested it, or because of its age. It has no clock, no
// file and no device, and never waits: if a due key cannot be replaced yet, its caller asks again later.

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxWithin bounds how long a broker may delay a rotation.
const maxWithin = 24 * time.Hour

// Rotator owns the private keys of a node. One goroutine calls Key and Replace; the rest is safe for concurrent use.
type Rotator struct {
	own    string // the agent's cluster
	files  *kernel.Keys
	events *events.Sink

	mu sync.Mutex
	// keys are the keys as they were last read, by cluster.
	keys     map[string]kernel.StoredKey
	schedule Schedule
	// undelivered are the remotes that would not get a new key, and why; heard means that the broker of this stream has
	// named them. waiting are the clusters whose due key waits for that.
	undelivered map[string]string
	heard       bool
	waiting     map[string]string

	rotations            *prometheus.CounterVec
	keyCreated, problems *prometheus.GaugeVec
}

func NewRotator(own, dir string, sink *events.Sink) *Rotator {
	return &Rotator{
		own: own, files: kernel.NewKeys(dir), events: sink,
		keys: map[string]kernel.StoredKey{}, schedule: Schedule{},
		undelivered: map[string]string{}, waiting: map[string]string{},
		rotations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_agent_key_rotations_total",
			Help: "Times that the agent replaced a device's private key, because of its age or on an operator's order.",
		}, []string{"cluster", "device"}),
		keyCreated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_key_created_timestamp_seconds",
			Help: "Unix time of the creation of a device's private key.",
		}, []string{"cluster", "device"}),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "semaphore_agent_key_file_problem",
			Help: "1 while the file of a device's private key is damaged, lost, open to others, or cannot be written, " +
				"or a damaged one lies beside it; the status says what to do.",
		}, []string{"cluster", "device"}),
	}
}

func (r *Rotator) Collectors() []prometheus.Collector {
	return []prometheus.Collector{r.rotations, r.keyCreated, r.problems}
}

// Key returns the key that a device should have: that of its file. If the file may not survive a reboot, an existing
// device keeps its key. maxAge is the maximal age of a key, 0 for any. It fails if the file cannot be read and no
// device has its key, or if a new one cannot be written.
func (r *Rotator) Key(cluster string, maxAge time.Duration, existing *kernel.Device) (wgtypes.Key, error) {
	device := naming.Device(cluster)
	r.rotations.WithLabelValues(cluster, device) // a counter from the first key on
	key, err := r.files.Of(device, existing)
	if err != nil {
		r.problems.WithLabelValues(cluster, device).Set(1)
		return wgtypes.Key{}, err
	}
	if !key.Durable && existing != nil && existing.PrivateKey != (wgtypes.Key{}) {
		key.Private = existing.PrivateKey
	}
	r.mu.Lock()
	was := r.keys[cluster]
	r.keys[cluster] = key
	r.schedule.Know(cluster, key.Private.PublicKey(), key.Created, maxAge, time.Now())
	r.mu.Unlock()
	bad := 0.
	if key.Problem != nil {
		bad = 1
	}
	r.problems.WithLabelValues(cluster, device).Set(bad)
	r.keyCreated.WithLabelValues(cluster, device).Set(float64(key.Created.Unix()))
	if key.Problem != nil && (was.Problem == nil || was.Problem.Error() != key.Problem.Error()) {
		r.events.Emit(events.Device(cluster, "key-problem", key.Problem.Error()).
			Log(slog.LevelError, "the file of a private key has a problem",
				"device", device, "problem", key.Problem))
	}
	return key.Private, nil
}

// Read returns the private key in the file of a device. It fails with fs.ErrNotExist if there is none, and if it is not
// valid.
func (r *Rotator) Read(device string) (wgtypes.Key, error) { return r.files.Read(device) }

// Stored returns the key of a cluster as it was last read or written, and whether it was.
func (r *Rotator) Stored(cluster string) (kernel.StoredKey, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.keys[cluster]
	return key, ok
}

// Problem returns an error while the key of a cluster needs attention: a problem of its file, a failed rotation, or a
// key that is due and waits.
func (r *Rotator) Problem(cluster string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.keys[cluster].Problem
	if t := r.schedule[cluster]; t != nil && t.failed != nil {
		err = errors.Join(err, t.failed)
	}
	if why := r.waiting[cluster]; why != "" {
		err = errors.Join(err, fmt.Errorf(
			"a new key is due and waits until the nodes of %s would get it: %s", cluster, why))
	}
	return err
}

// Forget discards the key of a removed device. Its file remains.
func (r *Rotator) Forget(cluster string) {
	r.mu.Lock()
	delete(r.keys, cluster)
	delete(r.waiting, cluster)
	r.schedule.Forget(cluster)
	r.mu.Unlock()
	device := naming.Device(cluster)
	r.keyCreated.DeleteLabelValues(cluster, device)
	r.problems.DeleteLabelValues(cluster, device)
	r.rotations.DeleteLabelValues(cluster, device)
}

// StreamBegins takes the begin of a stream: its broker has named no undelivered remotes yet.
func (r *Rotator) StreamBegins() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = false
}

// SetUndelivered sets the broker's list of the remotes that would not get a new key.
func (r *Rotator) SetUndelivered(m *semaphorev1.Undelivered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = true
	r.undelivered = map[string]string{}
	for _, remote := range m.GetRemotes() {
		why := events.TruncateProblem(remote.GetReason())
		if why == "" {
			why = "the broker does not say why"
		}
		r.undelivered[remote.GetCluster()] = why
	}
}

// Synced takes the end mark of a broker's state: one that has sent no list of undelivered remotes by then has none.
func (r *Rotator) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.heard {
		clear(r.undelivered)
	}
}

// Order schedules a rotation that a broker orders, of all clusters if the order names none.
func (r *Rotator) Order(m *semaphorev1.RotateKey, all []string) {
	clusters := []string{m.GetCluster()}
	if m.GetCluster() == "" {
		clusters = all
	}
	at := r.Ask(clusters, m.GetWithin().AsDuration(), m.GetForce())
	r.events.Emit(events.Event{
		Cluster: r.own, Object: "device " + strings.Join(clusters, ", "), Action: "receive",
		Detail: "new key ordered for " + at.UTC().Format(time.RFC3339),
	}.Info("the broker ordered a new key", "clusters", clusters, "at", at))
}

// Ask schedules new keys for clusters at a random time within a time, and returns it. Each waits until its remote would
// get it, unless force is set.
func (r *Rotator) Ask(clusters []string, within time.Duration, force bool) (at time.Time) {
	at = time.Now()
	if within = min(within, maxWithin); within > 0 {
		at = at.Add(rand.N(within))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cluster := range clusters {
		r.schedule.Ask(cluster, at, force)
	}
	return at
}

// Due returns the clusters whose key must be replaced now: its device is set, and the remote would get the key. changed
// are the clusters whose Problem changed because their key begins or ends to wait.
func (r *Rotator) Due(isSet func(cluster string) bool) (due, changed []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	waiting := map[string]string{}
	for _, cluster := range r.schedule.Due(now) {
		if r.waits(cluster) {
			waiting[cluster] = r.undelivered[cluster]
		} else if isSet(cluster) {
			due = append(due, cluster)
		}
	}
	if maps.Equal(waiting, r.waiting) {
		return due, nil
	}
	for cluster, why := range waiting {
		if r.waiting[cluster] == "" {
			slog.Warn("a new key is due and waits, because the remote would not get it",
				"device", naming.Device(cluster), "reason", why)
		}
	}
	changed = slices.AppendSeq(slices.Collect(maps.Keys(waiting)), maps.Keys(r.waiting))
	r.waiting = waiting
	return due, changed
}

// waits reports whether the remote would not get a new key, and no operator forced one. It must be called with mu held.
func (r *Rotator) waits(cluster string) bool {
	return r.undelivered[cluster] != "" && !r.schedule.Forced(cluster)
}

// Next returns when the first key is due that can be replaced then; zero for never.
func (r *Rotator) Next(isSet func(cluster string) bool) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.schedule.Next(func(cluster string) bool { return !r.waits(cluster) && isSet(cluster) })
}

// Undelivered returns the first of these remotes that would not get a new key, and why; empty if all would.
func (r *Rotator) Undelivered(clusters ...string) (cluster, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cluster := range clusters {
		if why := r.undelivered[cluster]; why != "" {
			return cluster, why
		}
	}
	return "", ""
}

// Replace creates a new key for a cluster and writes it to its file, before the device has it. An agent that ends in
// between finds the new key in the file and sets it. It fails if that cannot be written: the earlier key stays, unless
// the returned one is not zero, which may then not be on the disk.
func (r *Rotator) Replace(cluster string) (kernel.StoredKey, error) {
	device := naming.Device(cluster)
	key, err := r.files.Replace(device)
	r.mu.Lock()
	if err != nil {
		r.schedule.Failed(cluster, time.Now(), errors.New(events.TruncateProblem(err.Error())))
		r.mu.Unlock()
		r.events.Emit(events.Device(cluster, "rotate-failed", err.Error()).
			Log(slog.LevelError, "cannot replace the private key", "device", device, "error", err))
		return key, err
	}
	r.schedule.Forget(cluster)
	r.mu.Unlock()
	return key, nil
}

// Replaced records that the device has the key that Replace returned. scheduled means that maxAge is known.
func (r *Rotator) Replaced(cluster string, key kernel.StoredKey, maxAge time.Duration, scheduled bool) {
	device, public := naming.Device(cluster), key.Private.PublicKey()
	r.mu.Lock()
	r.keys[cluster] = key
	if scheduled {
		r.schedule.Know(cluster, public, key.Created, maxAge, time.Now())
	}
	r.mu.Unlock()
	r.rotations.WithLabelValues(cluster, device).Inc()
	r.keyCreated.WithLabelValues(cluster, device).Set(float64(key.Created.Unix()))
	r.events.Emit(events.Device(cluster, "rotate", "new public key "+public.String()).
		Info("private key replaced", "device", device, "publicKey", public))
}
