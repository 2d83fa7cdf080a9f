package stored

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
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file stores in the own cluster which peers its agents have, so that the next broker knows which node has which
// key and pod CIDR before a remote connects: a remote that connects first takes nothing from a node that had it.
//
// It writes peers as peering.State has them, and reads them once, when a broker begins to lead. Stored peers are as
// trusted as the broker's own writes, and are checked like a remote's nodes, as the configuration may have changed.

const (
	// Shards is the number of ConfigMaps. Each holds at most 1 MiB, about 15,000 peers, and RBAC names them one by
	// one.
	Shards = 4
	// maxShard is what an apiserver accepts in a ConfigMap, and maxBytes the limit of a remote's stored peers, and of the
	// blocks for CoreDNS.
	maxShard, maxBytes = 1 << 20, 900 << 10
	// maxUnpacked is the limit of a remote's peers, decompressed.
	maxUnpacked = 64 << 20
	// maxDecoded is the limit of the memory for that: two bytes can be an empty message.
	maxDecoded = 4 * maxUnpacked
	// batchDelay is how long to wait for more changes before a ConfigMap is written.
	batchDelay = time.Second
	// bytesPerSecond bounds the rate of writes while peers change all the time: each write contains all peers of the
	// remotes in a ConfigMap.
	bytesPerSecond = 16 << 10
	// retryInterval is the wait after a failure.
	retryInterval = 2 * time.Second
)

func Name(shard int) string { return fmt.Sprintf("semaphore-peers-%d", shard) }

// Peers is the source of the peers; see peering.State.
type Peers interface {
	// Digests returns the digest of each complete remote, and a channel that is closed when
	// something has changed.
	Digests() (map[string]streams.Digest, <-chan struct{})
	// PeersOf returns the peers of a remote, which must not be modified.
	PeersOf(cluster string) []*semaphorev1.Peer
}

type PeerStore struct {
	maps    [Shards]*leader.Kept
	every   time.Duration
	log     *slog.Logger
	problem *kube.Problem
	// removed has a value when a remote was removed.
	removed chan struct{}

	mu      sync.Mutex
	remotes map[string]bool
}

func NewPeers(client kubernetes.Interface, namespace string, remotes []string, log *slog.Logger) *PeerStore {
	s := &PeerStore{every: leader.Every, log: log, problem: kube.NewProblem(log), removed: make(chan struct{}, 1)}
	for i := range s.maps {
		s.maps[i] = leader.NewKept(client, namespace, Name(i), naming.ManagedByBroker, log)
	}
	s.Follow(remotes)
	return s
}

// Follow takes the configured remotes. The stored peers of others are removed.
func (s *PeerStore) Follow(remotes []string) {
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

func (s *PeerStore) configured(cluster string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remotes[cluster]
}

// Problems returns why peers are not stored, a line each.
func (s *PeerStore) Problems() []string { return s.problem.Lines() }

// Reports returns the foreign changes that the store undid, a line for each ConfigMap.
func (s *PeerStore) Reports() (lines []string) {
	for _, m := range s.maps {
		lines = append(lines, m.Reports()...)
	}
	return lines
}

func shard(cluster string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster)) // never fails
	return int(h.Sum32() % Shards)
}

