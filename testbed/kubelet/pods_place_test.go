//go:build linux

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testNetwork(c *cluster) {
	c.server("a", onNode("n1"))
	c.server("b", onNode("n2"))
	c.server("same", onNode("n1"))
	a, b, same := c.wait("a", "ready", ready), c.wait("b", "ready", ready), c.wait("same", "ready", ready)
	if a.Status.HostIP != "172.18.1.11" || b.Status.HostIP != "172.18.1.12" || a.Status.PodIPs[0].IP != a.Status.PodIP ||
		!strings.HasPrefix(a.Status.PodIP, "10.1.1.") || !strings.HasPrefix(b.Status.PodIP, "10.1.2.") {
		c.t.Errorf("addresses: %+v, %+v", a.Status, b.Status)
	}
	for _, to := range []*corev1.Pod{b, same, a} {
		want := to.Name + " sees " + a.Status.PodIP
		if to == a {
			want = "a sees " + a.Status.PodIP
		}
		if got := c.mustRun("a", "curl -sS -m 5 http://"+to.Status.PodIP+":8080/"); got != want {
			c.t.Errorf("a to %s: %q, want %q", to.Name, got, want)
		}
	}
	want := "default via 169.254.1.1 dev eth0 \n169.254.1.1 dev eth0 scope link \n"
	if got := c.mustRun("a", "ip -4 route"); got != want {
		c.t.Errorf("routes in pod: %q", got)
	}
	if got := c.mustRun("a", "ip -4 -o addr show dev eth0"); !strings.Contains(got, a.Status.PodIP+"/32") {
		c.t.Errorf("addresses in pod: %q", got)
	}
	host := c.onNode("n1", "ip", "-o", "route")
	if want := a.Status.PodIP + " dev " + VethName(namespace, "a") + " scope link"; !strings.Contains(host, want) {
		c.t.Errorf("routes of node lack %q:\n%s", want, host)
	}
	// From the node itself, as probes and kube-proxy's host traffic go.
	if got := c.onNode("n1", "curl", "-sS", "-m", "5", "http://"+a.Status.PodIP+":8080/"); got != "a sees 172.18.1.11" {
		c.t.Errorf("from the node: %q", got)
	}
	p, ok := c.Pod(namespace, "a")
	if !ok || p.IP.String() != a.Status.PodIP || p.Netns.Name() != netnsName(c.config.NetnsPrefix, namespace, "a") || p.Containers["main"] != p.Process {
		c.t.Errorf("Pod = %+v, %v", p, ok)
	}
	if pid, err := LookupPID(c.dir, namespace, "a", ""); err != nil || pid != p.Process.PID() {
		c.t.Errorf("LookupPID = %d, %v, want %d", pid, err, p.Process.PID())
	}
	if _, err := LookupPID(c.dir, namespace, "none", "main"); !errors.Is(err, fs.ErrNotExist) {
		c.t.Errorf("LookupPID of no pod: %v", err)
	}
}

func testAddresses(c *cluster) {
	at := func(ip string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{AddressAnnotation: ip} }
	}
	first := c.server("first", at("10.1.2.77"))
	if p := c.wait("first", "ready", ready); p.Status.PodIP != "10.1.2.77" || p.Spec.NodeName != "n2" {
		c.t.Errorf("pod IP %s on %s", p.Status.PodIP, p.Spec.NodeName)
	}
	c.server("second", at("10.1.2.77"))
	time.Sleep(300 * time.Millisecond)
	if p := c.wait("second", "bound", func(p *corev1.Pod) bool { return p.Spec.NodeName == "n2" }); p.Status.PodIP != "" {
		c.t.Errorf("pod IP %s is used twice", p.Status.PodIP)
	}
	started := time.Now()
	c.delete("first")
	c.wait("second", "ready", ready)
	c.t.Logf("the address passed on after %s", time.Since(started))
	c.waitGone("first", first.UID)

	// By chance an address is not used again at once.
	c.server("x", onNode("n1"))
	x := c.wait("x", "ready", ready)
	c.delete("x")
	c.waitGone("x", x.UID)
	c.server("y", onNode("n1"))
	if y := c.wait("y", "ready", ready); y.Status.PodIP == x.Status.PodIP {
		c.t.Errorf("%s was used again at once", x.Status.PodIP)
	}
}

func testScheduling(c *cluster) {
	on := map[string]int{}
	for i := range 6 {
		c.pod(fmt.Sprintf("spread-%d", i), "exec sleep 300", nil)
	}
	for i := range 6 {
		on[c.wait(fmt.Sprintf("spread-%d", i), "running", ready).Spec.NodeName]++
	}
	if on["n1"] != 3 || on["n2"] != 3 {
		c.t.Errorf("pods by node: %v", on)
	}
	c.pod("nowhere", "exec sleep 300", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "fast"} })
	c.wait("nowhere", "unschedulable", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "n2: labels do not match nodeSelector")
		})
	})
	patch := []byte(`{"metadata":{"labels":{"disk":"fast"}}}`)
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), "n2", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if p := c.wait("nowhere", "running", ready); p.Spec.NodeName != "n2" {
		c.t.Errorf("on %s", p.Spec.NodeName)
	}
	// A pod of a node that is not ours stays alone.
	c.pod("foreign", "exec sleep 300", func(p *corev1.Pod) { p.Spec.NodeName = "kwok-1" })
	time.Sleep(100 * time.Millisecond)
	if p := c.wait("foreign", "there", func(*corev1.Pod) bool { return true }); p.Status.PodIP != "" || p.Status.StartTime != nil {
		c.t.Errorf("status of a pod of another's node: %+v", p.Status)
	}
}

func testHostNetwork(c *cluster) {
	c.server("host", func(p *corev1.Pod) {
		onNode("n1")(p)
		p.Spec.HostNetwork = true
	})
	p := c.wait("host", "ready", ready)
	if p.Status.PodIP != "172.18.1.11" || p.Status.HostIP != "172.18.1.11" {
		c.t.Errorf("addresses of a host network pod: %+v", p.Status)
	}
	if got := c.mustRun("host", "hostname; cat /etc/resolv.conf; ip -o -4 addr show dev eth0"); !strings.HasPrefix(got, "n1\n") || strings.Contains(got, "10.101.0.10") || !strings.Contains(got, "172.18.1.11/16") {
		c.t.Errorf("in the pod: %q", got)
	}
	pod, _ := c.Pod(namespace, "host")
	if pod.Netns != c.machines["n1"].Netns {
		c.t.Error("not in the node's namespace")
	}
	c.delete("host")
	c.waitGone("host", p.UID)
	if _, err := netns.Open(c.machines["n1"].Netns.Name()); err != nil {
		c.t.Errorf("the node's namespace was removed with the pod: %v", err)
	}
}
