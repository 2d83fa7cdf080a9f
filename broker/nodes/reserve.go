package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Reserved addresses are kept in this many shards at most, whatever the number of nodes, because Calico's CNI plugin
// lists all IPReservations for each pod. deploy/features/tunnel-addresses has the same names.
const shards = 16

func shardName(i int) string { return fmt.Sprintf("semaphore-tunnel-addresses-%x", i) }

// reservedFor is the annotation of a shard with the state of each reservation, by node and address.
const reservedFor = "semaphore.uw.io/reserved-for"

const (
	// pending: Calico's IPAM knows the reservation, but an assignment that began before may still take the address.
	pending = "pending"
	// ready: no such assignment can be running, and the address was free after that.
	ready = "ready"
	// retired: the node should no longer use the address, but its agent may not know that yet.
	retired = "retired"
)

// timing has the durations, which tests shorten.
type timing struct {
	// quarantine is longer than any assignment of an address by Calico's IPAM: its CNI plugin reads the IPReservations
	// at the beginning of one, and gives up after 90 s (cni-plugin/pkg/ipamplugin, cmdAdd).
	quarantine time.Duration
	// retire is how long an agent has to remove an address from its devices after it received the new network.
	retire time.Duration
	// verify is the interval at which a reserved address is checked to be free: a pod that asks Calico for it by name
	// gets it.
	verify time.Duration
	// reread is the interval at which the objects are read again: somebody else may delete or edit them.
	reread time.Duration
	pass   time.Duration
}

var ordinary = timing{quarantine: 2 * time.Minute, retire: time.Minute, verify: 10 * time.Minute, reread: time.Minute,
	pass: 5 * time.Second}

// reservations are those of all nodes. One goroutine uses it; Networks may call addresses at any time.
type reservations struct {
	cfg *rest.Config
	log *slog.Logger
	timing
	// wanted returns the blocks in which each node should have an address, none for a node that should have none; nil
	// while the nodes or the blocks are unknown.
	wanted func() map[string]wants
	// knows reports whether the agent of a node is connected and has the current network.
	knows func(node string) bool
	// changed is called with a node whose ready addresses changed.
	changed func(node string)
	now     func() time.Time

	ipam   *kube.CalicoIPAM
	shards [shards]*shard

	mu       sync.Mutex
	ready    map[string][]netip.Addr
	problems []string
}

// wants are the blocks in which a node should have an address.
type wants struct{ v4, v6 []netip.Prefix }

func (w wants) of(addr netip.Addr) []netip.Prefix {
	if addr.Is4() {
		return w.v4
	}
	return w.v6
}

// shard is one object and its state.
type shard struct {
	// object is the apiserver's; nil if it does not exist.
	object *calicov3.IPReservation
	// read is when the object was read; zero if it is to be read again.
	read   time.Time
	states map[string]map[netip.Addr]state
}

// version is empty if the object does not exist.
func (s *shard) version() string {
	if s.object == nil {
		return ""
	}
	return s.object.ResourceVersion
}

// state is the state of a reservation, and the time since which this process knows that it stands; checked is when the
// address was last seen free.
type state struct {
	is      string
	since   time.Time
	checked time.Time
}

// addresses returns those that a node's agent may use.
func (r *reservations) addresses(node string) []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready[node]
}

func (r *reservations) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problems
}

