package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/testbed"
	"github.com/kube-semaphore/semaphore/testbed/kubelet"
)

// flow is UDP packets from one pod to another and nothing back: no answer makes a tunnel, and none is waited for.
type flow struct {
	from net.Conn
	to   net.PacketConn

	mu      sync.Mutex
	sent    []time.Time
	late    []time.Duration // by number; -1 while it has not arrived
	stop    chan struct{}
	running sync.WaitGroup
}

const (
	flowPort  = 9
	flowEvery = 20 * time.Millisecond
)

func startFlow(t *testing.T, from, to *kubelet.Pod) *flow {
	t.Helper()
	f := &flow{stop: make(chan struct{})}
	var err error
	if f.to, err = to.Netns.ListenPacket(t.Context(), "udp", fmt.Sprintf("%s:%d", to.IP, flowPort)); err != nil {
		t.Fatal(err)
	}
	if f.from, err = from.Netns.DialContext(t.Context(), "udp", fmt.Sprintf("%s:%d", to.IP, flowPort)); err != nil {
		f.to.Close()
		t.Fatal(err)
	}
	f.running.Go(func() {
		tick := time.NewTicker(flowEvery)
		defer tick.Stop()
		for n := uint32(0); ; n++ {
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
			f.mu.Lock()
			f.sent, f.late = append(f.sent, time.Now()), append(f.late, -1)
			f.mu.Unlock()
			_, _ = f.from.Write(binary.BigEndian.AppendUint32(nil, n))
		}
	})
	f.running.Go(func() {
		buffer := make([]byte, 16)
		for {
			n, _, err := f.to.ReadFrom(buffer)
			if err != nil {
				return
			}
			f.mu.Lock()
			if i := int(binary.BigEndian.Uint32(buffer[:max(n, 4)])); n == 4 && i < len(f.sent) {
				f.late[i] = time.Since(f.sent[i])
			}
			f.mu.Unlock()
		}
	})
	t.Cleanup(func() { f.end() })
	return f
}

// arrived is how many packets did, up to now.
func (f *flow) arrived() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, late := range f.late {
		if late >= 0 {
			n++
		}
	}
	return n
}

// end ends the flow and tells what became of its packets, and how late the latest came.
func (f *flow) end() (sent, lost int, latest time.Duration) {
	select {
	case <-f.stop:
	default:
		close(f.stop)
		time.Sleep(500 * time.Millisecond) // for what is on its way
		f.to.Close()
		f.running.Wait()
		f.from.Close()
	}
	for _, late := range f.late {
		if late < 0 {
			lost++
		}
		latest = max(latest, late)
	}
	return len(f.late), lost, latest
}

// flowing waits until so many more packets of a flow have arrived.
func flowing(t *testing.T, f *flow, more int) {
	t.Helper()
	from := f.arrived()
	eventually(t, settle, func(context.Context) error {
		if n := f.arrived() - from; n < more {
			return fmt.Errorf("%d of %d packets arrived", n, more)
		}
		return nil
	})
}

// nodeOf is the node that a pod is on.
func nodeOf(c *testbed.Cluster, p *kubelet.Pod) *testbed.Node { return c.Node(p.Node) }

// publicKey is that of a node's device.
func publicKey(ctx context.Context, n *testbed.Node, device string) (string, error) {
	text, err := n.Exec(ctx, "wg", "show", device, "public-key")
	return strings.TrimSpace(text), err
}

