// Package nodes watches the nodes of the own cluster, and writes on them what their agents report. It computes the
// prefixes from which the pods of a node get their IPs, the Calico pools of remote pod subnets, and on which nodes an
// agent is expected.
//
// It owns the annotations of tunnels and the removal of the broker's taint. Inputs are the informer's nodes and agents'
// reports; outputs are merge patches, and nodes for other parts.
package nodes

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Tunnel is a node's end of the tunnel to one remote cluster, as its agent reports it.
type Tunnel struct {
	PublicKey  [32]byte
	ListenPort uint16
}

// Nodes watches the nodes of the own cluster, and writes what their agents report: the annotations for each remote, by
// a merge patch of only these. It removes none of a remote that is no longer reported: it cannot know whether semaphore
// or semaphore-wireguard wrote it.
type Nodes struct {
	kube    kubernetes.Interface
	options apply.Options
	loop    *reconcile.Loop[string]
	synced  atomic.Bool
	store   apply.Store[*corev1.Node]
	belief  *writes.Belief[*corev1.Node]

	mu        sync.Mutex
	endpoints endpoints
	reports   map[string]agentReport
	// lacking are the nodes without an address for a remote, or with an invalid one: a change repairs it, and no retry.
	lacking map[string]reconcile.Problem
	gone    func(types.UID)
	seen    func(node *corev1.Node, gone bool)
	known   func()
}

type agentReport struct {
	uid     types.UID
	tunnels map[string]Tunnel
	// guarded is true if the node guards the pod subnets of all remotes.
	guarded bool
}

// New returns Nodes. kinds are the addresses that are published, in order. families are the address families of the
// endpoints, by remote cluster; a remote without an entry has any. local are the own cluster's subnets. Run calls seen,
// if it is not nil, with each node, reduced to the fields in use, whenever it may have changed, and when it is deleted;
// known, if it is not nil, after seen had all nodes that there were; and gone with the UID of each deleted node.
func New(kube kubernetes.Interface, kinds []config.EndpointKind, families map[string]config.Family,
	local []netip.Prefix, seen func(node *corev1.Node, gone bool), known func(), gone func(types.UID),
	options apply.Options) *Nodes {
	n := &Nodes{kube: kube, options: options, reports: map[string]agentReport{}, seen: seen, known: known, gone: gone,
		endpoints: endpoints{kinds: kinds, families: families, local: local}, lacking: map[string]reconcile.Problem{}}
	n.belief = writes.NewBelief[*corev1.Node]()
	n.loop = reconcile.New(string(writes.Node), n.reconcile, reconcile.Options{
		Workers: options.Workers, Cause: apply.CauseOf, Metrics: options.Metrics.Loops, Log: options.Log,
	})
	return n
}

func (n *Nodes) Follow(families map[string]config.Family) {
	n.mu.Lock()
	was, reported := n.endpoints.families, slices.Collect(maps.Keys(n.reports))
	n.endpoints.families = families
	n.mu.Unlock()
	for cluster, family := range families {
		if before, had := was[cluster]; had && before != family {
			for _, node := range reported {
				n.loop.News(node)
			}
			return
		}
	}
}

// Report records a report of a node's agent on all its devices, by remote cluster. A node that was guarded once guards
// the pod subnets of all remotes, so that pods may run there: the broker then removes its taint.
func (n *Nodes) Report(node string, uid types.UID, tunnels map[string]Tunnel, guarded bool) {
	n.mu.Lock()
	was, ok := n.reports[node]
	ok = ok && was.uid == uid
	is := agentReport{uid, maps.Clone(tunnels), guarded || ok && was.guarded}
	n.reports[node] = is
	n.mu.Unlock()
	if !ok || was.guarded != is.guarded || !maps.Equal(was.tunnels, tunnels) {
		n.loop.News(node)
	}
}

func (n *Nodes) UID(name string) (types.UID, bool) {
	node, ok := n.Node(name)
	if !ok {
		return "", false
	}
	return node.UID, true
}

