//go:build ignore

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/rotation"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxWithin bounds how long a broker may have a rotation put off.
const maxWithin = 24 * time.Hour

// sessionsFor is how long a look at who has a session serves: when a whole cluster's nodes get new keys, one after the
// other, each of them must not have all peers read.
const sessionsFor = 10 * time.Second

// keyring is what the agent knows of its private keys and when they are to be replaced. But for files and sessions, which
// program's goroutine owns, it is guarded by the agent's lock.
type keyring struct {
	files *wireguard.Keys
	// sessions are the peers with a live session, by cluster.
	sessions map[string]sessions
	// stored are the keys as they were last looked at, and failed why one that is due was not replaced, by cluster.
	stored   map[string]wireguard.StoredKey
	failed   map[string]string
	schedule *rotation.Schedule
	// undelivered are the remotes that would not learn of a new key, and why; told says that this stream's broker has said
	// so. waits are the clusters whose key is due and waits for that.
	undelivered map[string]string
	told        bool
	waits       map[string]string
	// asked are rotations that operators wait for.
	asked []askedRotation
}

// sessions are the peers of a device that had a live session at a time.
type sessions struct {
	peers []wgtypes.Peer
	at    time.Time
}

// askedRotation is an operator's word at the debug socket.
type askedRotation struct {
	cluster string
	force   bool
	done    chan<- rotated // has room for the outcome
}

type rotated struct {
	keys []*semaphorev1.RotatedKey
	err  error
}

func newKeyring(dir string) keyring {
	return keyring{
		files: wireguard.NewKeys(dir), sessions: map[string]sessions{}, stored: map[string]wireguard.StoredKey{}, failed: map[string]string{}, schedule: rotation.New(),
		undelivered: map[string]string{}, waits: map[string]string{},
	}
}

// keyOf is the key that a device is to have: that of its file. Where that may not be there after a reboot, a device
// that stands goes on with the one it has.
func (a *agent) keyOf(cluster, device string, want *desired.Network, stands *wireguard.Device) (wgtypes.Key, error) {
	key, err := a.keys.files.Of(device, stands)
	if err != nil {
		a.metrics.keyProblems.WithLabelValues(device).Set(1)
		return wgtypes.Key{}, err
	}
	if !key.Durable && stands != nil && stands.PrivateKey != (wgtypes.Key{}) {
		key.Private = stands.PrivateKey
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.keys.stored[cluster]
	a.keys.stored[cluster] = key
	a.keys.schedule.Know(cluster, key.Private.PublicKey(), key.Created, want.Device.GetKeyMaxAge().AsDuration(), time.Now())
	a.metrics.keyProblems.WithLabelValues(device).Set(float64(boolNumber(key.Problem != nil)))
	a.metrics.keyCreated.WithLabelValues(device).Set(float64(key.Created.Unix()))
	if key.Problem != nil && (was.Problem == nil || was.Problem.Error() != key.Problem.Error()) {
		slog.Error("the file of a private key is not as it should be", "device", device, "problem", key.Problem)
		a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "key-problem", Detail: key.Problem.Error()})
	}
	return key.Private, nil
}

// keyProblem is what is wrong with the key for a cluster; nil for nothing. It is called with mu held.
func (a *agent) keyProblem(cluster string) error {
	err := a.keys.stored[cluster].Problem
	if why := a.keys.failed[cluster]; why != "" {
		err = errors.Join(err, errors.New(why))
	}
	if why := a.keys.waits[cluster]; why != "" {
		err = errors.Join(err, fmt.Errorf("a new key is due and waits until the nodes of %s would learn of it: %s", cluster, why))
	}
	return err
}

// reportKey makes a report tell of the public key only if its private one is on the disk. It is called with mu held.
func (a *agent) reportKey(r *semaphorev1.DeviceReport) {
	key, ok := a.keys.stored[r.GetCluster()]
	if !ok {
		return
	}
	r.KeyCreatedAt = timestamppb.New(key.Created)
	if !key.Durable {
		r.PublicKey = nil
	}
}

// forgetKey is called with mu held.
func (a *agent) forgetKey(cluster string) {
	delete(a.keys.stored, cluster)
	delete(a.keys.failed, cluster)
	delete(a.keys.waits, cluster)
	delete(a.keys.sessions, cluster)
	a.keys.schedule.Forget(cluster)
}

// toldUndelivered takes the broker's word of the remotes that would not learn of a new key. It is called with mu held.
func (a *agent) toldUndelivered(m *semaphorev1.Undelivered) {
	a.keys.told = true
	a.keys.undelivered = map[string]string{}
	for _, r := range m.GetRemotes() {
		why := tellable(r.GetReason())
		if why == "" {
			why = "the broker does not say why"
		}
		a.keys.undelivered[r.GetCluster()] = why
	}
}