// Load reads the peers of the configured remotes, by remote and node. It waits until the apiserver answers. Without the
// right to read them it returns none, and sets a problem. It fails only if ctx ends.
func (s *PeerStore) Load(ctx context.Context) (map[string]map[string]*semaphorev1.Node, error) {
	all := map[string]map[string]*semaphorev1.Node{}
	for i := range Shards {
		for {
			object, err := s.maps[i].Get(ctx)
			if err == nil && object != nil {
				s.read(object, all)
			}
			if err == nil {
				break
			}
			s.problem.Set(fmt.Sprintf("the peers of the previous broker are not known: %v", err))
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

func (s *PeerStore) read(object *corev1.ConfigMap, all map[string]map[string]*semaphorev1.Node) {
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

// written is the digest of the peers of a remote, and their stored text.
type written struct {
	peers streams.Digest
	data  []byte
}

// Run writes changes and restores those of other writers until ctx ends, and returns ctx's error.
func (s *PeerStore) Run(ctx context.Context, peers Peers) error {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	done, look := map[string]written{}, true
	for {
		select {
		case <-s.removed:
			look = true
		case <-tick.C:
			look = true
		default:
		}
		now, changed := peers.Digests()
		maps.DeleteFunc(done, func(cluster string, _ written) bool {
			_, is := now[cluster]
			return !is || !s.configured(cluster)
		})
		wait, problem := time.Duration(0), ""
		if look {
			n, err := s.compare(ctx, done)
			if wait = atRate(n); err != nil {
				wait, problem = retryInterval, fmt.Sprintf("the stored peers cannot be compared: %v", err)
			}
			look = problem != ""
		}
		for i := range s.maps {
			n, err := s.save(ctx, i, now, done, peers)
			if wait += atRate(n); err != nil {
				wait, problem = max(wait, retryInterval), fmt.Sprintf("the peers are not stored for the next broker: %v", err)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.problem.Set(problem)
		if wait == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			case <-tick.C:
				look = true
			case <-s.removed:
				look = true
			}
		}
		if err := kube.Sleep(ctx, max(wait, batchDelay)); err != nil {
			return err
		}
	}
}

// atRate is the time within which no more than n bytes may be written.
func atRate(n int) time.Duration { return time.Duration(n) * time.Second / bytesPerSecond }

// compare removes the peers of remotes that are not configured, and restores and reports the written texts that another
// writer has changed or deleted. It returns the size of these, in bytes.
func (s *PeerStore) compare(ctx context.Context, done map[string]written) (n int, _ error) {
	for i, m := range s.maps {
		var lost []string
		if _, err := m.Change(ctx, func(object *corev1.ConfigMap) {
			lost = nil
			maps.DeleteFunc(object.BinaryData, func(cluster string, _ []byte) bool { return !s.configured(cluster) })
			for cluster, is := range done {
				if shard(cluster) == i && !bytes.Equal(object.BinaryData[cluster], is.data) {
					put(object, cluster, is.data)
					lost = append(lost, cluster)
				}
			}
		}); err != nil {
			return n, err
		}
		for _, cluster := range lost {
			m.Restored("the peers of " + cluster)
			n += len(done[cluster].data)
		}
	}
	return n, nil
}

func put(object *corev1.ConfigMap, cluster string, data []byte) {
	if object.BinaryData == nil {
		object.BinaryData = map[string][]byte{}
	}
	object.BinaryData[cluster] = data
}

// save writes the remotes of a ConfigMap that have changed since done by one request. It returns the size of what it
// wrote, in bytes.
func (s *PeerStore) save(ctx context.Context, i int, now map[string]streams.Digest, done map[string]written,
	peers Peers) (n int, _ error) {
	changed := map[string]written{}
	for cluster, digest := range now {
		was, ok := done[cluster]
		if shard(cluster) != i || ok && was.peers == digest || !s.configured(cluster) {
			continue
		}
		data, err := s.fitting(cluster, peers.PeersOf(cluster))
		if err != nil {
			return 0, err
		}
		changed[cluster] = written{digest, data}
	}
	if len(changed) == 0 {
		return 0, nil
	}
	var full []string
	wrote, err := s.maps[i].Change(ctx, func(object *corev1.ConfigMap) {
		n, full = 0, nil
		for _, data := range object.BinaryData {
			n += len(data)
		}
		for _, cluster := range slices.Sorted(maps.Keys(changed)) {
			data := changed[cluster].data
			if after := n - len(object.BinaryData[cluster]) + len(data); after <= maxShard {
				n = after
				put(object, cluster, data)
			} else {
				full = append(full, cluster)
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case !wrote:
		n = 0
	}
	maps.DeleteFunc(changed, func(cluster string, _ written) bool { return slices.Contains(full, cluster) })
	maps.Copy(done, changed)
	if len(full) > 0 {
		err = fmt.Errorf("ConfigMap %s has no room for those of %s", Name(i), strings.Join(full, ", "))
	}
	return n, err
}

// fitting returns the stored text of the peers of a remote, or of as many as may be stored of one.
func (s *PeerStore) fitting(cluster string, peers []*semaphorev1.Peer) ([]byte, error) {
	data, err := pack(peers)
	if err != nil || len(data) <= maxBytes {
		return data, err
	}
	s.log.Warn("the peers of a remote are too large to store; the next broker learns the others from the remote",
		"cluster", cluster, "peers", len(peers), "bytes", maxBytes)
	return pack(peers[:len(peers)*maxBytes/len(data)]) // a part of the peers is better than none
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
	if err := streams.Decode(raw, m, maxDecoded); err != nil {
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
