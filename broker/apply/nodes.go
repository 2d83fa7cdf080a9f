package apply

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
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Tunnel is a node's end of the tunnel to one remote cluster, as its agent reports it.
type Tunnel struct {
	PublicKey  [32]byte
	ListenPort uint16
}

// Nodes follows the nodes of the own cluster and writes on them what their agents report: the
// two annotations for each remote, by a merge patch of just these. It removes none: whether an
// annotation of a remote that is no longer reported is ours or semaphore-wireguard's cannot be told.
type Nodes struct {
	kube     kubernetes.Interface
	families map[string]config.Family
	options  Options
	loop     *reconcile.Loop[string]
	newest   *newest[*corev1.Node]
	synced   atomic.Bool

	mu      sync.Mutex
	reports map[string]report
	gone    func(types.UID)
	seen    func(node *corev1.Node, gone bool)
}

type report struct {
	uid     types.UID
	tunnels map[string]Tunnel
	// guarded says that the node guards the pod subnets of all remotes.
	guarded bool
}

// NewNodes makes it. families are, by remote cluster, those by which its nodes and ours reach each other; any, of those
// that are not in it. gone is called with the UID of each node that is deleted.
func NewNodes(kube kubernetes.Interface, families map[string]config.Family, gone func(types.UID), options Options) *Nodes {
	n := &Nodes{kube: kube, families: families, options: options, newest: newNewest[*corev1.Node](), reports: map[string]report{}, gone: gone}
	n.loop = reconcile.New("node", n.reconcile, reconcile.Options{Workers: options.Workers, Metrics: options.Metrics.Loops, Log: options.Log})
	return n
}

// OnChange calls seen with each node, reduced to what is used here, whenever it may have changed, and when it has gone.
// It is called before Run.
func (n *Nodes) OnChange(seen func(node *corev1.Node, gone bool)) {
	n.seen = seen
}

// Report takes what the agent of a node says now of all its devices, by remote cluster.
func (n *Nodes) Report(node string, uid types.UID, tunnels map[string]Tunnel) {
	n.mu.Lock()
	was, ok := n.reports[node]
	n.reports[node] = report{uid, maps.Clone(tunnels), was.guarded && was.uid == uid}
	n.mu.Unlock()
	if !ok || was.uid != uid || !maps.Equal(was.tunnels, tunnels) {
		n.loop.Enqueue(node)
	}
}

// Guarded takes that a node guards the pod subnets of all remotes, after its first report: pods may run there. What it was
// tainted with until then is removed.
func (n *Nodes) Guarded(node string, uid types.UID) {
	n.mu.Lock()
	r, ok := n.reports[node]
	news := ok && r.uid == uid && !r.guarded
	if news {
		r.guarded = true
		n.reports[node] = r
	}
	n.mu.Unlock()
	if news {
		n.loop.Enqueue(node)
	}
}

// UID is that of the live node of a name.
func (n *Nodes) UID(name string) (types.UID, bool) {
	node, ok := n.newest.get(name)
	if !ok {
		return "", false
	}
	return node.UID, true
}

// Names of the nodes there are.
func (n *Nodes) Names() []string {
	store := n.newest.informed()
	if store == nil {
		return nil
	}
	return store.ListKeys()
}

// Synced says whether the nodes are known.
func (n *Nodes) Synced() bool { return n.synced.Load() }

// Problems are the nodes that cannot be annotated, a line each.
func (n *Nodes) Problems() []string {
	var lines []string
	for _, p := range n.loop.Problems() {
		lines = append(lines, fmt.Sprintf("node %s: %v (since %s)", p.Key, p.Err, p.Since.UTC().Format(time.RFC3339)))
	}
	return lines
}

// Run follows and writes until ctx ends.
func (n *Nodes) Run(ctx context.Context) error {
	informer, err := following[*corev1.Node]{
		kind: "node", listWatch: listWatch(n.kube.CoreV1().Nodes(), metav1.ListOptions{}), example: &corev1.Node{}, reduce: reduceNode, saw: n.saw,
	}.informer(n.options)
	if err != nil {
		return err
	}
	store := informer.GetStore()
	n.newest.store.Store(&store)
	ctx, stop := follow(ctx, informer)
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return ctx.Err()
	}
	n.synced.Store(true)
	return n.loop.Run(ctx)
}

