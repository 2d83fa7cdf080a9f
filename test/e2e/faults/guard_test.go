package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// guard observes a case from before the fault until after it: changes in the clusters, the state of the nodes' kernels,
// and packets from a pod of c1 to one of c2 through the tunnel.
type guard struct {
	t     *testing.T
	b     *bed
	marks []int
	// before is the kernel state of each node. Nothing in it may disappear.
	before map[*testbed.Node]kernel
	// allowed reports whether the case itself causes a change.
	allowed func(*testbed.Cluster, change) bool

	end     context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	losses  []string // losses in kernels
	ping    *pinger
	cpu     map[int]usage
	began   time.Time
}

// watch begins a case. The case ends with finish or with the test.
func (b *bed) watch(t *testing.T) *guard {
	t.Helper()
	ctx, end := context.WithCancel(life)
	g := &guard{t: t, b: b, before: map[*testbed.Node]kernel{}, end: end, began: time.Now()}
	t.Cleanup(func() { g.end(); g.running.Wait() })
	for _, r := range b.records {
		// Late changes of the previous case do not belong to this one.
		eventually(t, settle, r.caughtUp)
		g.marks = append(g.marks, r.mark())
	}
	for _, n := range b.nodes() {
		k := testkit.Value(kernelOf(ctx, n))(t)
		g.before[n] = k
	}
	g.running.Go(func() { g.look(ctx) })
	from, err := onePod(ctx, b.c1, "client")
	testkit.Must(t, err)
	to := testkit.Value(onePod(ctx, b.c2, "server"))(t)
	if g.ping, err = newPinger(from, to.IP.String()); err != nil {
		t.Fatal(err)
	}
	g.running.Go(func() { g.ping.run(ctx) })
	g.cpu = b.usage(t)
	return g
}

func (b *bed) nodes() []*testbed.Node { return append(slices.Clone(b.c1.Nodes), b.c2.Nodes...) }

