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
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/container"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stopSignal asks a container to end.
const stopSignal = syscall.SIGTERM

// Retry of what the apiserver or the machine refused.
const (
	firstRetry = 100 * time.Millisecond
	mostRetry  = 5 * time.Second
)

// worker is the life of one pod on its node. Its goroutine owns all it has but the fields under mu. It is level-triggered:
// whatever happens wakes it, and it then does what is to be done by the state of things.
type worker struct {
	kubelet *Kubelet
	node    *machine
	uid     types.UID
	key     string // namespace/name
	log     *slog.Logger
	wake    chan struct{} // holds one
	// volumesDirty tells that an object shown in a volume, or the pod, has changed.
	volumesDirty atomic.Bool
	tasks        sync.WaitGroup // probes, stops, waiting for processes

	mu        sync.Mutex // guards the following, which others read or write
	pod       *corev1.Pod
	gone      bool // the API object is no more
	network   *podNetwork
	processes map[string]*container.Process

	place       placement
	address     netip.Addr // reserved in the node's addresses
	volumes     volumes
	renderAt    time.Time
	prepared    bool
	problem     string // of preparing, as it was last told
	retries     int
	accepted    time.Time
	initialized bool
	inits       []*podContainer
	containers  []*podContainer
	written     corev1.PodStatus // as the apiserver has it
	writeErrors int
	final       bool // no container will ever run again
	ended       bool // deleted, and the last process is gone
	rejected    string
}

func newWorker(k *Kubelet, node *machine, pod *corev1.Pod) *worker {
	w := &worker{
		kubelet: k, node: node, uid: pod.UID, key: pod.Namespace + "/" + pod.Name, pod: pod,
		log:       k.log.With("pod", pod.Namespace+"/"+pod.Name, "node", node.Name),
		wake:      make(chan struct{}, 1),
		processes: map[string]*container.Process{},
		place:     placement{hostIP: node.IP},
		volumes: volumes{
			dir: filepath.Join(podDir(k.config.Dir, pod.UID), "volumes"), node: node, from: k, request: k.requestToken,
		},
		accepted: time.Now(), written: *pod.Status.DeepCopy(),
		final: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	reason := reasonCreating
	spec := pod.Spec.DeepCopy()
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil {
			w.rejected = fmt.Sprintf("init container %s has a restartPolicy: the testbed's kubelet runs no such sidecars", c.Name)
		}
		w.inits = append(w.inits, &podContainer{spec: c, init: true, state: waiting(reasonInit)})
		reason = reasonInit
	}
	for i := range spec.Containers {
		w.containers = append(w.containers, &podContainer{spec: &spec.Containers[i], state: waiting(reason)})
	}
	w.volumesDirty.Store(true)
	return w
}

// poke wakes the worker; safe for all.
func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update tells the worker the newest state of its pod.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	before := w.pod
	w.pod = pod
	w.mu.Unlock()
	if !apiequality.Semantic.DeepEqual(before.Labels, pod.Labels) || !apiequality.Semantic.DeepEqual(before.Annotations, pod.Annotations) {
		w.volumesDirty.Store(true) // a downward API volume may show them
	}
	w.poke()
}

// markGone tells the worker that its pod is no more.
func (w *worker) markGone() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	w.poke()
}

func (w *worker) current() (pod *corev1.Pod, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.gone
}

// run carries the pod until it is gone or ctx ends. Nothing of the pod is left on the machine then, except what the
// error says.
func (w *worker) run(ctx context.Context) error {
	for {
		pod, gone := w.current()
		var next time.Time
		switch {
		case ctx.Err() != nil || gone:
			return w.release()
		case pod.DeletionTimestamp != nil:
			if w.delete(ctx) {
				return w.release()
			}
			continue
		case !w.final:
			next = w.step(ctx, pod)
			next = earlier(next, w.publish(ctx, pod))
			if w.written.Phase == corev1.PodSucceeded || w.written.Phase == corev1.PodFailed {
				// As a kubelet stops the sandbox of a pod that is done: its IP may be another's from now on.
				w.final = true
				if err := w.releaseNetwork(); err != nil {
					w.log.Error("cannot remove network of finished pod", "err", err)
				}
			}
		}
		w.sleep(ctx, next)
	}
}

// sleep waits until the worker is woken, or the time has come if it is not zero.
func (w *worker) sleep(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-due:
	}
}

