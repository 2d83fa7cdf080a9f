package e2e

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed/capture"
)

// settle is the timeout of everything that has no bound of its own, for a busy machine: BIRD waits up to 30 s after an
// error before it connects again, and kubelet up to 80 s before it restarts a container. The evidence has the real
// time.
const settle = 3 * time.Minute

func byName(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	a, took, err := s.fetchUntil(ctx, client, "/", settle)
	if err != nil {
		return "", err
	}
	if err := s.answersFromC2(ctx, a, client); err != nil {
		return "", err
	}
	return fmt.Sprintf("pod %s answered %s (first answer after %s)", a.Pod, a.Client, took.Round(time.Millisecond)), nil
}

// answersFromC2 checks that a pod of c2 gave the answer and saw the caller's own IP.
func (s *Scenario) answersFromC2(ctx context.Context, a answer, client *corev1.Pod) error {
	echoes, err := pods(ctx, s.c2, "shop", "app=echo")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(echoes, func(p corev1.Pod) bool { return p.Name == a.Pod && p.Status.PodIP == a.IP }) {
		return fmt.Errorf("pod %q (%s) answered, which is no echo pod of c2", a.Pod, a.IP)
	}
	if host, _, _ := strings.Cut(a.Client, ":"); host != client.Status.PodIP {
		return fmt.Errorf("echo saw %s as its caller; the client's pod IP is %s", a.Client, client.Status.PodIP)
	}
	return nil
}

func encrypted(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	wire, err := capture.Start(s.tb.Fabric(), "")
	if err != nil {
		return "", err
	}
	defer wire.Stop()
	// Capture at a point before the encryption too. The marker must be visible there; otherwise its absence on the wire
	// would prove nothing.
	inside, err := s.captureAtPod(ctx, client)
	if err != nil {
		return "", err
	}
	defer inside.Stop()

	marker := "semaphore-marker-" + rand.Text()
	const requests = 5
	for range requests {
		if _, err := s.fetch(ctx, client, "/"+marker); err != nil {
			return "", err
		}
	}
	onWire, err := payloads(wire)
	if err != nil {
		return "", err
	}
	inPod, err := payloads(inside)
	if err != nil {
		return "", err
	}
	if n := count(inPod, marker); n < requests {
		return "", fmt.Errorf("the capture at the client's own interface holds the marker %d times, not %d: it cannot see",
			n, requests)
	}
	if n := count(onWire, marker); n > 0 {
		return "", fmt.Errorf("the marker is on the wire in the clear, %d times", n)
	}
	encrypted, bare := s.sort(onWire)
	if bare > 0 {
		return "", fmt.Errorf("%d packets between pods of the two clusters are on the wire outside of WireGuard", bare)
	}
	if encrypted == 0 {
		return "", fmt.Errorf("of %d packets on the wire none is of WireGuard: the capture missed the traffic", len(onWire))
	}
	return fmt.Sprintf("%d packets captured, %d of WireGuard, marker 0 times (at the client's own interface %d times)",
		len(onWire), encrypted, count(inPod, marker)), nil
}

// captureAtPod captures at a pod's interface.
func (s *Scenario) captureAtPod(ctx context.Context, pod *corev1.Pod) (*capture.Capture, error) {
	running, err := s.c1.Pod(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	return capture.Start(running.Netns, "eth0")
}

func payloads(c *capture.Capture) ([][]byte, error) {
	packets, err := c.Stop()
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(packets))
	for i, p := range packets {
		out[i] = p.Data
	}
	return out, nil
}

// sort counts the WireGuard packets over IPv4 and the clear packets between pods of the two clusters.
func (s *Scenario) sort(frames [][]byte) (encrypted, bare int) {
	for _, f := range frames {
		const ethernet, ipv4 = 14, 20
		if len(f) < ethernet+ipv4 || binary.BigEndian.Uint16(f[12:]) != 0x0800 {
			continue
		}
		ip := f[ethernet:]
		src, dst := ip4(ip[12:]), ip4(ip[16:])
		if (s.c1.PodCIDR.Contains(src) && s.c2.PodCIDR.Contains(dst)) ||
			(s.c2.PodCIDR.Contains(src) && s.c1.PodCIDR.Contains(dst)) {
			bare++
			continue
		}
		const udp, header = 17, 8
		if l := int(ip[0]&15) * 4; ip[9] == udp && len(ip) > l+header && isWireGuard(ip[l:]) {
			encrypted++
		}
	}
	return encrypted, bare
}