// waiting notes which keys are due and wait, which is told with their devices. It is called with mu held.
func (a *agent) waiting(now time.Time) {
	waits := map[string]string{}
	for _, cluster := range a.keys.schedule.Due(now) {
		if why := a.keys.undelivered[cluster]; why != "" && !a.keys.schedule.Forced(cluster) {
			waits[cluster] = why
		}
	}
	if maps.Equal(waits, a.keys.waits) {
		return
	}
	for cluster, why := range waits {
		if a.keys.waits[cluster] == "" {
			slog.Warn("a new key is due and waits, as the remote would not learn of it", "device", naming.Device(cluster), "reason", why)
		}
		a.dirty.healing[cluster] = true
	}
	for cluster := range a.keys.waits {
		a.dirty.healing[cluster] = true
	}
	a.keys.waits = waits
}

// toRotate takes note of a broker's word. It is called with mu held.
func (a *agent) toRotate(m *semaphorev1.RotateKey) {
	at := time.Now()
	if within := min(m.GetWithin().AsDuration(), maxWithin); within > 0 {
		at = at.Add(rand.N(within))
	}
	clusters := []string{m.GetCluster()}
	if m.GetCluster() == "" {
		clusters = a.state.Clusters()
	}
	for _, cluster := range clusters {
		a.keys.schedule.Ask(cluster, at)
		if m.GetForce() {
			a.keys.schedule.Force(cluster)
		}
	}
	a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "device " + strings.Join(clusters, ", "), Action: "receive", Detail: "new key wanted by " + at.UTC().Format(time.RFC3339)})
	slog.Info("the broker wants a new key", "clusters", clusters, "at", at)
}

// rotationsDue replaces what keys are due. Without a broker that listens nobody would learn of a new key, and what is due
// waits; an operator who is there is told so, or has it done all the same.
func (a *agent) rotationsDue(ctx context.Context, upTo mark) {
	a.mu.Lock()
	heard := a.attached && upTo.current && upTo.stream == a.streams
	var due []string
	if heard {
		a.waiting(time.Now())
		due = slices.DeleteFunc(a.keys.schedule.Due(time.Now()), func(cluster string) bool { return !a.rotatable(cluster) })
	}
	asked := a.keys.asked
	a.keys.asked = nil
	lastError := a.lastError
	a.mu.Unlock()
	for _, cluster := range due {
		_, _ = a.rotate(ctx, cluster) // told, and tried again
	}
	for _, r := range asked {
		if !heard && !r.force {
			r.done <- rotated{err: status.Errorf(codes.FailedPrecondition, "not attached to the broker, so that no peer would learn of a new key, and traffic would end: %s", lastError)}
			continue
		}
		if cluster, why := a.undelivered(r.cluster); why != "" && !r.force {
			r.done <- rotated{err: status.Errorf(codes.FailedPrecondition, "the nodes of %s would not learn of a new key, and traffic would end: %s", cluster, why)}
			continue
		}
		r.done <- a.rotateAsked(ctx, r.cluster)
	}
}

// undelivered is a remote that would not learn of a new key, and why, of one or of all where cluster is empty; empty where all
// would.
func (a *agent) undelivered(cluster string) (which, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cluster != "" {
		return cluster, a.keys.undelivered[cluster]
	}
	for _, cluster := range a.state.Clusters() {
		if why := a.keys.undelivered[cluster]; why != "" {
			return cluster, why
		}
	}
	return "", ""
}

// rotatable says whether the device to a cluster stands as it should, as one that does not has other worries, and whether the
// remote would learn of its new key. It is called with mu held.
func (a *agent) rotatable(cluster string) bool {
	if a.keys.undelivered[cluster] != "" && !a.keys.schedule.Forced(cluster) {
		return false
	}
	n := a.networks[cluster]
	return n != nil && n.done != nil && !a.broken(cluster)
}

func (a *agent) rotateAsked(ctx context.Context, cluster string) (out rotated) {
	a.mu.Lock()
	clusters := a.state.Clusters()
	a.mu.Unlock()
	if cluster != "" {
		if !slices.Contains(clusters, cluster) {
			return rotated{err: status.Errorf(codes.NotFound, "no device to a cluster %q is wanted here", cluster)}
		}
		clusters = []string{cluster}
	}
	for _, cluster := range clusters {
		key, err := a.rotate(ctx, cluster)
		if err != nil {
			return rotated{err: status.Error(codes.Internal, err.Error())}
		}
		out.keys = append(out.keys, &semaphorev1.RotatedKey{Cluster: cluster, Interface: naming.Device(cluster), PublicKey: key[:]})
	}
	return out
}