// step does what can be done for a pod that is to run, and says when to go on.
func (w *worker) step(ctx context.Context, pod *corev1.Pod) time.Time {
	if w.rejected != "" {
		return time.Time{}
	}
	next, err := w.prepare(ctx, pod)
	if err != nil && ctx.Err() == nil {
		w.retries++
		if w.problem != err.Error() {
			w.problem = err.Error()
			w.log.Warn("cannot prepare pod", "err", err)
			w.kubelet.events.Event(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", err.Error())
		}
		next = time.Now().Add(min(firstRetry<<min(w.retries, 10), mostRetry))
	}
	if !w.prepared || ctx.Err() != nil {
		return next
	}
	if err == nil {
		w.problem, w.retries = "", 0
	}
	for _, c := range w.inits {
		if c.succeeded() {
			continue
		}
		if next = earlier(next, w.advance(ctx, pod, c)); !c.succeeded() {
			return next
		}
	}
	w.initialized = true
	for _, c := range w.containers {
		next = earlier(next, w.advance(ctx, pod, c))
	}
	return next
}

// prepare makes network, files and volumes, as far as they are not as they should be.
func (w *worker) prepare(ctx context.Context, pod *corev1.Pod) (next time.Time, err error) {
	if !w.place.podIP.IsValid() {
		if err := w.connect(ctx, pod); err != nil {
			return time.Time{}, err
		}
	}
	now := time.Now()
	due := !w.renderAt.IsZero() && !now.Before(w.renderAt)
	if w.volumesDirty.Swap(false) || due {
		if w.renderAt, err = w.volumes.render(ctx, pod, w.place, now); err != nil {
			w.volumesDirty.Store(true)
			return time.Time{}, err
		}
	}
	if !w.prepared {
		k := w.kubelet
		etc := filepath.Join(podDir(k.config.Dir, w.uid), "etc")
		if err := writePodEtc(etc, pod, w.node, w.place.podIP, k.config.ClusterDNS, k.config.ClusterDomain); err != nil {
			return time.Time{}, err
		}
		w.prepared = true
	}
	return w.renderAt, nil
}

// connect gives the pod its network, and the apiserver the pod's IP: Felix lets traffic through by it.
func (w *worker) connect(ctx context.Context, pod *corev1.Pod) error {
	if pod.Spec.HostNetwork {
		w.place.podIP = w.node.IP
		return nil
	}
	var want netip.Addr
	if text := pod.Annotations[AddressAnnotation]; text != "" {
		var err error
		if want, err = netip.ParseAddr(text); err != nil {
			return fmt.Errorf("annotation %s: %w", AddressAnnotation, err)
		}
	}
	ip, err := w.node.takeAddress(want)
	if err != nil {
		return fmt.Errorf("assign pod IP: %w", err)
	}
	k := w.kubelet
	network, err := connectPod(w.node, netnsName(k.config.NetnsPrefix, pod.Namespace, pod.Name),
		VethName(pod.Namespace, pod.Name), ip, k.config.MTU)
	if err != nil {
		w.node.giveBackAddress(ip)
		return fmt.Errorf("connect pod: %w", err)
	}
	w.address, w.place.podIP = ip, ip
	w.mu.Lock()
	w.network = network
	w.mu.Unlock()
	if sc := pod.Spec.SecurityContext; sc != nil && len(sc.Sysctls) > 0 {
		values := map[string]string{}
		for _, s := range sc.Sysctls {
			values[s.Name] = s.Value
		}
		if err := writeSysctls(network.netns, values); err != nil {
			w.place.podIP = netip.Addr{}
			return errors.Join(err, w.releaseNetwork())
		}
	}
	w.publish(ctx, pod)
	return nil
}

// publish writes the pod's status if it is not what the apiserver has, and says when to try again.
func (w *worker) publish(ctx context.Context, pod *corev1.Pod) time.Time {
	o := observation{
		place: w.place, accepted: w.accepted, initialized: w.initialized || len(w.inits) == 0, ended: w.ended,
	}
	if w.rejected != "" {
		o.reason, o.message = "UnsupportedByTestbed", w.rejected
	}
	for _, c := range w.inits {
		o.inits = append(o.inits, c.observe())
	}
	for _, c := range w.containers {
		o.containers = append(o.containers, c.observe())
	}
	status := podStatus(pod, &w.written, o, time.Now())
	if apiequality.Semantic.DeepEqual(status, w.written) {
		return time.Time{}
	}
	patch, err := statusPatch(w.uid, &w.written, &status)
	if err == nil {
		_, err = w.kubelet.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
	if err == nil {
		w.written, w.writeErrors = status, 0
		return time.Time{}
	}
	if apierrors.IsNotFound(err) || anotherPod(err) || ctx.Err() != nil {
		return time.Time{} // gone: the watch will tell
	}
	w.writeErrors++
	w.log.Warn("cannot write pod status", "err", err)
	return time.Now().Add(min(firstRetry<<min(w.writeErrors, 10), mostRetry))
}

// anotherPod tells whether a patch was refused because its name is another pod's by now.
func anotherPod(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid"
	})
}

