//go:build linux

package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/container"
	corev1 "k8s.io/api/core/v1"
)

// Waiting reasons, as kubelets and container runtimes name them.
const (
	reasonCreating = "ContainerCreating"
	reasonInit     = "PodInitializing"
	reasonBackoff  = "CrashLoopBackOff"
	reasonImage    = "ErrImagePull"
	reasonConfig   = "CreateContainerConfigError"
	reasonRun      = "RunContainerError"
)

// Between two runs of a container that ended lies a backoff: a kubelet's doubles from 10 s up to 5 min, which is too long
// to watch. It starts anew after a run of a minute.
const (
	firstBackoff = time.Second
	mostBackoff  = 10 * time.Second
	goodRun      = time.Minute
)

// restartBackoff is the time from the end of the run that was the nth in a row to be short, from 1, to the next start.
func restartBackoff(n int) time.Duration {
	return min(firstBackoff<<min(n-1, 10), mostBackoff)
}

// podContainer is a container of a pod with its runs, one after the other. The pod's worker owns it.
type podContainer struct {
	spec *corev1.Container
	init bool

	run         *run // nil while no process runs
	state, last corev1.ContainerState
	id          string
	restarts    int32
	shortRuns   int
	startErrors int
	retryAt     time.Time
}

// run is one run of a container's process.
type run struct {
	process *container.Process
	cancel  context.CancelFunc // ends its probes
	target  target
	ending  bool // it is being stopped

	mu        sync.Mutex // guards what the probes report
	started   bool
	ready     bool
	unhealthy error
}

func (r *run) report() (started, ready bool, unhealthy error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started, r.ready, r.unhealthy
}

// startError is a start that failed, with the waiting reason it leads to.
type startError struct {
	reason string
	err    error
}

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// restarts tells whether a container is started again after it ended with an exit code.
func mayRestart(pod *corev1.Pod, init bool, code int32) bool {
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return !init || code != 0
}

// advance brings a container to where it should be and says when to look again (the zero time for when something
// happens).
func (w *worker) advance(ctx context.Context, pod *corev1.Pod, c *podContainer) time.Time {
	now := time.Now()
	if c.run != nil {
		select {
		case <-c.run.process.Done():
			w.collect(pod, c, true)
		default:
			if _, _, unhealthy := c.run.report(); unhealthy != nil && !c.run.ending {
				w.restartUnhealthy(ctx, pod, c, unhealthy)
			}
			return time.Time{}
		}
	}
	if c.state.Terminated != nil {
		return time.Time{}
	}
	if c.last.Terminated != nil && w.kubelet.held(pod) {
		return time.Time{} // releasing wakes the worker
	}
	if now.Before(c.retryAt) {
		return c.retryAt
	}
	if err := w.start(ctx, pod, c); err != nil {
		c.startErrors++
		c.retryAt = now.Add(min(100*time.Millisecond<<min(c.startErrors, 10), 5*time.Second))
		reason := reasonRun
		if e := (*startError)(nil); errors.As(err, &e) {
			reason = e.reason
		}
		if c.state.Waiting == nil || c.state.Waiting.Message != err.Error() {
			w.log.Warn("cannot start container", "container", c.spec.Name, "err", err)
			w.kubelet.events.Event(pod, corev1.EventTypeWarning, "Failed", fmt.Sprintf("container %s: %v", c.spec.Name, err))
		}
		c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
		return c.retryAt
	}
	return time.Time{}
}

// collect takes note of a run that has ended. With again, the container may be started once more.
func (w *worker) collect(pod *corev1.Pod, c *podContainer, again bool) {
	exit := c.run.process.Wait()
	c.run.cancel()
	c.run = nil
	w.forget(c)
	terminated := &corev1.ContainerStateTerminated{
		ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Reason: "Completed", ContainerID: c.id,
		StartedAt: atSecond(exit.Started), FinishedAt: atSecond(exit.Finished),
	}
	if exit.Code != 0 {
		terminated.Reason = "Error"
	}
	w.log.Info("container ended", "container", c.spec.Name, "exitCode", exit.Code)
	if !again || !mayRestart(pod, c.init, terminated.ExitCode) {
		c.state = corev1.ContainerState{Terminated: terminated}
		return
	}
	if exit.Finished.Sub(exit.Started) >= goodRun {
		c.shortRuns = 0
	}
	c.shortRuns++
	backoff := restartBackoff(c.shortRuns)
	c.retryAt = exit.Finished.Add(backoff)
	c.last = corev1.ContainerState{Terminated: terminated}
	c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: reasonBackoff, Message: fmt.Sprintf("back-off %s restarting failed container %s", backoff, c.spec.Name),
	}}
}