// rotate replaces the key for a cluster, and returns the new public one. It is on the disk before the device has it, and on the device
// before anyone is told: an agent that is ended in between finds the new key in the file, and goes on from there. Until
// peers have heard of the new key they can still send to us with the old one; see docs/encryption.md.
func (a *agent) rotate(ctx context.Context, cluster string) (wgtypes.Key, error) {
	device := naming.Device(cluster)
	key, err := a.keys.files.Replace(device)
	a.mu.Lock()
	if err != nil {
		a.keys.failed[cluster] = tellable(err.Error())
		a.keys.schedule.Failed(cluster, time.Now())
		a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "rotate-failed", Detail: err.Error()})
		slog.Error("the private key is to be replaced, and cannot be", "device", device, "error", err)
		a.mu.Unlock()
		a.whole(ctx, cluster) // the problem is told with it
		return wgtypes.Key{}, err
	}
	delete(a.keys.failed, cluster)
	a.keys.schedule.Replaced(cluster)
	a.mu.Unlock()

	public := key.Private.PublicKey()
	if err := a.host.Configure(device, wgtypes.Config{PrivateKey: &key.Private}); err != nil {
		slog.Warn("the device does not take its new key; looking at it as a whole", "device", device, "error", err)
		a.whole(ctx, cluster)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys.stored[cluster] = key
	if n := a.networks[cluster]; n != nil && !a.broken(cluster) {
		n.report = cloneReport(n.report)
		n.report.PublicKey, n.report.KeyCreatedAt = public[:], timestamppb.New(key.Created)
		if n.done != nil {
			a.keys.schedule.Know(cluster, public, key.Created, n.done.Device.GetKeyMaxAge().AsDuration(), time.Now())
		}
	}
	a.metrics.rotations.WithLabelValues(device).Inc()
	a.metrics.keyCreated.WithLabelValues(device).Set(float64(key.Created.Unix()))
	a.recorder.Record(debug.Event{Source: cluster, Object: "device " + device, Action: "rotate", Detail: "new public key " + public.String()})
	slog.Info("private key replaced", "device", device, "publicKey", public)
	return public, nil
}

// rouse has single peers that replace others shake hands at once, where there was traffic; see plan.Rouse. What cannot be
// found out only makes a peer wait for its first packet.
func (a *agent) rouse(cluster, device string, cfg *wgtypes.Config) {
	if !plan.Replaces(*cfg) {
		return
	}
	now := time.Now()
	s := a.keys.sessions[cluster]
	if now.Sub(s.at) > sessionsFor {
		s = sessions{at: now}
		stands, err := a.host.Device(device)
		switch {
		case err != nil:
			slog.Debug("cannot see which peers have traffic", "device", device, "error", err)
		case stands != nil:
			for _, p := range stands.Peers {
				if plan.Live(p, now) {
					s.peers = append(s.peers, p)
				}
			}
		}
		a.keys.sessions[cluster] = s
	}
	plan.Rouse(cfg, s.peers, now)
}

// operator is the operator's word to the agent itself, at its debug socket.
type operator struct {
	semaphorev1.UnimplementedControlServiceServer
	*agent
}

// RotateKey implements semaphorev1.ControlServiceServer.
func (o operator) RotateKey(ctx context.Context, req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	a := o.agent
	done := make(chan rotated, 1)
	a.mu.Lock()
	node := a.node
	others := slices.DeleteFunc(slices.Clone(req.GetNodes()), func(name string) bool { return name == node })
	if len(others) == 0 {
		a.keys.asked = append(a.keys.asked, askedRotation{req.GetCluster(), req.GetForce(), done})
	}
	a.mu.Unlock()
	if len(others) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "nodes: this is the agent of node %q, not of %s: ask the broker", node, strings.Join(others, ", "))
	}
	a.poke()
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case r := <-done:
		if r.err != nil {
			return nil, r.err
		}
		return &semaphorev1.RotateKeyResponse{Nodes: []*semaphorev1.NodeRotation{{Node: node, Told: true, Keys: r.keys}}}, nil
	}
}

// withProblem adds what is wrong with a key to what else is wrong with a device.
func withProblem(problem string, err error) string {
	if err == nil {
		return problem
	}
	return tellable(strings.TrimPrefix(fmt.Sprintf("%s; %s", problem, strings.ReplaceAll(err.Error(), "\n", "; ")), "; "))
}