// onePod returns a pod of the workload.
func onePod(ctx context.Context, c *testbed.Cluster, app string) (*testbed.Pod, error) {
	list, err := c.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range list.Items {
		running, err := c.Pod(ctx, "shop", p.Name)
		if err == nil && p.DeletionTimestamp == nil {
			return running, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%s: no pod of %s runs: %w", c.Name, app, errors.Join(errs...))
}

// allow sets which changes the case causes. Without it, every change is a failure.
func (g *guard) allow(f func(*testbed.Cluster, change) bool) { g.allowed = f }

// look compares the kernels with their earlier state until ctx ends: checker I2.
func (g *guard) look(ctx context.Context) {
	for ctx.Err() == nil {
		for n, was := range g.before {
			is, err := kernelOf(ctx, n)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				g.lost("%s: %v", n.Name, err)
				continue
			}
			for what, pair := range map[string][2][]string{
				"device": {was.devices, is.devices}, "peer": {was.peers, is.peers}, "route": {was.routes, is.routes},
			} {
				for _, one := range pair[0] {
					if !slices.Contains(pair[1], one) {
						g.lost("node %s: %s %s is gone", n.Name, what, one)
					}
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (g *guard) lost(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if text := fmt.Sprintf(format, args...); len(g.losses) < 10 && !slices.Contains(g.losses, text) {
		g.losses = append(g.losses, text)
	}
}

// sofar returns the changes in a cluster since the case began.
func (g *guard) sofar(c *testbed.Cluster) []change {
	g.t.Helper()
	for i, r := range g.b.records {
		if r.cluster == c {
			return testkit.Value(r.since(g.t.Context(), g.marks[i]))(g.t)
		}
	}
	return nil
}

// untouched fails the test if anything changed that the case did not allow: checkers I2 (nothing withdrawn), I3 (no
// regression to an older state), I4 (nothing outside the remote's subnets) and I5 (no foreign object). It may be called
// during the fault, and finish calls it at the end.
func (g *guard) untouched() {
	g.t.Helper()
	for _, c := range g.b.tb.Clusters() {
		for _, change := range g.sofar(c) {
			if err := outside(change, g.b.other(c).PodCIDR); err != nil {
				g.t.Errorf("%s: %v", c.Name, err)
			}
			if g.allowed == nil || !g.allowed(c, change) {
				g.t.Errorf("%s: %s", c.Name, change)
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.losses {
		g.t.Error(l)
	}
	g.losses = nil
}

// finish ends the case. It reports everything that the checkers found, and returns the packet counts for the log.
func (g *guard) finish() string {
	g.t.Helper()
	lasted := time.Since(g.began)
	g.untouched()
	busiest, err := g.b.busiest(g.cpu, lasted)
	testkit.NoError(g.t, err)
	g.end()
	g.running.Wait()
	sent, lost := g.ping.count()
	// A busy machine sends fewer packets than intended, but at least one per second.
	if sent < int(lasted/time.Second) {
		g.t.Errorf("only %d packets were sent in %s", sent, seconds(lasted))
	}
	if len(lost) > 0 {
		g.t.Errorf("of %d packets through the tunnel %d were lost: numbers %v", sent, len(lost), lost)
	}
	return fmt.Sprintf("%d packets through the tunnel, %d lost; busiest: %s", sent, len(lost), busiest)
}

// pinger sends ICMP echo requests from one pod to another (RFC 792).
type pinger struct {
	conn  *icmp.PacketConn
	to    *net.IPAddr
	every time.Duration

	mu       sync.Mutex
	sent     int
	answered map[int]bool
	problems []error
}

func newPinger(from *testbed.Pod, to string) (*pinger, error) {
	p := &pinger{to: &net.IPAddr{IP: net.ParseIP(to)}, every: 100 * time.Millisecond, answered: map[int]bool{}}
	err := from.Netns.Do(func() (err error) {
		p.conn, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ICMP in pod %s: %w", from.Name, err)
	}
	return p, nil
}

// run sends until ctx ends, waits for the last answers, and closes the socket.
func (p *pinger) run(ctx context.Context) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 1500)
		for {
			n, _, err := p.conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			// 1 is the protocol number of ICMP.
			m, err := icmp.ParseMessage(1, buffer[:n])
			if err != nil || m.Type != ipv4.ICMPTypeEchoReply {
				continue
			}
			if echo, ok := m.Body.(*icmp.Echo); ok && len(echo.Data) == 8 {
				p.mu.Lock()
				p.answered[int(binary.BigEndian.Uint64(echo.Data))] = true
				p.mu.Unlock()
			}
		}
	}()
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for ctx.Err() == nil {
		m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{
			ID: 1, Seq: p.sent & 0xffff, Data: binary.BigEndian.AppendUint64(nil, uint64(p.sent)),
		}}
		data, err := m.Marshal(nil)
		if err == nil {
			_, err = p.conn.WriteTo(data, p.to)
		}
		p.mu.Lock()
		if err != nil && len(p.problems) < 3 {
			p.problems = append(p.problems, err)
		}
		p.sent++
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, lost := p.count(); len(lost) == 0 {
			break
		}
	}
	p.conn.Close()
	<-read
}

// count returns the number of packets sent, and the sequence numbers of those without an answer.
func (p *pinger) count() (sent int, lost []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sent {
		if !p.answered[i] {
			lost = append(lost, i)
		}
	}
	return p.sent, lost
}

// usage is the CPU time of a process so far.
type usage struct {
	name  string
	ticks int // of 10 ms, user and system time
}

// usage returns the usage of all processes of semaphore by PID.
func (b *bed) usage(t *testing.T) map[int]usage {
	t.Helper()
	out := map[int]usage{}
	for _, c := range b.tb.Clusters() {
		for _, name := range []string{"broker", "exporter", "agent"} {
			pods := testkit.Value(e2e.Part(t.Context(), c, name))(t)
			for _, p := range pods {
				if running, err := c.Pod(t.Context(), p.Namespace, p.Name); err == nil {
					pid := running.Container.PID
					ticks, err := ticksOf(pid)
					if err == nil {
						out[pid] = usage{c.Name + " " + p.Name, ticks}
					}
				}
			}
		}
	}
	return out
}

// ticksOf returns the CPU time of a process: fields 14 and 15 of /proc/PID/stat, proc_pid_stat(5).
func ticksOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of process %d has %d fields", pid, len(fields))
	}
	user, err := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return user + system, errors.Join(err, err2)
}

// Bounds for a process during a fault: checkers I6 (no hot loop) and I8 (memory in KiB).
const (
	mostCPU    = 0.5 // of one core, on average
	mostMemory = 200 << 10
)

// busiest returns the process with the highest CPU usage since before, and an error for each that exceeds the bounds.
func (b *bed) busiest(before map[int]usage, lasted time.Duration) (string, error) {
	best, name := 0.0, "nobody"
	var errs []error
	for pid, was := range before {
		now, err := ticksOf(pid)
		if err != nil {
			continue // it was killed
		}
		share := float64(now-was.ticks) / 100 / lasted.Seconds()
		if share > best {
			best, name = share, was.name
		}
		if share > mostCPU && lasted > 10*time.Second {
			errs = append(errs, fmt.Errorf("%s used %.0f %% of a core for %s", was.name, 100*share, seconds(lasted)))
		}
		if kib, err := residentOf(pid); err == nil && kib > mostMemory {
			errs = append(errs, fmt.Errorf("%s holds %d MiB", was.name, kib>>10))
		}
	}
	return fmt.Sprintf("%s %.1f %%", name, 100*best), errors.Join(errs...)
}

// residentOf returns the resident memory of a process in KiB.
func residentOf(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
		}
	}
	return 0, os.ErrNotExist
}

// logLines returns the number of log lines of all pods of a part.
func (b *bed) logLines(c *testbed.Cluster, name string) int {
	paths, err := c.PodLogs(e2e.Namespace, "semaphore-"+name+"-*", "*")
	if err != nil {
		return 0
	}
	lines := 0
	for _, path := range paths {
		if data, err := os.ReadFile(path); err == nil {
			lines += strings.Count(string(data), "\n")
		}
	}
	return lines
}
