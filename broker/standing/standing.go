// Package standing keeps in the own cluster which peers its agents were given last, so that the next broker knows who has which key and
// pod CIDR before it hears any remote: whoever happens to be heard first takes nothing from who had it.
//
// Peers go in as peering.State has them, and come out once, when a broker begins to lead. It imports nothing of what decides.
// What is kept is as trusted as the broker's own writes, and checked like what a remote says: the configuration may have changed.
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

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	"github.com/kube-semaphore/semaphore/internal/stream/wire"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// Shards is how many ConfigMaps there are: each holds 1 MiB at most, about 15,000 peers, and RBAC names them one by one.
	Shards = 4
	// maxBytes of what is kept of a remote; an apiserver takes a ConfigMap of 1 MiB.
	maxBytes = 900 << 10
	// maxUnpacked bounds what is read of a remote.
	maxUnpacked = 64 << 20
	// maxDecoded bounds what that takes of memory: two bytes can stand for an empty message.
	maxDecoded = 4 * maxUnpacked
	// settle is how long more changes are waited for before a remote is written.
	settle = time.Second
	// bytesPerSecond bounds what is written while peers change all the time: each write is all of a remote.
	bytesPerSecond = 16 << 10
	// again is how long it is waited after a failure.
	again = 2 * time.Second
)

// Name is that of a ConfigMap.
func Name(shard int) string { return fmt.Sprintf("semaphore-peers-%d", shard) }

// Peers is where the peers come from; see peering.State.
type Peers interface {
	// Standing are the digests of what agents are told of each remote that was heard whole, and a channel that is closed when
	// something has changed.
	Standing() (map[string]digest.Digest, <-chan struct{})
	// PeersOf are those of a remote, which nobody changes.
	PeersOf(cluster string) []*semaphorev1.Peer
}

// Store reads and writes the ConfigMaps.
type Store struct {
	api     corev1client.ConfigMapInterface
	remotes map[string]bool
	log     *slog.Logger

	mu      sync.Mutex
	problem string
}

// New makes it. remotes are those of the configuration: of others nothing is kept.
func New(kube kubernetes.Interface, namespace string, remotes []string, log *slog.Logger) *Store {
	s := &Store{api: kube.CoreV1().ConfigMaps(namespace), remotes: map[string]bool{}, log: log}
	for _, r := range remotes {
		s.remotes[r] = true
	}
	return s
}

// Problems are why nothing is kept, a line for each.
func (s *Store) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem == "" {
		return nil
	}
	return []string{s.problem}
}

func (s *Store) tell(problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if problem != "" && problem != s.problem {
		s.log.Warn(problem)
	}
	s.problem = problem
}

// shard is where a remote is kept.
func shard(cluster string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // never fails
	return int(h.Sum32() % Shards)
}

// Load reads the peers of the configured remotes, by remote and node. It waits until the apiserver answers. Where the broker has no right
// to them there are none, which is told.
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
			s.tell(fmt.Sprintf("peers of the broker before are not known: ConfigMap %s: %v", Name(i), err))
			if apierrors.IsForbidden(err) {
				return all, nil
			}
			if err := sleep(ctx, again); err != nil {
				return nil, err
			}
		}
	}
	s.tell("")
	return all, nil
}

func (s *Store) read(object *corev1.ConfigMap, all map[string]map[string]*semaphorev1.Node) {
	for cluster, data := range object.BinaryData {
		if !s.remotes[cluster] {
			continue
		}
		peers, err := unpack(data)
		if err != nil {
			s.log.Warn("peers of the broker before cannot be read, and are not known", "configmap", object.Name, "cluster", cluster, "error", err)
			continue
		}
		all[cluster] = map[string]*semaphorev1.Node{}
		for _, p := range peers {
			all[cluster][p.GetKey().GetNode()] = &semaphorev1.Node{PodCidrs: p.GetAllowedIps(), Wireguard: p.GetWireguard()}
		}
	}
}

// Run writes what changes until ctx ends.
func (s *Store) Run(ctx context.Context, peers Peers) error {
	written := map[string]digest.Digest{}
	forgotten := false
	for {
		now, changed := peers.Standing()
		wait := time.Duration(0)
		for _, cluster := range slices.Sorted(maps.Keys(now)) {
			if was, ok := written[cluster]; ok && was == now[cluster] {
				continue
			}
			n, err := s.save(ctx, cluster, peers.PeersOf(cluster))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				s.tell(fmt.Sprintf("peers are not kept for the next broker: %v", err))
				wait = again
				continue
			}
			written[cluster] = now[cluster]
			wait += time.Duration(n) * time.Second / bytesPerSecond
			s.tell("")
		}
		if !forgotten {
			forgotten = s.forget(ctx) == nil
		}
		if wait == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			}
		}
		if err := sleep(ctx, max(wait, settle)); err != nil {
			return err
		}
	}
}

// save writes the peers of a remote, and returns how many bytes they are.
func (s *Store) save(ctx context.Context, cluster string, peers []*semaphorev1.Peer) (int, error) {
	data, err := pack(peers)
	if err != nil {
		return 0, err
	}
	if len(data) > maxBytes {
		// Those that are kept are better than none.
		data, err = pack(peers[:len(peers)*maxBytes/len(data)])
		if err != nil {
			return 0, err
		}
		s.log.Warn("a remote has more peers than are kept for the next broker", "cluster", cluster, "peers", len(peers), "bytes", maxBytes)
	}
	return len(data), s.change(ctx, shard(cluster), func(object *corev1.ConfigMap) bool {
		if had, ok := object.BinaryData[cluster]; ok && bytes.Equal(had, data) {
			return false
		}
		object.BinaryData[cluster] = data
		return true
	})
}

// forget removes what is kept of remotes that were taken out of the configuration.
func (s *Store) forget(ctx context.Context) error {
	for i := range Shards {
		if _, err := s.api.Get(ctx, Name(i), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			continue
		}
		if err := s.change(ctx, i, func(object *corev1.ConfigMap) bool {
			before := len(object.BinaryData)
			maps.DeleteFunc(object.BinaryData, func(cluster string, _ []byte) bool { return !s.remotes[cluster] })
			return len(object.BinaryData) != before
		}); err != nil {
			return err
		}
	}
	return nil
}

// change makes or updates a ConfigMap; do says whether there is something to write.
func (s *Store) change(ctx context.Context, shard int, do func(*corev1.ConfigMap) bool) error {
	object, err := s.api.Get(ctx, Name(shard), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name(shard), Labels: map[string]string{naming.LabelManagedBy: naming.ManagedByBroker}}}
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

// pack is the peers as gzipped PeeringChanges, the message by which agents are told of them. The time of a packing is not in it: the same
// peers are the same bytes.
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

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