// overIPv6 counts the WireGuard packets over IPv6.
func overIPv6(frames [][]byte) (n int) {
	for _, f := range frames {
		const ethernet, ipv6, udp, header = 14, 40, 17, 8
		if len(f) > ethernet+ipv6+header && binary.BigEndian.Uint16(f[12:]) == 0x86dd && f[ethernet+6] == udp &&
			isWireGuard(f[ethernet+ipv6:]) {
			n++
		}
	}
	return n
}

// isWireGuard checks that a port is of the installation, as a NAT may change the other, and the message type of the
// protocol (1 to 4 and three zero bytes; WireGuard whitepaper, section 5.4).
func isWireGuard(udp []byte) bool {
	port := func(i int) bool { p := binary.BigEndian.Uint16(udp[i:]); return p >= 51820 && p < 51830 }
	m := udp[8:]
	return (port(0) || port(2)) && len(m) >= 4 && m[0] >= 1 && m[0] <= 4 && m[1]|m[2]|m[3] == 0
}

func admitted(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	stranger, err := pod(ctx, s.c1, "shop", "app=stranger")
	if err != nil {
		return "", err
	}
	if _, err := s.fetch(ctx, stranger, "/"); err != nil {
		return "", fmt.Errorf("before there is a policy: %w", err)
	}
	if err := s.c2.ApplyYAML(ctx, policyC2); err != nil {
		return "", err
	}
	started := time.Now()
	if err := until(ctx, settle, func() error { return s.refused(ctx, stranger, client) }); err != nil {
		return "", err
	}
	took := time.Since(started)
	return fmt.Sprintf(
		"client %s admitted, stranger %s dropped (first drop seen %s after the policy, curl's own %s in it)",
		client.Status.PodIP, stranger.Status.PodIP, took.Round(100*time.Millisecond), refusal), nil
}

func replaced(ctx context.Context, s *Scenario) (string, error) {
	old, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	if _, err := s.c1.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", old.Name, "--wait"); err != nil {
		return "", fmt.Errorf("deleting pod %s: %w", old.Name, err)
	}
	var client *corev1.Pod
	if err := until(ctx, settle, func() error {
		client, err = pod(ctx, s.c1, "shop", "app=client")
		return err
	}); err != nil {
		return "", err
	}
	if client.Status.PodIP == old.Status.PodIP {
		return "", fmt.Errorf("the new pod %s has the old IP %s: nothing to see", client.Name, old.Status.PodIP)
	}
	_, took, err := s.fetchUntil(ctx, client, "/", settle)
	if err != nil {
		return "", fmt.Errorf("the new pod %s (%s): %w", client.Name, client.Status.PodIP, err)
	}
	// Another pod now gets the old IP. It must not inherit the permission.
	if err := s.c1.ApplyYAML(ctx, fmt.Sprintf(heir, old.Status.PodIP, old.Spec.NodeName)); err != nil {
		return "", err
	}
	if _, err := s.c1.Kubectl(ctx, nil, "-n", "shop", "wait", "--for=condition=Ready", "pod/heir",
		"--timeout=300s"); err != nil {
		return "", fmt.Errorf("pod heir: %w", err)
	}
	heirPod, err := pod(ctx, s.c1, "shop", "app=heir")
	if err != nil {
		return "", err
	}
	if heirPod.Status.PodIP != old.Status.PodIP {
		return "", fmt.Errorf("pod heir has %s, not the old IP %s", heirPod.Status.PodIP, old.Status.PodIP)
	}
	if err := s.refused(ctx, heirPod, client); err != nil {
		return "", err
	}
	return fmt.Sprintf("new %s admitted %s after it had its IP; old %s, now another pod's, dropped",
		client.Status.PodIP, took.Round(time.Millisecond), old.Status.PodIP), nil
}