func (r *reservations) run(ctx context.Context) error {
	r.ipam, r.shards = nil, [shards]*shard{} // other replicas may have led meanwhile
	for {
		problems := r.runPass(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		slices.Sort(problems)
		r.mu.Lock()
		differs := !slices.Equal(problems, r.problems)
		r.problems = problems
		r.mu.Unlock()
		if differs && len(problems) > 0 {
			r.log.Warn("some nodes have no reserved address for their devices", "problems", len(problems), "first", problems[0])
		}
		if err := kube.Sleep(ctx, r.pass); err != nil {
			return err
		}
	}
}

func (r *reservations) runPass(ctx context.Context) (problems []string) {
	if r.ipam == nil {
		ipam, err := kube.NewCalicoIPAM(r.cfg)
		if errors.Is(err, kube.ErrNoIPAM) {
			for i := range shards {
				r.publish(i, &shard{})
			}
			return nil // then pods get their IPs elsewhere
		}
		if err != nil {
			return []string{"addresses for devices: " + err.Error()}
		}
		r.ipam = ipam
	}
	wanted := r.wanted()
	if wanted == nil {
		return nil
	}
	byShard := [shards][]string{}
	for node := range wanted {
		i := shardOf(node)
		byShard[i] = append(byShard[i], node)
	}
	for i := range shards {
		if err := r.passShard(ctx, i, byShard[i], wanted, &problems); err != nil {
			if it := r.shards[i]; it != nil {
				it.read = time.Time{} // read it again
				r.publish(i, it)      // it may be gone, or somebody else's
			}
			if apierrors.IsNotFound(err) {
				r.ipam = nil // another API group may serve it now
			}
			if !apierrors.IsConflict(err) {
				problems = append(problems, fmt.Sprintf("addresses for devices: ipreservation %s: %v", shardName(i), err))
			}
		}
		if ctx.Err() != nil || r.ipam == nil {
			return problems
		}
	}
	return problems
}

func shardOf(node string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	return int(h.Sum32() % shards)
}

// load reads the object of a shard. It keeps the states that this process has, so that the next write restores an
// object that somebody deleted or edited; each reservation counts from then.
func (r *reservations) load(ctx context.Context, i int) error {
	object, err := r.ipam.Reservations().Get(ctx, shardName(i))
	switch {
	case apierrors.IsNotFound(err):
		object = nil
	case err != nil:
		return err
	default:
		kube.CopyCalicoMetadata(object)
	}
	it, before := r.shards[i], ""
	if it != nil {
		before = it.version()
		it.object = object
	}
	if object != nil && object.Labels[naming.LabelManagedBy] != naming.ManagedByBroker {
		return fmt.Errorf("semaphore did not create it: remove it, so that the broker can reserve addresses")
	}
	switch {
	case it == nil:
		if it, err = newShard(object); err != nil {
			return err
		}
		r.shards[i] = it
		r.publish(i, it)
	case it.version() == before:
		it.read = r.now()
		return nil
	default:
		r.log.Warn("an ipreservation is not as the broker last read or wrote it; the broker restores it",
			"name", shardName(i))
	}
	it.read = r.now()
	for _, states := range it.states {
		for addr, is := range states {
			states[addr] = state{is: is.is, since: r.now()}
		}
	}
	return nil
}

// newShard returns the shard of an object with the states in its annotation; object is nil if it does not exist.
func newShard(object *calicov3.IPReservation) (*shard, error) {
	it := &shard{object: object, states: map[string]map[netip.Addr]state{}}
	if object == nil {
		return it, nil
	}
	said, err := parseReserved(object.Annotations[reservedFor])
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w; delete the object, so that the broker reserves again", reservedFor, err)
	}
	for node, addrs := range said {
		it.states[node] = map[netip.Addr]state{}
		for addr, is := range addrs {
			it.states[node][addr] = state{is: is}
		}
	}
	return it, nil
}

// parseReserved parses the annotation of a shard. Each list that it accepts can be written back: an entry that is no
// address would become a reservation that Calico's IPAM cannot read.
func parseReserved(text string) (map[string]map[netip.Addr]string, error) {
	var said map[string]map[netip.Addr]string
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return nil, err
	}
	for _, node := range slices.Sorted(maps.Keys(said)) {
		for addr, is := range said[node] {
			if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
				return nil, fmt.Errorf("node %q: %q is not an address of a pod network", node, addr)
			}
			if is != pending && is != ready && is != retired {
				return nil, fmt.Errorf("node %q, address %s: %q is not %s, %s or %s", node, addr, is, pending, ready, retired)
			}
		}
	}
	return said, nil
}

// passShard makes one pass over the nodes of a shard, with one write.
func (r *reservations) passShard(ctx context.Context, i int, nodes []string, wanted map[string]wants,
	problems *[]string) error {
	if r.shards[i] == nil || r.now().Sub(r.shards[i].read) >= r.reread {
		if err := r.load(ctx, i); err != nil {
			return err
		}
	}
	it := r.shards[i]
	next := map[string]map[netip.Addr]state{}
	for node, states := range it.states {
		next[node] = maps.Clone(states)
	}
	// An address that is no longer the node's is retired, and released once the node's agent no longer has it. No agent
	// has a pending one.
	for node, states := range next {
		blocks, exists := wanted[node]
		for addr, is := range states {
			switch {
			case is.is != retired && within(addr, blocks.of(addr)):
			case !exists || is.is == pending:
				delete(states, addr)
			case is.is == ready, !r.knows(node):
				states[addr] = state{is: retired, since: r.now()}
			case r.now().Sub(is.since) >= r.retire:
				delete(states, addr)
			}
		}
	}
	for _, node := range slices.Sorted(slices.Values(nodes)) {
		if next[node] == nil {
			next[node] = map[netip.Addr]state{}
		}
		for _, blocks := range [][]netip.Prefix{wanted[node].v4, wanted[node].v6} {
			if len(blocks) == 0 {
				continue
			}
			if problem, err := r.reserve(ctx, node, blocks, next[node]); err != nil {
				return err
			} else if problem != "" {
				*problems = append(*problems, problem)
			}
		}
	}
	maps.DeleteFunc(next, func(_ string, states map[netip.Addr]state) bool { return len(states) == 0 })
	if err := r.write(ctx, i, next); err != nil {
		return err
	}
	it.states = next
	r.publish(i, it)
	return nil
}

