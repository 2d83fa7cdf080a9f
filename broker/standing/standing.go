// Package standing stores in the own cluster which peers its agents have, so that the next broker knows which node has
// which key and pod CIDR before a remote connects: a remote that connects first takes nothing from a node that had it.
//
// It writes peers as peering.State has them, and reads them once, when a broker begins to lead. It imports nothing
// that decides. Stored peers are as trusted as the broker's own writes, and are checked like a remote's nodes, as the
// configuration may have changed.
//
// It may import no other package of the broker.
package standing

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	"github.com/kube-semaphore/semaphore/internal/stream/wire"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// Shards is the number of ConfigMaps. Each holds at most 1 MiB, about 15,000 peers, and RBAC names them one by
	// one.
	Shards = 4
	// maxBytes is the limit of a remote's stored peers; an apiserver accepts a ConfigMap of 1 MiB.
	maxBytes = 900 << 10
	// maxUnpacked is the limit of a remote's peers, decompressed.
	maxUnpacked = 64 << 20
	// maxDecoded is the limit of the memory for that: two bytes can be an empty message.
	maxDecoded = 4 * maxUnpacked
	// batchDelay is how long to wait for more changes before a remote is written.
	batchDelay = time.Second
	// bytesPerSecond bounds the rate of writes while peers change all the time: each write contains all peers of a
	// remote.
	bytesPerSecond = 16 << 10
	// retryInterval is the wait after a failure.
	retryInterval = 2 * time.Second
)

// Name returns the name of a ConfigMap.
func Name(shard int) string { return fmt.Sprintf("semaphore-peers-%d", shard) }

// Peers is the source of the peers; see peering.State.
type Peers interface {
	// Digests returns the digest of each complete remote, and a channel that is closed when
	// something has changed.
	Digests() (map[string]digest.Digest, <-chan struct{})
	// PeersOf returns the peers of a remote, which must not be modified.
	PeersOf(cluster string) []*semaphorev1.Peer
}

// Store reads and writes the ConfigMaps.
type Store struct {
	api     corev1client.ConfigMapInterface
	log     *slog.Logger
	problem *kube.Problem
	// removed has a value when a remote was removed.
	removed chan struct{}

	mu      sync.Mutex
	remotes map[string]bool
}

// New makes a store of the peers of the configured remotes.
func New(client kubernetes.Interface, namespace string, remotes []string, log *slog.Logger) *Store {
	s := &Store{
		api: client.CoreV1().ConfigMaps(namespace), log: log, problem: kube.NewProblem(log), removed: make(chan struct{}, 1),
	}
	s.Follow(remotes)
	return s
}

// Follow takes the configured remotes. The stored peers of others are removed.
func (s *Store) Follow(remotes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remotes = map[string]bool{}
	for _, r := range remotes {
		s.remotes[r] = true
	}
	select {
	case s.removed <- struct{}{}:
	default: // Run has not looked yet
	}
}

func (s *Store) configured(cluster string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remotes[cluster]
}

// Problems returns why peers are not stored, a line each.
func (s *Store) Problems() []string { return s.problem.Lines() }

// shard returns the ConfigMap of a remote.
func shard(cluster string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // never fails
	return int(h.Sum32() % Shards)
}

// Load reads the peers of the configured remotes, by remote and node. It waits until the apiserver answers. Without
// the right to read them it returns none, and a problem.
func (s *Store) Load(ctx context.Context) (map[string]map[string]*semaphorev1.Node, error) {
	all := map[string]map[string]*semaphorev1.Node{}
	for i := range Shards {
		for {
			object, err := s.api.Get(ctx, Name(i), metav1.GetOptions{})
			if err == nil {
				s.read(object, all)
				break
			}
			if apierrors.IsNotFound(err) {
				break
			}
			s.problem.Set(fmt.Sprintf("the peers of the previous broker are not known: ConfigMap %s: %v", Name(i), err))
			if apierrors.IsForbidden(err) {
				return all, nil
			}
			if err := kube.Sleep(ctx, retryInterval); err != nil {
				return nil, err
			}
		}
	}
	s.problem.Set("")
	return all, nil
}

func (s *Store) read(object *corev1.ConfigMap, all map[string]map[string]*semaphorev1.Node) {
	for cluster, data := range object.BinaryData {
		if !s.configured(cluster) {
			continue
		}
		peers, err := unpack(data)
		if err != nil {
			s.log.Warn("cannot decode the stored peers of a remote; the broker ignores them", "configmap", object.Name,
				"cluster", cluster, "error", err)
			continue
		}
		all[cluster] = map[string]*semaphorev1.Node{}
		for _, p := range peers {
			all[cluster][p.GetKey().GetNode()] = &semaphorev1.Node{PodCidrs: p.GetAllowedIps(), Wireguard: p.GetWireguard()}
		}
	}
}