// heir is a pod that requests one exact IP from Calico's IPAM, on the node that has the block.
const heir = `
apiVersion: v1
kind: Pod
metadata:
  name: heir
  namespace: shop
  labels: {app: heir}
  annotations: {cni.projectcalico.org/ipAddrs: '["%s"]'}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
    - name: heir
      image: testbed.local/testbed:1
      command: [testbed, sleep]
`

// afterEnd is the number of requests after the end of a pod: of three endpoints that kube-proxy chooses from at random
// each is missed by that many in a row once in 190,000 runs.
const afterEnd = 30

func scaled(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	before, err := pods(ctx, s.c2, "shop", "app=echo")
	if err != nil {
		return "", err
	}
	stream, err := s.startTraffic(ctx, client, s.echoURL+"/")
	if err != nil {
		return "", err
	}
	defer stream.stop()

	if _, err := s.c2.Kubectl(ctx, nil, "-n", "shop", "scale", "deployment/echo",
		fmt.Sprintf("--replicas=%d", len(before)+1)); err != nil {
		return "", fmt.Errorf("scaling echo: %w", err)
	}
	var fresh string
	if err := until(ctx, settle, func() error {
		now, err := pods(ctx, s.c2, "shop", "app=echo")
		if err != nil {
			return err
		}
		for _, p := range now {
			if !slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.Name == p.Name }) {
				fresh = p.Name
				return nil
			}
		}
		return errors.New("the third echo pod has no IP")
	}); err != nil {
		return "", err
	}
	started := time.Now()
	if err := until(ctx, settle, func() error {
		if stream.seen(fresh) == 0 {
			return fmt.Errorf("the new pod %s has answered nothing", fresh)
		}
		return nil
	}); err != nil {
		return "", err
	}
	took := time.Since(started)

	gone := before[0].Name
	if _, err := s.c2.Kubectl(ctx, nil, "-n", "shop", "delete", "pod", gone, "--wait"); err != nil {
		return "", fmt.Errorf("deleting pod %s: %w", gone, err)
	}
	deleted, answered := time.Now(), stream.all()
	if err := until(ctx, settle, func() error {
		if n := stream.all() - answered; n < afterEnd {
			return fmt.Errorf("only %d of %d requests were answered after pod %s had gone", n, afterEnd, gone)
		}
		return nil
	}); err != nil {
		return "", err
	}
	result := stream.stop()
	if err := result.err(); err != nil {
		return "", err
	}
	if result.last[gone].After(deleted) {
		return "", fmt.Errorf("the deleted pod %s answered a request that was made after it had gone", gone)
	}
	return fmt.Sprintf("%s answered %s after it had its IP; %s deleted; %d requests meanwhile, 0 failed",
		fresh, took.Round(time.Millisecond), gone, result.answered), nil
}

// ownName scales the own pods of web to 0 and back, under requests to the name that clients of c1 know anyway.
func ownName(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	own, err := pod(ctx, s.c1, "shop", "app=web")
	if err != nil {
		return "", err
	}
	theirs, err := pod(ctx, s.c2, "shop", "app=web")
	if err != nil {
		return "", err
	}
	if err := until(ctx, settle, func() error { return s.globalHas(ctx, "web", 2) }); err != nil {
		return "", err
	}
	stream, err := s.startTraffic(ctx, client, webURL+"/")
	if err != nil {
		return "", err
	}
	defer stream.stop()
	answered := func(by string) error {
		return until(ctx, settle, func() error {
			if stream.seen(by) == 0 {
				return fmt.Errorf("pod %s has answered nothing", by)
			}
			return nil
		})
	}
	scale := func(replicas int) error {
		_, err := s.c1.Kubectl(ctx, nil, "-n", "shop", "scale", "deployment/web", fmt.Sprint("--replicas=", replicas))
		return err
	}
	if err := answered(own.Name); err != nil {
		return "", err
	}
	if n := stream.seen(theirs.Name); n > 0 {
		return "", fmt.Errorf("pod %s of c2 gave %d answers while c1 had its own", theirs.Name, n)
	}
	if err := scale(0); err != nil {
		return "", err
	}
	scaled := time.Now()
	if err := answered(theirs.Name); err != nil {
		return "", err
	}
	took := time.Since(scaled)
	if err := scale(1); err != nil {
		return "", err
	}
	var back *corev1.Pod
	if err := until(ctx, settle, func() (err error) {
		back, err = pod(ctx, s.c1, "shop", "app=web")
		return errors.Join(err, s.lent(ctx, "web", false))
	}); err != nil {
		return "", err
	}
	if err := answered(back.Name); err != nil {
		return "", err
	}
	result := stream.stop()
	if err := result.err(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of c2 answered %s after the scale-down, %s of c1 when it was there again; %d requests "+
		"meanwhile, 0 failed", theirs.Name, took.Round(time.Millisecond), back.Name, result.answered), nil
}