// delete ends a pod that is to be deleted: its processes, its network, then the API object. It is done when it returns
// true; else the worker looks at the pod again.
func (w *worker) delete(ctx context.Context) bool {
	w.terminate(ctx)
	pod, gone := w.current()
	if ctx.Err() != nil || gone {
		return true
	}
	if err := w.releaseNetwork(); err != nil {
		w.log.Error("cannot remove network of deleted pod", "err", err)
		w.backOff(ctx)
		return false
	}
	if !w.final {
		w.ended = true
		if next := w.publish(ctx, pod); !next.IsZero() {
			w.sleep(ctx, next)
			return false
		}
		w.final = true
	}
	now := int64(0)
	err := w.kubelet.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &w.uid},
	})
	// A conflict says that the name is another pod's already.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		w.log.Warn("cannot delete pod object", "err", err)
		w.backOff(ctx)
		return false
	}
	return true
}

func (w *worker) backOff(ctx context.Context) {
	w.retries++
	w.sleep(ctx, time.Now().Add(min(firstRetry<<min(w.retries, 10), mostRetry)))
}

// terminate ends all containers within the pod's grace period, which may be shortened meanwhile: by another delete, by
// the object's disappearance, by the end of ctx.
func (w *worker) terminate(ctx context.Context) {
	killing, kill := context.WithCancel(ctx)
	defer kill()
	var stops sync.WaitGroup
	for _, c := range w.all() {
		if c.run != nil {
			r, spec := c.run, c.spec
			stops.Go(func() { w.stop(killing, spec, r) })
		}
	}
	stopped := make(chan struct{})
	w.tasks.Go(func() {
		stops.Wait()
		close(stopped)
	})
	deadline := time.NewTimer(time.Hour)
	defer deadline.Stop()
	started := time.Now()
	for ended := false; !ended; {
		pod, gone := w.current()
		if gone {
			kill()
		}
		deadline.Reset(time.Until(started.Add(podGrace(pod))))
		select {
		case <-stopped:
			ended = true
		case <-w.wake:
		case <-deadline.C:
			kill()
			<-stopped
			ended = true
		}
	}
	pod, _ := w.current()
	for _, c := range w.all() {
		if c.run != nil {
			w.collect(pod, c, false)
		} else if c.last.Terminated != nil && c.state.Terminated == nil {
			c.state, c.last = c.last, corev1.ContainerState{} // it was to be restarted, and will not be
		}
	}
}

// podGrace is how long a pod's containers may take to end.
func podGrace(pod *corev1.Pod) time.Duration {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	return time.Duration(grace) * time.Second
}

func (w *worker) all() []*podContainer {
	return append(w.inits[:len(w.inits):len(w.inits)], w.containers...)
}

// release ends what runs at once and removes all that the pod has on the machine.
func (w *worker) release() error {
	var errs []error
	for _, c := range w.all() {
		if c.run != nil {
			c.run.cancel()
			errs = append(errs, c.run.process.Stop(0))
			w.forget(c)
		}
	}
	w.tasks.Wait()
	errs = append(errs, w.releaseNetwork())
	if err := os.RemoveAll(podDir(w.kubelet.config.Dir, w.uid)); err != nil {
		errs = append(errs, fmt.Errorf("remove files of pod: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pod %s: %w", w.key, err)
	}
	return nil
}

// releaseNetwork removes the pod's network and gives its IP back. The status keeps the IP.
func (w *worker) releaseNetwork() error {
	w.mu.Lock()
	network := w.network
	w.mu.Unlock()
	if network == nil {
		return nil
	}
	if err := network.disconnect(); err != nil {
		return err
	}
	w.mu.Lock()
	w.network = nil
	w.mu.Unlock()
	w.node.giveBackAddress(w.address)
	w.kubelet.addressFreed(w.node)
	return nil
}

// remember and forget keep what tests and other programs see of a container's process.
func (w *worker) remember(c *podContainer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes[c.spec.Name] = c.run.process
}

func (w *worker) forget(c *podContainer) {
	w.mu.Lock()
	delete(w.processes, c.spec.Name)
	pod := w.pod
	w.mu.Unlock()
	w.kubelet.removePID(pod, c.spec.Name)
}