func within(addr netip.Addr, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// reserve advances the reservation of a node in some blocks of one family. problem is why the node has no address.
func (r *reservations) reserve(ctx context.Context, node string, blocks []netip.Prefix,
	states map[netip.Addr]state) (problem string, err error) {
	for _, addr := range slices.SortedFunc(maps.Keys(states), netip.Addr.Compare) {
		is := states[addr]
		at := slices.IndexFunc(blocks, func(p netip.Prefix) bool { return p.Contains(addr) })
		if at < 0 || is.is == retired {
			continue
		}
		// A ready one is checked again after the quarantine: an assignment may have begun before the broker restored it.
		now, safe := r.now(), is.since.Add(r.quarantine)
		if is.is == pending && now.Before(safe) ||
			is.is == ready && now.Sub(is.checked) < r.verify && (now.Before(safe) || !is.checked.Before(safe)) {
			return "", nil
		}
		block, err := r.ipam.Block(ctx, blocks[at])
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return fmt.Sprintf("node %s: cannot see whether %s is free: %v", node, addr, err), nil
		case err == nil && block.OfNode(node) && block.Free(addr):
			states[addr] = state{is: ready, since: is.since, checked: r.now()}
			return "", nil
		case is.is == pending: // an assignment that was running has taken it
			delete(states, addr)
		default:
			r.log.Warn("an address that is reserved for the devices of a node is in use; the broker chooses another",
				"node", node,
				"address", addr)
			states[addr] = state{is: retired, since: r.now()}
		}
	}
	for _, prefix := range blocks {
		block, err := r.ipam.Block(ctx, prefix)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Sprintf("node %s: cannot read its block %s: %v", node, prefix, err), nil
		}
		if !block.OfNode(node) {
			continue
		}
		for _, addr := range block.LastFree() {
			if _, used := states[addr]; !used {
				states[addr] = state{is: pending, since: r.now()}
				return "", nil
			}
		}
	}
	return fmt.Sprintf("node %s: none of its blocks has a free address for its devices: pods on the host network, and "+
		"what kube-proxy masquerades, do not reach remote clusters", node), nil
}

func (r *reservations) write(ctx context.Context, i int, next map[string]map[netip.Addr]state) error {
	said := map[string]map[netip.Addr]string{}
	var reserved []string
	for node, states := range next {
		said[node] = map[netip.Addr]string{}
		for addr, is := range states {
			said[node][addr] = is.is
			reserved = append(reserved, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	slices.Sort(reserved)
	text, err := json.Marshal(said)
	if err != nil {
		return err
	}
	client, it := r.ipam.Reservations(), r.shards[i]
	object := it.object.DeepCopy()
	switch {
	case it.object == nil && len(reserved) == 0:
		return nil
	case it.object == nil:
		object, err = client.Create(ctx, &calicov3.IPReservation{
			ObjectMeta: metav1.ObjectMeta{
				Name: shardName(i), Labels: map[string]string{naming.LabelManagedBy: naming.ManagedByBroker},
				Annotations: map[string]string{reservedFor: string(text)},
			},
			Spec: calicov3.IPReservationSpec{ReservedCIDRs: reserved},
		})
	case it.object.DeletionTimestamp != nil && slices.Equal(it.object.Spec.ReservedCIDRs, reserved):
		return fmt.Errorf("deleted at %s, and kept by %s, which is not semaphore's: remove the finalizer, or ask its owner "+
			"why it remains", it.object.DeletionTimestamp.UTC().Format(time.RFC3339),
			strings.Join(it.object.Finalizers, ", "))
	// One that a finalizer keeps is emptied first: Calico reads it until it is gone.
	case len(reserved) == 0 && (len(it.object.Finalizers) == 0 || len(it.object.Spec.ReservedCIDRs) == 0):
		if err = client.Delete(ctx, it.object.Name, it.object.UID, it.object.ResourceVersion); err == nil {
			r.shards[i] = nil // read it again: a finalizer may keep it
			return nil
		}
	case it.object.Annotations[reservedFor] == string(text) && slices.Equal(it.object.Spec.ReservedCIDRs, reserved):
		return nil
	default:
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, reservedFor, string(text))
		object.Spec.ReservedCIDRs = reserved
		object, err = client.Update(ctx, object)
	}
	if err != nil {
		return err
	}
	kube.CopyCalicoMetadata(object)
	it.object = object
	return nil
}

// publish publishes the ready addresses of a shard that its object reserves, and calls changed for the nodes whose
// addresses differ.
func (r *reservations) publish(i int, it *shard) {
	reserved := map[string]bool{}
	if it.object != nil {
		for _, cidr := range it.object.Spec.ReservedCIDRs {
			reserved[cidr] = true
		}
	}
	next := map[string][]netip.Addr{}
	for node, states := range it.states {
		for addr, is := range states {
			if is.is == ready && reserved[netip.PrefixFrom(addr, addr.BitLen()).String()] {
				next[node] = append(next[node], addr)
			}
		}
		slices.SortFunc(next[node], netip.Addr.Compare)
	}
	var differ []string
	r.mu.Lock()
	for node := range r.ready {
		if next[node] == nil && shardOf(node) == i {
			delete(r.ready, node)
			differ = append(differ, node)
		}
	}
	for node, addrs := range next {
		if !slices.Equal(addrs, r.ready[node]) {
			r.ready[node] = addrs
			differ = append(differ, node)
		}
	}
	r.mu.Unlock()
	for _, node := range differ {
		r.changed(node)
	}
}