// F13: a node gets a new key in place, at an operator's word, under traffic. Its peers follow; what is sent into the time
// in which they do not know the key waits for that long, and not for the 5 s after which WireGuard tries again by itself.
func TestF13_NodeRotatesItsKey(t *testing.T) {
	b := onBed(t)
	client, err := onePod(t.Context(), b.c1, "client")
	if err != nil {
		t.Fatal(err)
	}
	server, err := onePod(t.Context(), b.c2, "server")
	if err != nil {
		t.Fatal(err)
	}
	here, there := nodeOf(b.c1, client), nodeOf(b.c2, server)
	for _, c := range []struct {
		name  string
		start func() []*flow
	}{
		{"both ways", func() []*flow { return []*flow{startFlow(t, client, server), startFlow(t, server, client)} }},
		{"from the node", func() []*flow { return []*flow{startFlow(t, client, server)} }},
		{"to the node", func() []*flow { return []*flow{startFlow(t, server, client)} }},
	} {
		flows := c.start()
		for _, f := range flows {
			flowing(t, f, 20)
		}
		old, err := publicKey(t.Context(), here, "wireguard.c2")
		if err != nil {
			t.Fatal(err)
		}
		broker := waitActive(t, b.c1, "broker")
		began := time.Now()
		out, err := b.c1.ExecPod(t.Context(), broker.Namespace, broker.Name, "semaphorectl", "rotate-key", "--node", here.Name)
		if err != nil || !strings.Contains(out, here.Name+": told") {
			t.Fatalf("%s, %v", out, err)
		}
		var fresh string
		eventually(t, settle, func(ctx context.Context) (err error) {
			fresh, err = publicKey(ctx, here, "wireguard.c2")
			if err == nil && fresh == old {
				err = errors.New("the node has its old key")
			}
			return err
		})
		rotated := time.Now()
		// By a look every hundredth of a second or so: wg takes a part of that.
		eventually(t, settle, func(ctx context.Context) error {
			for text := ""; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				var err error
				if text, err = there.Exec(ctx, "wg", "show", "wireguard.c1", "peers"); err != nil {
					return err
				}
				if strings.Contains(text, fresh) {
					if strings.Contains(text, old) {
						return errors.New("the peer has the old key, too")
					}
					return nil
				}
			}
			return ctx.Err()
		})
		known := time.Since(rotated)
		for i, f := range flows {
			flowing(t, f, 100)
			sent, lost, latest := f.end()
			t.Logf("%s, flow %d: of %d packets %d lost, the latest %d ms late; rotated %d ms after the word, known to the peer %d ms later",
				c.name, i, sent, lost, latest.Milliseconds(), rotated.Sub(began).Milliseconds(), known.Milliseconds())
			if latest > known+3*time.Second {
				t.Errorf("%s, flow %d: a packet came %s late, and the peer knew the key after %s", c.name, i, latest, known)
			}
			// Both ends keep 128 packets back while there is no session: 2.5 s of this.
			if known < 2*time.Second && lost > 10 {
				t.Errorf("%s, flow %d: %d of %d packets lost", c.name, i, lost, sent)
			}
		}
		b.converges(t, settle)
	}
}

// The agent's container is killed, on both ends of a tunnel, twice. wireguard-go carries on in the container beside
// it; the next agent finds all as it is to be.
func TestAgentKilled(t *testing.T) {
	b := onBed(t)
	g := b.watch(t)
	for range 2 {
		for _, c := range b.tb.Clusters() {
			pods, err := part(t.Context(), c, "agent")
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods {
				before := restarts(p)
				running, ok := c.Kubelet().Pod(p.Namespace, p.Name)
				if !ok || running.Containers["agent"] == nil || running.Containers["wireguard-go"] == nil {
					t.Fatalf("%s: pod %s does not run both its containers", c.Name, p.Name)
				}
				if err := running.Containers["agent"].Stop(0); err != nil {
					t.Fatal(err)
				}
				took := eventually(t, settle, func(ctx context.Context) error {
					pods, err := part(ctx, c, "agent")
					if err != nil {
						return err
					}
					for _, is := range pods {
						if is.Name == p.Name && (restarts(is)["agent"] == before["agent"] || !podReady(is)) {
							return errors.New("the agent is not ready again")
						}
						if is.Name == p.Name && restarts(is)["wireguard-go"] != before["wireguard-go"] {
							return errors.New("wireguard-go was restarted, too")
						}
					}
					return nil
				})
				t.Logf("%s: ready again after %s", p.Name, seconds(took))
			}
		}
	}
	t.Log(g.finish())
}

// restarts of a pod's containers.
func restarts(p corev1.Pod) map[string]int32 {
	out := map[string]int32{}
	for _, s := range p.Status.ContainerStatuses {
		out[s.Name] = s.RestartCount
	}
	return out
}

func podReady(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
