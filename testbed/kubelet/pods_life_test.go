//go:build linux

package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func testProbes(c *cluster) {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 1}
	}
	http := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}}
	}
	c.server("probed", func(p *corev1.Pod) {
		p.Spec.Containers[0].StartupProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}})
		p.Spec.Containers[0].ReadinessProbe = probe(http("/ready"))
		p.Spec.Containers[0].LivenessProbe = probe(http("/healthy"))
	})
	for name, h := range map[string]corev1.ProbeHandler{
		"grpc": {GRPC: &corev1.GRPCAction{Port: 9090}},
		"exec": {Exec: &corev1.ExecAction{Command: []string{"test", "!", "-e", "/tmp/unready"}}},
		"tcp":  {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}},
	} {
		c.server(name, func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe = probe(h) })
	}
	c.server("never", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = probe(http("/ready?/x"))
		p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(1)
	})
	p := c.wait("probed", "ready", ready)
	c.wait("grpc", "ready", ready)
	c.wait("exec", "ready", ready)
	c.wait("tcp", "ready", ready)
	c.wait("never", "running", unready)

	c.mustRun("probed", "touch /tmp/unready")
	c.mustRun("exec", "touch /tmp/unready")
	c.wait("probed", "unready", unready)
	c.wait("exec", "unready", unready)
	c.mustRun("probed", "rm /tmp/unready")
	c.wait("probed", "ready again", ready)
	c.mustRun("probed", "touch /tmp/sick")
	restarted := c.wait("probed", "restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && ready(p) })
	if restarted.Status.PodIP != p.Status.PodIP {
		c.t.Errorf("pod IP changed from %s to %s by a restart", p.Status.PodIP, restarted.Status.PodIP)
	}
	if last := restarted.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 0 {
		c.t.Errorf("last state after TERM: %+v", last)
	}
	if ready(c.wait("never", "running", unready)) {
		c.t.Error("a pod whose probe fails is ready")
	}
}

func testRestarts(c *cluster) {
	c.server("crash", nil)
	c.wait("crash", "ready", ready)
	first, _ := c.Pod(namespace, "crash")
	release := c.Hold(namespace, "cra")
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	p := c.wait("crash", "unready", unready)
	s := p.Status.ContainerStatuses[0]
	if s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || s.LastTerminationState.Terminated.ExitCode != 137 || s.Ready || *s.Started {
		c.t.Errorf("status of a killed container: %+v", s)
	}
	time.Sleep(1500 * time.Millisecond) // longer than the first backoff
	if held, ok := c.Pod(namespace, "crash"); !ok || held.Process != nil {
		c.t.Error("a held container was restarted")
	}
	release()
	p = c.wait("crash", "ready", ready)
	if s := p.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.State.Running == nil || s.ContainerID == "" {
		c.t.Errorf("status after the restart: %+v", s)
	}
	if again, _ := c.Pod(namespace, "crash"); again.IP != first.IP || again.Process == first.Process {
		c.t.Errorf("pod after the restart: %+v", again)
	}
}

func testInit(c *cluster) {
	c.pod("init", "cat /workdir/log; exec sleep 300", func(p *corev1.Pod) {
		volume := []corev1.VolumeMount{{Name: "work", MountPath: "/workdir"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = volume
		p.Spec.InitContainers = []corev1.Container{
			{Name: "one", Image: "tools", Args: []string{"echo one >>/workdir/log"}, VolumeMounts: volume},
			{Name: "two", Image: "tools", Args: []string{"[ -e /workdir/tried ] || { touch /workdir/tried; exit 5; }; echo two >>/workdir/log"}, VolumeMounts: volume},
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "second", Image: "tools", Args: []string{"exec sleep 300"},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ip", "link", "show", "eth0"}}}},
		})
	})
	c.wait("init", "initializing again", func(p *corev1.Pod) bool {
		return len(p.Status.InitContainerStatuses) == 2 && p.Status.InitContainerStatuses[1].LastTerminationState.Terminated != nil &&
			p.Status.Phase == corev1.PodPending
	})
	p := c.wait("init", "ready", ready)
	if got := c.output("init"); got != "one\ntwo\n" {
		c.t.Errorf("init containers wrote %q", got)
	}
	if s := p.Status.InitContainerStatuses; !s[0].Ready || s[0].RestartCount != 0 || s[1].RestartCount != 1 || s[1].State.Terminated == nil {
		c.t.Errorf("init status: %+v", s)
	}
	pod, _ := c.Pod(namespace, "init")
	if len(pod.Containers) != 2 {
		c.t.Errorf("containers: %v", pod.Containers)
	}
	if _, err := LookupPID(c.dir, namespace, "init", ""); err == nil || !strings.Contains(err.Error(), "second") {
		c.t.Errorf("LookupPID without a container name: %v", err)
	}
}

func testCompletion(c *cluster) {
	job := func(policy corev1.RestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }
	}
	c.pod("ok", "exit 0", job(corev1.RestartPolicyOnFailure))
	c.pod("bad", "exit 3", job(corev1.RestartPolicyNever))
	ok := c.wait("ok", "done", succeeded)
	bad := c.wait("bad", "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if s := bad.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 3 || s.Reason != "Error" {
		c.t.Errorf("status of a failed container: %+v", s)
	}
	if ready(ok) || ok.Status.PodIP == "" {
		c.t.Errorf("status of a finished pod: %+v", ok.Status)
	}
	// The pod object stays, its network does not.
	waitFor(c.t, "the end of a finished pod's network", func() bool { _, running := c.Pod(namespace, "ok"); return !running })
	c.delete("ok")
	c.waitGone("ok", ok.UID)
}

