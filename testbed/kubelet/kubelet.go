//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
)

// Node is a node of the cluster.
type Node struct {
	// Name is that of the Node object, which must exist for pods to be scheduled to it.
	Name string
	// Netns is the node's network namespace. It needs forwarding and a default route (proxy ARP answers only with one).
	Netns *netns.Namespace
	// IP is the node's address: hostIP of its pods, podIP of those on the host network.
	IP netip.Addr
	// PodCIDR is where pod IPs come from, IPv4.
	PodCIDR netip.Prefix
	// Root is a directory that stands for the node's disk: hostPath volumes are below it, except those below /dev, which
	// are the machine's.
	Root string
}

// Image is what an image holds.
type Image struct {
	Entrypoint []string
	// Binaries are files of the machine by their path in the container. Paths below /usr must be below /usr/local.
	Binaries map[string]string
	// User and Group run the processes if the pod does not say otherwise; 0 is root.
	User, Group int
}

// Config is what a Kubelet needs to know.
type Config struct {
	// Cluster is the cluster's name, for logs.
	Cluster string
	// REST reaches the apiserver with the rights of a kubelet for all nodes and of a scheduler.
	REST *rest.Config
	// Nodes are the nodes to serve; pods of other nodes are left alone.
	Nodes []Node
	// Images by name, without registry, tag or digest.
	Images map[string]Image
	// Dir holds the files of pods while they live, and logs below Dir/logs, which stay.
	Dir string
	// ClusterDNS is the DNS server of pods, ClusterDomain the domain of services.
	ClusterDNS    netip.Addr
	ClusterDomain string
	// APIServer is the ClusterIP and port of the service kubernetes; none is told to pods if it is not valid.
	APIServer netip.AddrPort
	// NetnsPrefix begins the names of pod network namespaces; NAMESPACE.POD follows.
	NetnsPrefix string
	// MTU of pod interfaces; 1500 when 0.
	MTU int
	// Log is slog's default when nil.
	Log *slog.Logger
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(c.REST != nil, "REST: want a client configuration")
	need(filepath.IsAbs(c.Dir), "Dir %q: want an absolute path", c.Dir)
	need(c.ClusterDNS.IsValid(), "ClusterDNS: want an address")
	need(c.ClusterDomain != "", "ClusterDomain: want a domain such as cluster.local")
	need(c.NetnsPrefix != "", "NetnsPrefix: want a prefix, namespaces of the machine share their names")
	need(len(c.Nodes) > 0, "Nodes: want at least one")
	seen := map[string]bool{}
	for i, n := range c.Nodes {
		need(n.Name != "" && !seen[n.Name], "Nodes[%d].Name %q: want a name of its own", i, n.Name)
		need(n.Netns != nil, "Nodes[%d].Netns: want the node's network namespace", i)
		need(n.IP.IsValid(), "Nodes[%d].IP: want an address", i)
		need(filepath.IsAbs(n.Root), "Nodes[%d].Root %q: want an absolute path", i, n.Root)
		seen[n.Name] = true
	}
	return errors.Join(errs...)
}

// Kubelet serves the nodes of one cluster.
type Kubelet struct {
	config   Config
	log      *slog.Logger
	client   kubernetes.Interface
	machines map[string]*machine
	order    []string // names of machines as configured

	machineMounts []container.Mount

	// Set by Run before anything reads them.
	events     record.EventRecorder
	pods       listers.PodLister
	nodes      listers.NodeLister
	services   listers.ServiceLister
	configMaps listers.ConfigMapLister
	secrets    listers.SecretLister
	queue      workqueue.TypedRateLimitingInterface[types.NamespacedName]
	running    sync.WaitGroup // workers

	mu       sync.Mutex // guards the following
	workers  map[types.UID]*worker
	finished map[types.UID]types.NamespacedName // their workers have ended, the watch still shows them
	holds    map[*hold]bool
	failures []error // of workers that ended

	scheduling sync.Mutex                // guards assumed, and a choice together with what it counts on
	assumed    map[types.UID]*corev1.Pod // bound, and not shown so by the watch yet
}