// Node returns a node, own writes included, reduced to the fields in use.
func (n *Nodes) Node(name string) (*corev1.Node, bool) { return n.belief.Get(time.Now(), name) }

func (n *Nodes) Names() []string { return n.store.Keys() }

func (n *Nodes) Synced() bool { return n.synced.Load() }

func (n *Nodes) Findings() []finding.Finding {
	var lines []string
	n.mu.Lock()
	lacking := slices.Collect(maps.Values(n.lacking))
	n.mu.Unlock()
	for _, p := range append(n.loop.Problems(), lacking...) {
		lines = append(lines, fmt.Sprintf("node %s: %v (since %s)", p.Key, p.Err, p.Since.UTC().Format(time.RFC3339)))
	}
	slices.Sort(lines)
	return finding.Lines(finding.NodeUnwritten, "", lines)
}

// Run watches and writes until ctx ends, and returns ctx's error.
func (n *Nodes) Run(ctx context.Context) error {
	return apply.Watch[*corev1.Node]{
		Kind: writes.Node, ListWatch: apply.ListWatch(n.kube.CoreV1().Nodes(), metav1.ListOptions{}),
		Example: &corev1.Node{}, Reduce: reduceNode, Saw: n.saw,
	}.Run(ctx, n.options.Informers(), &n.store, func(ctx context.Context) error {
		n.synced.Store(true)
		if n.known != nil {
			n.known()
		}
		return n.loop.Run(ctx)
	})
}

func (n *Nodes) saw(before, node *corev1.Node, gone bool) {
	if before != nil && before.UID != node.UID {
		n.forget(before) // the node was deleted and created again while the watch was down
	}
	n.belief.Informed(node.Name, node, gone)
	if n.seen != nil {
		n.seen(node, gone)
	}
	if gone {
		n.forget(node)
	}
	n.loop.Enqueue(node.Name)
}

func (n *Nodes) forget(node *corev1.Node) {
	n.mu.Lock()
	if n.reports[node.Name].uid == node.UID {
		delete(n.reports, node.Name)
	}
	n.mu.Unlock()
	n.gone(node.UID)
}

// reduceNode keeps the fields in use: a heartbeat then changes only the resource version.
func reduceNode(node *corev1.Node) *corev1.Node {
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, CreationTimestamp: node.CreationTimestamp, ResourceVersion: node.ResourceVersion,
			Labels: node.Labels,
		},
		Spec: corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints},
	}
	for key, value := range node.Annotations {
		if _, ours := naming.WireGuardAnnotationCluster(key); ours || naming.IsReachableAt(key) ||
			slices.Contains(naming.CalicoTunnelAddresses, key) {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
		}
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			out.Status.Addresses = append(out.Status.Addresses, a)
		}
	}
	return out
}

// Ends returns the public keys and addresses on a node, as far as they can be read; none for a deleted node.
func Ends(node *corev1.Node, gone bool) (name string, keys [][]byte, addresses []netip.Addr) {
	if gone {
		return node.Name, nil, nil
	}
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if cluster, ours := naming.WireGuardAnnotationCluster(key); !ours || key != naming.PubKeyAnnotation(cluster) {
			continue
		}
		if public, err := base64.StdEncoding.DecodeString(node.Annotations[key]); err == nil && len(public) == 32 {
			keys = append(keys, public)
		}
	}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			addresses = append(addresses, ip)
		}
	}
	return node.Name, keys, addresses
}

// reconcile writes the annotations of one node, and removes the broker's taint.
func (n *Nodes) reconcile(ctx context.Context, name string) error {
	node, ok := n.Node(name)
	n.mu.Lock()
	r, reported := n.reports[name]
	n.mu.Unlock()
	if !ok || !reported || r.uid != node.UID {
		n.lacks(name, nil)
		return nil
	}
	// This is a separate write, and the last one: a policy or a missing right that forbids it must not delay an
	// annotation.
	annotated := n.annotate(ctx, name, node, r)
	if r.guarded && slices.ContainsFunc(node.Spec.Taints, isOurTaint) {
		return errors.Join(annotated, n.untaint(ctx, name))
	}
	return annotated
}