// Run writes changes until ctx ends.
func (s *Store) Run(ctx context.Context, peers Peers) error {
	written := map[string]digest.Digest{}
	forgotten := false
	for {
		select {
		case <-s.removed:
			forgotten = false
		default:
		}
		now, changed := peers.Digests()
		maps.DeleteFunc(written, func(cluster string, _ digest.Digest) bool {
			_, is := now[cluster]
			return !is
		})
		wait := time.Duration(0)
		for _, cluster := range slices.Sorted(maps.Keys(now)) {
			if was, ok := written[cluster]; ok && was == now[cluster] || !s.configured(cluster) {
				continue
			}
			n, err := s.save(ctx, cluster, peers.PeersOf(cluster))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.problem.Set(fmt.Sprintf("the peers are not stored for the next broker: %v", err))
				wait = retryInterval
				continue
			}
			written[cluster] = now[cluster]
			wait += time.Duration(n) * time.Second / bytesPerSecond
			s.problem.Set("")
		}
		if !forgotten {
			forgotten = s.removeUnconfigured(ctx) == nil
		}
		if wait == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			case <-s.removed:
				forgotten = false
			}
		}
		if err := kube.Sleep(ctx, max(wait, batchDelay)); err != nil {
			return err
		}
	}
}

// save writes the peers of a remote, and returns their size in bytes.
func (s *Store) save(ctx context.Context, cluster string, peers []*semaphorev1.Peer) (int, error) {
	data, err := pack(peers)
	if err != nil {
		return 0, err
	}
	if len(data) > maxBytes {
		// A part of the peers is better than none.
		data, err = pack(peers[:len(peers)*maxBytes/len(data)])
		if err != nil {
			return 0, err
		}
		s.log.Warn("the peers of a remote are too large to store; the next broker learns the others from the remote",
			"cluster", cluster, "peers", len(peers), "bytes", maxBytes)
	}
	return len(data), s.modify(ctx, shard(cluster), func(object *corev1.ConfigMap) bool {
		if had, ok := object.BinaryData[cluster]; ok && bytes.Equal(had, data) {
			return false
		}
		object.BinaryData[cluster] = data
		return true
	})
}

// removeUnconfigured removes the peers of remotes that were removed from the configuration.
func (s *Store) removeUnconfigured(ctx context.Context) error {
	for i := range Shards {
		if _, err := s.api.Get(ctx, Name(i), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			continue
		}
		if err := s.modify(ctx, i, func(object *corev1.ConfigMap) bool {
			before := len(object.BinaryData)
			maps.DeleteFunc(object.BinaryData, func(cluster string, _ []byte) bool { return !s.configured(cluster) })
			return len(object.BinaryData) != before
		}); err != nil {
			return err
		}
	}
	return nil
}

// modify creates or updates a ConfigMap; do reports whether there is something to write.
func (s *Store) modify(ctx context.Context, shard int, do func(*corev1.ConfigMap) bool) error {
	object, err := s.api.Get(ctx, Name(shard), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name(shard),
			Labels: map[string]string{naming.LabelManagedBy: naming.ManagedByBroker}}}
	case err != nil:
		return fmt.Errorf("ConfigMap %s: %w", Name(shard), err)
	}
	if object.BinaryData == nil {
		object.BinaryData = map[string][]byte{}
	}
	if !do(object) {
		return nil
	}
	if missing {
		_, err = s.api.Create(ctx, object, metav1.CreateOptions{})
	} else {
		_, err = s.api.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", Name(shard), err)
	}
	return nil
}

// pack encodes the peers as gzipped PeeringChanges, the message that agents receive. It contains no time: the same
// peers result in the same bytes.
func pack(peers []*semaphorev1.Peer) ([]byte, error) {
	m := &semaphorev1.PeeringChanges{}
	for _, p := range peers {
		m.Changes = append(m.Changes, &semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: p}})
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(data); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return out.Bytes(), nil
}

func unpack(data []byte) ([]*semaphorev1.Peer, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxUnpacked {
		return nil, fmt.Errorf("more than %d bytes", maxUnpacked)
	}
	m := &semaphorev1.PeeringChanges{}
	if err := wire.Decode(raw, m, maxDecoded); err != nil {
		return nil, err
	}
	var peers []*semaphorev1.Peer
	for _, c := range m.GetChanges() {
		if p := c.GetPeer(); p != nil {
			peers = append(peers, p)
		}
	}
	return peers, nil
}