type hold struct{ namespace, prefix string }

// New checks the configuration. Nothing is started or made before Run.
func New(c Config) (*Kubelet, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	k := &Kubelet{
		config: c, log: c.Log.With("cluster", c.Cluster), machines: map[string]*machine{},
		workers: map[types.UID]*worker{}, finished: map[types.UID]types.NamespacedName{},
		holds: map[*hold]bool{}, assumed: map[types.UID]*corev1.Pod{},
	}
	for i, n := range c.Nodes {
		addresses, err := newAddresses(n.PodCIDR)
		if err != nil {
			return nil, fmt.Errorf("kubelet: Nodes[%d].%w", i, err)
		}
		k.machines[n.Name] = &machine{Node: n, addresses: addresses}
		k.order = append(k.order, n.Name)
	}
	config := rest.CopyConfig(c.REST)
	config.QPS = -1 // one client stands for many
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = "testbed-kubelet"
	var err error
	if k.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("kubelet: REST: %w", err)
	}
	if k.machineMounts, err = machineMounts(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

// schedulers is how many pods are looked at at a time; what takes long is done by the pods' workers.
const schedulers = 4

// Run serves the nodes until ctx ends. Then it ends every process of its pods, and removes their network namespaces and
// files, with no word to the apiserver. What could not be removed is the error. It may be called once.
func (k *Kubelet) Run(ctx context.Context) error {
	for _, dir := range []string{k.etcDir(), k.pidDir(), filepath.Join(k.config.Dir, "pods"), filepath.Join(k.config.Dir, "logs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("kubelet: %w", err)
		}
	}
	if err := writeEtc(k.etcDir()); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: k.client.CoreV1().Events("")})
	k.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet"})
	k.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, 2*time.Second))

	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTransform(withoutManagedFields))
	if err := k.watch(factory); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	var loops sync.WaitGroup
	for range schedulers {
		loops.Go(func() {
			for k.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	k.queue.ShutDown()
	loops.Wait() // no worker is started any more
	k.running.Wait()
	factory.Shutdown()
	return k.clean()
}

// clean removes what all pods shared, when the last is gone.
func (k *Kubelet) clean() error {
	k.mu.Lock()
	errs := k.failures
	k.mu.Unlock()
	for _, dir := range []string{k.etcDir(), k.pidDir(), filepath.Join(k.config.Dir, "pods")} {
		errs = append(errs, os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("kubelet: clean up: %w", err)
	}
	return nil
}

func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// watch sets up the informers and what they lead to.
func (k *Kubelet) watch(factory informers.SharedInformerFactory) error {
	core := factory.Core().V1()
	k.pods, k.nodes, k.services = core.Pods().Lister(), core.Nodes().Lister(), core.Services().Lister()
	k.configMaps, k.secrets = core.ConfigMaps().Lister(), core.Secrets().Lister()

	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingObjectToName(object); err == nil {
			k.queue.Add(types.NamespacedName{Namespace: key.Namespace, Name: key.Name})
		}
	}
	_, podsErr := core.Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) }, DeleteFunc: enqueue,
	})
	_, nodesErr := core.Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.enqueuePending() },
		UpdateFunc: func(before, after any) {
			a, b := before.(*corev1.Node), after.(*corev1.Node)
			if a.Generation != b.Generation || !labels.Equals(a.Labels, b.Labels) {
				k.enqueuePending()
			}
		},
	})
	changed := func(kind string) cache.ResourceEventHandler {
		changed := func(object any) {
			if key, err := cache.DeletionHandlingObjectToName(object); err == nil {
				k.sourceChanged(kind, key.Namespace, key.Name)
			}
		}
		return cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: changed,
		}
	}
	_, configMapsErr := core.ConfigMaps().Informer().AddEventHandler(changed("ConfigMap"))
	_, secretsErr := core.Secrets().Informer().AddEventHandler(changed("Secret"))
	return errors.Join(podsErr, nodesErr, configMapsErr, secretsErr)
}