// saw takes what became of a node.
func (n *Nodes) saw(before, node *corev1.Node, gone bool) {
	if before != nil && before.UID != node.UID {
		n.forget(before) // it was deleted and made anew while the watch was down
	}
	n.newest.saw(node.Name, node, gone)
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

// reduceNode keeps of a node what is used here: a heartbeat then changes nothing but its version.
func reduceNode(node *corev1.Node) *corev1.Node {
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, CreationTimestamp: node.CreationTimestamp, ResourceVersion: node.ResourceVersion,
		},
		Spec: corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints},
	}
	for key, value := range node.Annotations {
		if _, ours := naming.WireGuardAnnotationCluster(key); ours || slices.Contains(naming.CalicoTunnelAddresses, key) {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, key, value)
		}
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out.Status.Addresses = append(out.Status.Addresses, a)
		}
	}
	return out
}

// Ends are the public keys on a node and its addresses, as far as they can be read; none of one that has gone.
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

// reconcile writes the annotations of one node, and removes our taint.
func (n *Nodes) reconcile(ctx context.Context, name string) error {
	node, ok := n.newest.get(name)
	n.mu.Lock()
	r, reported := n.reports[name]
	n.mu.Unlock()
	if !ok || !reported || r.uid != node.UID {
		return nil
	}
	// By itself, and last: what a policy or a right that is not there forbids of it holds no annotation back.
	annotated := n.annotate(ctx, name, node, r)
	if r.guarded && slices.ContainsFunc(node.Spec.Taints, isOurTaint) {
		return errors.Join(annotated, n.untaint(ctx, name))
	}
	return annotated
}

func isOurTaint(t corev1.Taint) bool { return t.Key == naming.TaintAgentNotReady }

// untaint removes the taint by which pods were kept off a node until its agent guards it, and no other.
func (n *Nodes) untaint(ctx context.Context, name string) error {
	node, ok := n.newest.get(name) // with the annotations that were just written
	if !ok {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurTaint)
	return n.patch(ctx, node, map[string]any{"spec": map[string]any{"taints": rest}}, "untaint",
		"the agent guards the pod subnets of all remotes: without the taint "+naming.TaintAgentNotReady)
}

func (n *Nodes) annotate(ctx context.Context, name string, node *corev1.Node, r report) error {
	wanted, missing := annotations(node, r.tunnels, n.families)
	changed := map[string]string{}
	for key, value := range wanted {
		if node.Annotations[key] != value {
			changed[key] = value
		}
	}
	if len(changed) == 0 {
		return missing
	}
	return errors.Join(missing, n.patch(ctx, node, map[string]any{"metadata": map[string]any{"annotations": changed}}, "annotate",
		fmt.Sprintf("%d annotations for the tunnels of its agent", len(changed))))
}

// patch changes what a merge patch names of a node, as long as the node is the one that is known.
func (n *Nodes) patch(ctx context.Context, node *corev1.Node, what map[string]any, action, detail string) error {
	metadata, _ := what["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	// The UID makes the patch fail on a node that was made anew under the name, and the version on one that has changed
	// since: a broker that was deposed and does not know yet must not write over its successor's word, and a taint that
	// someone has added meanwhile must not go.
	metadata["uid"], metadata["resourceVersion"] = node.UID, node.ResourceVersion
	what = maps.Clone(what)
	what["metadata"] = metadata
	patch, err := json.Marshal(what)
	if err != nil {
		return err
	}
	out, err := n.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		n.options.Metrics.write("node", "patch", "ok")
		n.newest.wrote(node.Name, reduceNode(out))
		n.options.Recorder.Record(debug.Event{Object: "node " + node.Name, Action: action, Detail: detail})
		return nil
	case ctx.Err() != nil:
		return err
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		n.options.Metrics.write("node", "patch", "conflict")
		n.newest.forget(node.Name)
		n.loop.EnqueueAfter(node.Name, afterConflict)
		return nil
	}
	n.options.Metrics.write("node", "patch", "error")
	n.options.Recorder.Record(debug.Event{Object: "node " + node.Name, Action: action + "-failed", Detail: err.Error()})
	return fmt.Errorf("%s the node: %w", action, err)
}