func testDeletion(c *cluster) {
	p := c.server("deleted", nil)
	c.wait("deleted", "ready", ready)
	pod, _ := c.Pod(namespace, "deleted")
	started := time.Now()
	c.delete("deleted")
	c.waitGone("deleted", p.UID)
	c.t.Logf("deletion took %s", time.Since(started))
	if got := c.output("deleted"); got != "serving\nterminated\n" {
		c.t.Errorf("output %q", got)
	}
	if _, err := netns.Open(pod.Netns.Name()); err == nil {
		c.t.Error("the namespace of a deleted pod is there")
	}
	if strings.Contains(c.onNode(pod.Node, "ip", "-o", "link"), VethName(namespace, "deleted")) {
		c.t.Error("the veth of a deleted pod is there")
	}

	// preStop comes first; a shell that is pid 1 ignores TERM, so it is killed after its grace of 2 s.
	p = c.pod("stubborn", "sleep 300; true", func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"sh", "-c", "echo stopping >/proc/1/fd/1"}}}}
	})
	c.wait("stubborn", "ready", ready)
	started = time.Now()
	c.delete("stubborn")
	c.waitGone("stubborn", p.UID)
	if took := time.Since(started); took < 1900*time.Millisecond || took > 10*time.Second {
		c.t.Errorf("deletion with a grace period of 2 s took %s", took)
	}
	if got := c.output("stubborn"); got != "stopping\n" {
		c.t.Errorf("preStop wrote %q", got)
	}

	// A forced deletion removes the object at once, and the process with it.
	p = c.pod("forced", "sleep 300; true", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr(int64(300)) })
	c.wait("forced", "ready", ready)
	pod, _ = c.Pod(namespace, "forced")
	c.delete("forced")
	time.Sleep(100 * time.Millisecond)
	zero := int64(0)
	if err := c.client.CoreV1().Pods(namespace).Delete(c.t.Context(), "forced", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-pod.Process.Done():
	case <-time.After(5 * time.Second):
		c.t.Error("the process outlived its pod")
	}
	// The same name again, while the old pod is being removed.
	c.server("forced", nil)
	if again := c.wait("forced", "ready", ready); again.UID == p.UID {
		c.t.Error("the old pod is there")
	}

	// Before it ever ran.
	p = c.server("early", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "none" })
	c.wait("early", "waiting", func(p *corev1.Pod) bool { return p.Status.PodIP != "" })
	c.delete("early")
	c.waitGone("early", p.UID)
}

func testErrors(c *cluster) {
	reason := func(want, text string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == want &&
				strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, text)
		}
	}
	c.server("image", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "registry.example/nginx:1" })
	c.server("program", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such/program"} })
	c.server("key", func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Key: "k"}}}}
	})
	always := corev1.ContainerRestartPolicyAlways
	c.server("sidecar", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", Image: "tools", RestartPolicy: &always}}
	})
	c.server("hostpath", func(p *corev1.Pod) {
		directory := corev1.HostPathDirectory
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none", Type: &directory}}}}
	})
	c.wait("image", "waiting", reason("ErrImagePull", `"nginx", only server, tools`))
	c.wait("program", "waiting", reason("RunContainerError", "/no/such/program"))
	c.wait("key", "waiting", reason("CreateContainerConfigError", `env X: configmaps "late" not found`))
	c.wait("sidecar", "failed", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && strings.Contains(p.Status.Message, "sidecar")
	})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Data: map[string]string{"k": "v"}}
	if _, err := c.client.CoreV1().ConfigMaps(namespace).Create(c.t.Context(), cm, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.wait("key", "ready when the key is there", ready)
	waitFor(c.t, "an event about the hostPath", func() bool {
		events, err := c.client.CoreV1().Events(namespace).List(c.t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "hostpath" && strings.Contains(e.Message, "volume v: hostPath /none on node")
		})
	})
}

// testWrites counts the changes of a pod object: one each for binding, address, running, ready, and none after that.
func testWrites(c *cluster) {
	w, err := c.client.CoreV1().Pods(namespace).Watch(c.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=quiet"})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	var changes atomic.Int32
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				changes.Add(1)
				seen = append(seen, fmt.Sprintf("%s node=%q ip=%s phase=%s ready=%v", e.Type, p.Spec.NodeName, p.Status.PodIP, p.Status.Phase, ready(p)))
			}
		}
	}()
	c.server("quiet", nil)
	c.wait("quiet", "ready", ready)
	time.Sleep(2 * time.Second)
	w.Stop()
	<-done
	if n := changes.Load(); n > 5 {
		c.t.Errorf("%d changes of a pod that just starts:\n%s", n, strings.Join(seen, "\n"))
	}
}

func testSpeed(c *cluster) {
	started := time.Now()
	c.server("single", nil)
	c.wait("single", "ready", ready)
	single := time.Since(started)
	const many = 20
	started = time.Now()
	for i := range many {
		c.server(fmt.Sprintf("many-%d", i), nil)
	}
	for i := range many {
		c.wait(fmt.Sprintf("many-%d", i), "ready", ready)
	}
	all := time.Since(started)
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		c.t.Fatal(err)
	}
	cpu := func(r syscall.Rusage) time.Duration { return time.Duration(r.Utime.Nano() + r.Stime.Nano()) }
	c.t.Logf("ready after creation: one pod %s, %d pods %s; then idle: %s of CPU in 2 s", single, many, all, cpu(after)-cpu(before))
}