// enqueuePending has all pods without a node looked at again.
func (k *Kubelet) enqueuePending() {
	pods, _ := k.pods.List(labels.Everything())
	for _, pod := range pods {
		if pod.Spec.NodeName == "" {
			k.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
}

// sourceChanged wakes the pods that show an object in a volume.
func (k *Kubelet) sourceChanged(kind, namespace, name string) {
	for _, w := range k.allWorkers() {
		if pod, _ := w.current(); pod.Namespace == namespace && refersTo(pod, kind, name) {
			w.volumesDirty.Store(true)
			w.poke()
		}
	}
}

// addressFreed wakes the pods of a node; one may wait for the address.
func (k *Kubelet) addressFreed(m *machine) {
	for _, w := range k.allWorkers() {
		if w.node == m {
			w.poke()
		}
	}
}

func (k *Kubelet) allWorkers() []*worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		list = append(list, w)
	}
	return list
}

// next takes one pod from the queue; false when the queue has shut down.
func (k *Kubelet) next(ctx context.Context) bool {
	key, shutdown := k.queue.Get()
	if shutdown {
		return false
	}
	defer k.queue.Done(key)
	if err := k.look(ctx, key); err != nil && ctx.Err() == nil {
		if k.queue.NumRequeues(key) == 0 {
			k.log.Warn("cannot place pod", "pod", key.String(), "err", err)
		}
		k.queue.AddRateLimited(key)
		return true
	}
	k.queue.Forget(key)
	return true
}

// look hands the newest state of a pod to its worker, or gives the pod a node.
func (k *Kubelet) look(ctx context.Context, key types.NamespacedName) error {
	pod, err := k.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var uid types.UID
	if pod != nil {
		uid = pod.UID
	}
	k.forgetOthers(key, uid)
	if pod == nil {
		return nil
	}
	if pod.Spec.NodeName == "" {
		return k.schedule(ctx, pod)
	}
	k.scheduling.Lock()
	delete(k.assumed, uid)
	k.scheduling.Unlock()
	if node := k.machines[pod.Spec.NodeName]; node != nil {
		k.serve(ctx, node, pod)
	}
	return nil
}

// forgetOthers tells the workers of earlier pods under a name that these are no more.
func (k *Kubelet) forgetOthers(key types.NamespacedName, uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, w := range k.workers {
		if other != uid && w.key == key.Namespace+"/"+key.Name {
			w.markGone()
		}
	}
	for other, name := range k.finished {
		if other != uid && name == key {
			delete(k.finished, other)
		}
	}
	k.scheduling.Lock()
	defer k.scheduling.Unlock()
	for other, p := range k.assumed {
		if other != uid && p.Namespace == key.Namespace && p.Name == key.Name {
			delete(k.assumed, other)
		}
	}
}

// serve hands a pod to its worker, which it starts if there is none.
func (k *Kubelet) serve(ctx context.Context, node *machine, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[pod.UID]; w != nil {
		w.update(pod)
		return
	}
	if _, ok := k.finished[pod.UID]; ok || ctx.Err() != nil {
		return
	}
	w := newWorker(k, node, pod)
	k.workers[pod.UID] = w
	k.running.Go(func() {
		err := w.run(ctx)
		if err != nil {
			k.log.Error("cannot clean up after pod", "err", err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if err != nil {
			k.failures = append(k.failures, err)
		}
		delete(k.workers, pod.UID)
		if _, gone := w.current(); !gone {
			k.finished[pod.UID] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		}
	})
}

// held tells whether a test holds the containers of a pod.
func (k *Kubelet) held(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := range k.holds {
		if h.namespace == pod.Namespace && strings.HasPrefix(pod.Name, h.prefix) {
			return true
		}
	}
	return false
}

func (k *Kubelet) etcDir() string { return filepath.Join(k.config.Dir, "etc") }