// start starts the container's process, its probes, and a task that wakes the worker when it ends.
func (w *worker) start(ctx context.Context, pod *corev1.Pod, c *podContainer) error {
	spec, err := w.containerSpec(ctx, pod, c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(spec.Root, 0o755); err != nil {
		return err
	}
	process, err := container.Start(spec)
	if err != nil {
		return err
	}
	if err := w.kubelet.writePID(pod, c.spec.Name, process.PID()); err != nil {
		return errors.Join(err, process.Stop(0))
	}
	if c.last.Terminated != nil {
		c.restarts++
	}
	sum := sha256.Sum256(fmt.Append(nil, pod.UID, c.spec.Name, c.restarts))
	c.id = "testbed://" + hex.EncodeToString(sum[:])
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: atSecond(process.Started())}}
	c.startErrors = 0
	probing, cancel := context.WithCancel(ctx)
	c.run = &run{
		process: process, cancel: cancel,
		started: c.spec.StartupProbe == nil, ready: c.spec.StartupProbe == nil && c.spec.ReadinessProbe == nil,
		target: target{node: w.node.Netns, ip: w.place.podIP, container: c.spec, process: process},
	}
	w.remember(c)
	w.log.Info("container started", "container", c.spec.Name, "pid", process.PID(), "restarts", c.restarts)
	w.tasks.Go(func() {
		<-process.Done()
		w.poke()
	})
	if r := c.run; c.spec.StartupProbe != nil || c.spec.ReadinessProbe != nil || c.spec.LivenessProbe != nil {
		w.tasks.Go(func() { w.watchProbes(probing, pod, c.spec, r) })
	}
	return nil
}

// watchProbes runs a container's probes: first the startup probe alone, then the others.
func (w *worker) watchProbes(ctx context.Context, pod *corev1.Pod, c *corev1.Container, r *run) {
	set := func(change func()) {
		r.mu.Lock()
		change()
		r.mu.Unlock()
		w.poke()
	}
	try := func(p *corev1.Probe) func(context.Context) error {
		return func(ctx context.Context) error { return r.target.check(ctx, p.ProbeHandler) }
	}
	fail := func(kind string, err error) {
		w.log.Warn("probe fails", "container", c.Name, "probe", kind, "err", err)
		w.kubelet.events.Eventf(pod, corev1.EventTypeWarning, "Unhealthy", "%s probe of %s: %v", kind, c.Name, err)
	}
	if p := c.StartupProbe; p != nil {
		watchProbe(ctx, p, try(p), true, func(ok bool, err error) {
			if !ok {
				fail("startup", err)
				set(func() { r.unhealthy = fmt.Errorf("startup probe: %w", err) })
			}
		})
		if ctx.Err() != nil {
			return
		}
		set(func() { r.started, r.ready = true, c.ReadinessProbe == nil })
	}
	var probes sync.WaitGroup
	if p := c.ReadinessProbe; p != nil {
		probes.Go(func() {
			watchProbe(ctx, p, try(p), false, func(ok bool, err error) {
				if !ok {
					fail("readiness", err)
				}
				set(func() { r.ready = ok })
			})
		})
	}
	if p := c.LivenessProbe; p != nil {
		probes.Go(func() {
			watchProbe(ctx, p, try(p), false, func(ok bool, err error) {
				if !ok {
					fail("liveness", err)
					set(func() { r.unhealthy = fmt.Errorf("liveness probe: %w", err) })
				}
			})
		})
	}
	probes.Wait()
}

// restartUnhealthy stops a container that a probe found dead; it is started again as its policy says.
func (w *worker) restartUnhealthy(ctx context.Context, pod *corev1.Pod, c *podContainer, why error) {
	grace := podGrace(pod)
	for _, p := range []*corev1.Probe{c.spec.LivenessProbe, c.spec.StartupProbe} {
		if p != nil && p.TerminationGracePeriodSeconds != nil {
			grace = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
		}
	}
	w.kubelet.events.Eventf(pod, corev1.EventTypeNormal, "Killing", "container %s failed %v, will be restarted", c.spec.Name, why)
	c.run.ending = true
	r, spec := c.run, c.spec
	w.tasks.Go(func() {
		limited, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		w.stop(limited, spec, r)
	})
}