func brokerKilled(ctx context.Context, s *Scenario) (string, error) {
	client, err := pod(ctx, s.c1, "shop", "app=client")
	if err != nil {
		return "", err
	}
	broker, err := awaitLeader(ctx, s.c1, "broker")
	if err != nil {
		return "", err
	}
	before, err := s.standing(ctx, s.c1)
	if err != nil {
		return "", err
	}
	stream, err := s.startTraffic(ctx, client, s.echoURL+"/")
	if err != nil {
		return "", err
	}
	defer stream.stop()

	// A killed broker does not release its Lease, so the standby waits until the Lease expires. Its pod is deleted too,
	// because kubelet would restart the container immediately.
	if err := errors.Join(
		s.c1.KillPod(ctx, Namespace, broker.Name),
		s.c1.Client.CoreV1().Pods(Namespace).Delete(ctx, broker.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}),
	); err != nil {
		return "", err
	}
	killed := time.Now()
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if during, err := s.standing(ctx, s.c1); err != nil {
		return "", err
	} else if d := before.difference(during); d != "" {
		return "", fmt.Errorf("while the broker was down:\n%s", d)
	}
	var next *corev1.Pod
	if err := until(ctx, settle, func() error {
		if next, err = leader(ctx, s.c1, "broker"); err != nil {
			return err
		}
		if next.Name == broker.Name {
			return fmt.Errorf("%s: %s, which was killed, is still called ready", s.c1.Name, broker.Name)
		}
		return s.attached(ctx, s.c1)
	}); err != nil {
		return "", err
	}
	back := time.Since(killed)
	result := stream.stop()
	if err := result.err(); err != nil {
		return "", err
	}
	after, err := s.standing(ctx, s.c1)
	if err != nil {
		return "", err
	}
	if d := before.difference(after); d != "" {
		return "", fmt.Errorf("after the standby took over:\n%s", d)
	}
	return fmt.Sprintf("%s after its end all parts were attached to the standby; %d requests, 0 failed; %d objects and "+
		"devices untouched",
		back.Round(100*time.Millisecond), result.answered, len(before)), nil
}

func removedCleanly(ctx context.Context, s *Scenario) (string, error) {
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range s.tb.Clusters() {
		g.Go(func() error {
			if _, err := c.Kubectl(gctx, nil, "delete", "namespace", "shop", "--wait"); err != nil {
				return fmt.Errorf("%s: deleting the workloads: %w", c.Name, err)
			}
			return nil
		})
		g.Go(func() error { return s.in.remove(gctx, c) })
		g.Go(func() error { return s.in.removeDNS(gctx, c) })
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	compared := 0
	// Felix and kube-proxy remove their state from the kernel asynchronously.
	err := until(ctx, settle, func() error {
		compared = 0
		now, err := s.fingerprints(ctx)
		if err != nil {
			return err
		}
		for what, was := range s.before {
			if d := was.difference(now[what]); d != "" {
				return fmt.Errorf("%s is not as it was:\n%s", what, d)
			}
			compared += len(was)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d objects, links, routes, rules and files of clusters and nodes are those of before",
		compared), nil
}