func isOurTaint(t corev1.Taint) bool { return naming.IsAgentTaint(t.Key) }

// untaint removes only the taints that keep pods off a node until its agent guards it.
func (n *Nodes) untaint(ctx context.Context, name string) error {
	node, ok := n.Node(name) // the version with the annotations just written
	if !ok {
		return nil
	}
	at := slices.IndexFunc(node.Spec.Taints, isOurTaint)
	if at < 0 {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurTaint)
	return n.patch(ctx, node, map[string]any{"spec": map[string]any{"taints": rest}}, "untaint",
		"the agent guards the pod subnets of all remotes: without the taint "+
			node.Spec.Taints[at].Key)
}

func (n *Nodes) annotate(ctx context.Context, name string, node *corev1.Node, r agentReport) error {
	n.mu.Lock()
	endpoints := n.endpoints
	n.mu.Unlock()
	wanted, missing := endpoints.annotations(node, r.tunnels)
	n.lacks(name, missing)
	changed, patch := map[string]string{}, map[string]any{}
	for key, value := range wanted {
		if node.Annotations[key] == value {
			continue
		}
		changed[key], patch[key] = value, value
		if value == "" {
			patch[key] = nil
		}
	}
	if len(changed) == 0 {
		return nil
	}
	detail := fmt.Sprintf("%d annotations for the tunnels of its agent", len(changed))
	if line := moved(node, changed); line != "" {
		detail += "; " + line
		n.options.Log.Warn(line)
		n.options.Events.Warn("", finding.EndpointMoved, line)
	}
	return n.patch(ctx, node, map[string]any{"metadata": map[string]any{"annotations": patch}}, "annotate", detail)
}

// lacks records why the addresses of a node are not enough for all remotes; nil if they are.
func (n *Nodes) lacks(name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		delete(n.lacking, name)
		return
	}
	was, had := n.lacking[name]
	if !had {
		was = reconcile.Problem{Key: name, Since: time.Now()}
	}
	if !had || was.Err.Error() != err.Error() {
		n.loop.Warn(name, "the addresses of a node are not enough for all remotes", "node", name, "error", err)
	}
	was.Err = err
	n.lacking[name] = was
}

// patch changes the fields of a node that a merge patch, which it completes, names, if the node is still the known one.
func (n *Nodes) patch(ctx context.Context, node *corev1.Node, what map[string]any, action, detail string) error {
	metadata, ok := what["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
		what["metadata"] = metadata
	}
	// With the UID the patch fails on a node that was created again under the name, and with the version on one that
	// has changed since: a deposed broker that does not know it yet must not overwrite its successor, and must not remove
	// a taint that another writer added meanwhile.
	metadata["uid"], metadata["resourceVersion"] = node.UID, node.ResourceVersion
	patch, err := json.Marshal(what)
	if err != nil {
		return err
	}
	out, err := n.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		n.options.Metrics.Write(writes.Node, "patch", "ok")
		n.belief.Wrote(time.Now(), node.Name, reduceNode(out))
		n.options.Recorder.Record(debug.Event{Object: "node " + node.Name, Action: action, Detail: detail})
		return nil
	case ctx.Err() != nil:
		return err
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		n.options.Metrics.Write(writes.Node, "patch", "conflict")
		n.belief.Forget(node.Name)
		n.loop.EnqueueAfter(node.Name, writes.AfterConflict)
		return nil
	}
	n.options.Metrics.Write(writes.Node, "patch", "error")
	n.options.Recorder.Record(debug.Event{Object: "node " + node.Name, Action: action + "-failed", Detail: err.Error()})
	return fmt.Errorf("%s the node: %w", action, err)
}
