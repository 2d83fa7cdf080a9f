package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stats is the part of a cluster in the global service stats, over UDP: one pod, which answers with text.
func stats(text string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: stats, namespace: shop}
spec:
  selector: {matchLabels: {app: stats}}
  template:
    metadata: {labels: {app: stats}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: stats, image: testbed.local/testbed:1, command: [testbed, hello, ` + text + `]}]
---
apiVersion: v1
kind: Service
metadata: {name: stats, namespace: shop, labels: {mirror.semaphore.uw.io/global-service: "true"}}
spec:
  selector: {app: stats}
  ports: [{name: udp, protocol: UDP, port: 8125, targetPort: 42}]
`
}

// datagramPause is the time between two datagrams of a flow: far below the 30 s after which the kernel forgets a flow.
const datagramPause = 100 * time.Millisecond

// flow is a UDP client with one source port, as an agent that sends metrics has.
type flow struct {
	conn net.Conn
	// patience is how long it waits for an answer.
	patience time.Duration
	// lost counts the datagrams without an answer, and sent all of them.
	sent, lost int
}

// ask sends a datagram and returns the answer; empty for none.
func (f *flow) ask() string {
	f.sent++
	buffer := make([]byte, 1500)
	_ = f.conn.SetDeadline(time.Now().Add(f.patience))
	if _, err := f.conn.Write([]byte("?")); err == nil {
		if n, err := f.conn.Read(buffer); err == nil {
			return strings.TrimSpace(string(buffer[:n]))
		}
	}
	f.lost++
	return ""
}

// newFlow returns a flow of c1's client to the global service stats whose datagrams a cluster's pod answers.
func (b *servicesBed) newFlow(ctx context.Context, t *testing.T, answers string) *flow {
	t.Helper()
	return b.flowTo(ctx, t, Namespace, "gl-shop-73736d-stats", answers)
}

// flowTo returns a flow of c1's client to a Service of c1 whose datagrams a cluster's pod answers.
func (b *servicesBed) flowTo(ctx context.Context, t *testing.T, namespace, service, answers string) *flow {
	t.Helper()
	pod, err := b.c1.Pod(ctx, "shop", "client")
	must(t, err)
	var f *flow
	must(t, until(ctx, settle, func() error {
		s, err := b.c1.Client.CoreV1().Services(namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conn, err := pod.Netns.DialContext(ctx, "udp", net.JoinHostPort(s.Spec.ClusterIP, "8125"))
		if err != nil {
			return err
		}
		f = &flow{conn: conn, patience: time.Second}
		if got := f.ask(); got != answers {
			conn.Close()
			return fmt.Errorf("%q answers, not %s", got, answers)
		}
		return nil
	}))
	t.Cleanup(func() { f.conn.Close() })
	return f
}

// moves checks that the flow moves to another pod, without a pause in which the kernel could forget it. It is called
// when the endpoint that it went to is not used any more.
func (f *flow) moves(ctx context.Context, t *testing.T, to string) {
	t.Helper()
	f.sent, f.lost = 0, 0
	must(t, until(ctx, settle, func() error {
		if got := f.ask(); got != to {
			time.Sleep(datagramPause)
			return fmt.Errorf("%d datagrams, %d without an answer, the last was answered by %q, not %s", f.sent, f.lost, got, to)
		}
		return nil
	}))
	t.Logf("the flow moved with datagram %d; %d were lost", f.sent, f.lost)
	for range 20 {
		if got := f.ask(); got != to {
			t.Errorf("%q answers after the flow has moved to %s", got, to)
		}
	}
}