// stop runs the preStop hook, sends TERM and, when ctx ends first, KILL. It returns when the process has ended.
func (w *worker) stop(ctx context.Context, c *corev1.Container, r *run) {
	r.cancel()
	if l := c.Lifecycle; l != nil && l.PreStop != nil && ctx.Err() == nil {
		if err := w.preStop(ctx, l.PreStop, r); err != nil {
			w.log.Warn("preStop hook failed", "container", c.Name, "err", err)
		}
	}
	if ctx.Err() == nil {
		if err := r.process.Signal(os.Signal(stopSignal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
			w.log.Warn("cannot signal container", "container", c.Name, "err", err)
		}
		select {
		case <-r.process.Done():
			return
		case <-ctx.Done():
		}
	}
	if err := r.process.Stop(0); err != nil {
		w.log.Error("cannot stop container", "container", c.Name, "err", err)
	}
}

func (w *worker) preStop(ctx context.Context, h *corev1.LifecycleHandler, r *run) error {
	if h.Sleep != nil {
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-r.process.Done():
		}
		return nil
	}
	return r.target.check(ctx, corev1.ProbeHandler{Exec: h.Exec, HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket})
}

// containerSpec translates a container of a pod.
func (w *worker) containerSpec(ctx context.Context, pod *corev1.Pod, c *podContainer) (container.Spec, error) {
	k := w.kubelet
	image, ok := k.config.Images[imageName(c.spec.Image)]
	if !ok {
		return container.Spec{}, &startError{reasonImage, fmt.Errorf("image %s: the testbed has none called %q, only %s",
			c.spec.Image, imageName(c.spec.Image), strings.Join(sortedKeys(k.config.Images), ", "))}
	}
	config := func(err error) (container.Spec, error) { return container.Spec{}, &startError{reasonConfig, err} }
	id, err := containerIdentity(pod, c.spec, image)
	if err != nil {
		return config(err)
	}
	services, err := k.linkedServices(pod)
	if err != nil {
		return config(err)
	}
	env, err := containerEnv(ctx, pod, c.spec, w.place, services, k.config.APIServer, k)
	if err != nil {
		return config(err)
	}
	args := slices.Clone(c.spec.Command)
	if len(args) == 0 {
		args = slices.Clone(image.Entrypoint)
	}
	args = append(args, c.spec.Args...)
	if len(args) == 0 {
		return config(fmt.Errorf("neither the container nor its image has a command"))
	}
	for i := range args {
		if i >= len(image.Entrypoint) || len(c.spec.Command) > 0 {
			args[i] = expand(args[i], env.get)
		}
	}
	volumeMounts, err := w.volumes.mounts(pod, c.spec, env)
	if err != nil {
		return config(err)
	}
	dir := podDir(k.config.Dir, pod.UID)
	spec := container.Spec{
		Name: w.key + "/" + c.spec.Name, Netns: w.node.Netns, Args: args, Env: env.list(), Dir: c.spec.WorkingDir,
		Root: filepath.Join(dir, "roots", c.spec.Name), ReadOnlyRoot: id.readOnlyRoot,
		Mounts:       append(rootMounts(k.machineMounts, k.etcDir(), filepath.Join(dir, "etc"), image), volumeMounts...),
		PIDNamespace: !pod.Spec.HostPID, Hostname: hostname(pod, w.node.Name),
		User: id.user, Group: id.group, Groups: id.groups, Capabilities: id.capabilities,
		Output: LogPath(k.config.Dir, pod.Namespace, pod.Name, c.spec.Name),
	}
	if w.network != nil {
		spec.Netns = w.network.netns
	}
	return spec, nil
}

// imageName is the last part of an image reference without tag and digest: by it an Image is found.
func imageName(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	name = name[strings.LastIndexByte(name, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	return name
}

// observe is what a container's status says.
func (c *podContainer) observe() containerObservation {
	o := containerObservation{
		name: c.spec.Name, image: c.spec.Image, id: c.id, state: c.state, last: c.last, restarts: c.restarts,
	}
	if c.run != nil {
		o.started, o.ready, _ = c.run.report()
		o.ready = o.ready && !c.init
	} else if c.init {
		o.ready = c.succeeded()
	}
	return o
}

func (c *podContainer) succeeded() bool {
	return c.state.Terminated != nil && c.state.Terminated.ExitCode == 0
}
