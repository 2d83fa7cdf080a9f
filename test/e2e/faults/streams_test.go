package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// halfOpenBound bounds the detection of a connection without another end.
const halfOpenBound = 15 * time.Second

// linkTo returns the leading pod of a part and its status of the stream to or from a cluster.
func linkTo(ctx context.Context, c *testbed.Cluster, name, cluster string) (*testbed.Pod,
	*semaphorev1.LinkStatus, error) {
	pod, err := active(ctx, c, name)
	if err != nil {
		return nil, nil, err
	}
	s, err := status(ctx, c, pod)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range s.Links {
		if l.Cluster == cluster {
			return pod, l, nil
		}
	}
	return nil, nil, fmt.Errorf("%s of %s knows no cluster %s", name, c.Name, cluster)
}

// A broker that is killed during a snapshot has applied nothing of it. The next snapshot deletes or re-creates nothing.
func TestF01_BrokerKilledMidSnapshot(t *testing.T) {
	b := onBed(t)
	g := b.watch(t)
	kill := func(what string) {
		if err := processOf(waitActive(t, b.c1, "broker")).signal(syscall.SIGKILL); err != nil {
			t.Fatal(what, err)
		}
	}
	var seen string
	// mid reports whether a partial snapshot of the new broker was observed, rather than a complete one at the first look.
	mid := func() (partly bool) {
		eventually(t, settle, func(ctx context.Context) error {
			_, l, err := linkTo(ctx, b.c1, "broker", "c2")
			if err != nil {
				return err
			}
			complete := 0
			seen = ""
			for _, k := range l.Kinds {
				seen += fmt.Sprintf("%s %d complete=%t ", k.Kind, k.Objects, k.Complete)
				if k.Complete {
					complete++
				}
			}
			if !l.Connected || complete == 0 {
				return fmt.Errorf("connected %t, %s", l.Connected, seen)
			}
			partly = complete < len(l.Kinds)
			return nil
		})
		return partly
	}
	// Kill a broker so that the next one needs a snapshot, and limit its rate. The rate at which a partial snapshot is
	// observed depends on the machine.
	for rate := 1500; ; rate = rate * 2 / 3 {
		b.toC1.Set(proxy.Conditions{Rate: rate})
		kill("first")
		if mid() {
			break
		}
		if rate < 500 {
			t.Fatalf("no snapshot was seen on its way, at last at %d bytes a second: %s", rate, seen)
		}
	}
	kill("mid-snapshot")
	g.untouched()
	b.toC1.Set(proxy.Conditions{})
	b.toC1.Reset()
	took := b.converges(t, settle)
	t.Logf("killed at: %s; whole again after %s; %s", seen, seconds(took), g.finish())
}

// An exporter restart without changes costs nothing: no snapshot is sent, no object is written, and no agent receives
// anything.
func TestF02_ExporterKilledNothingChanged(t *testing.T) {
	tier.OnlyAll(t, "F01; TestModel (broker/replica), TestReconnect (exporter/publish)")
	b := onBed(t)
	g := b.watch(t)
	broker := waitActive(t, b.c1, "broker")
	before := testkit.Value(metrics(t.Context(), broker))(t)
	passed := b.toC1.Passed()
	exporter := waitActive(t, b.c2, "exporter")
	old := processOf(exporter)
	testkit.Must(t, old.signal(syscall.SIGKILL))
	took := eventually(t, settle, func(ctx context.Context) error {
		pod, l, err := linkTo(ctx, b.c2, "exporter", "c1")
		switch {
		case err != nil:
			return err
		case pod.Container.PID == old.pid:
			return errors.New("the killed one is still there")
		case !l.Connected || l.Behind > 0:
			return fmt.Errorf("connected %t, behind %d", l.Connected, l.Behind)
		}
		return nil
	})
	pause(t, 2*time.Second) // for late changes
	after := testkit.Value(metrics(t.Context(), broker))(t)
	for _, name := range []string{"semaphore_broker_writes_total", "semaphore_broker_changes_total",
		"semaphore_broker_peering_revision"} {
		if before[name] != after[name] {
			t.Errorf("%s went from %v to %v", name, before[name], after[name])
		}
	}
	bytes := b.toC1.Passed() - passed
	sent := testkit.Value(metrics(t.Context(), waitActive(t, b.c2, "exporter")))(t)
	if n := sent["semaphore_exporter_changes_sent_total"]; n > 0 {
		t.Errorf("the new exporter sent %v objects, want none: the broker holds what it would send", n)
	}
	t.Logf("connected again after %s, %d bytes in all, 0 writes, 0 messages to agents; %s", seconds(took), bytes,
		g.finish())
}

// Both ends detect a half-open connection within 15 s, and all state is kept.
func TestF04_HalfOpenConnection(t *testing.T) {
	tier.OnlyAll(t, "TestAgeOfAStalledStream (broker); sim")
	b := onBed(t)
	for _, way := range []struct {
		name string
		// cut makes the connection half-open and returns a function that repairs the network.
		cut func(t *testing.T) (repair func())
	}{
		{"the broker's end is gone", func(*testing.T) func() {
			b.toC1.Set(proxy.Conditions{Stall: true})
			b.toC1.Orphan()
			return func() { b.toC1.Set(proxy.Conditions{}) }
		}},
		{"packets are dropped", func(t *testing.T) func() { return b.drop(t, b.c1) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			g := b.watch(t)
			lines := b.logLines(b.c2, "exporter")
			repair := way.cut(t)
			t.Cleanup(repair)
			cut := time.Now()
			// The parts' own timers may be late on a busy machine, like a write.
			here, there := kubetest.WriteBeside(t, b.c1.Client), kubetest.WriteBeside(t, b.c2.Client)
			noticed := map[string]time.Duration{}
			eventually(t, settle, func(ctx context.Context) error {
				for _, end := range []struct {
					c           *testbed.Cluster
					name, other string
				}{{b.c2, "exporter", "c1"}, {b.c1, "broker", "c2"}} {
					if _, ok := noticed[end.name]; ok {
						continue
					}
					_, l, err := linkTo(ctx, end.c, end.name, end.other)
					if err != nil {
						return err
					}
					if !l.Connected {
						// Use the part's own time of detection, not the time of this query.
						noticed[end.name] = l.Since.AsTime().Sub(cut)
					}
				}
				if len(noticed) < 2 {
					return fmt.Errorf("noticed by %v only", noticed)
				}
				return nil
			})
			late := max(here.Late(), there.Late())
			here.Stop()
			there.Stop()
			for name, after := range noticed {
				if after > halfOpenBound+late {
					t.Errorf("the %s noticed after %s, want %s, and %s for a machine as busy as this one", name, seconds(after),
						halfOpenBound, seconds(late))
				}
			}
			// The age of the state grows, and nothing else happens.
			link := func() (l *semaphorev1.LinkStatus) {
				eventually(t, settle, func(ctx context.Context) (err error) {
					_, l, err = linkTo(ctx, b.c1, "broker", "c2")
					return err
				})
				return l
			}
			first := link()
			pause(t, 3*time.Second)
			second := link()
			if !second.LastHeard.AsTime().Equal(first.LastHeard.AsTime()) {
				t.Error("the broker says it has heard something")
			}
			g.untouched()
			repair()
			took := b.converges(t, settle)
			written := b.logLines(b.c2, "exporter") - lines
			if written > 40 {
				t.Errorf("the exporter wrote %d lines about it", written)
			}
			t.Logf("noticed after: exporter %s, broker %s; whole again %s after the repair; exporter wrote %d lines; %s",
				seconds(noticed["exporter"]), seconds(noticed["broker"]), seconds(took), written, g.finish())
		})
	}
}

// drop drops every packet to and from the proxy in front of a cluster's broker on the fabric.
func (b *bed) drop(t *testing.T, to *testbed.Cluster) (repair func()) {
	t.Helper()
	address := b.before(to).Address().String()
	port := address[len(address)-4:]
	rule := func(op string) error {
		return iptables(b.tb.Fabric(), op, "INPUT", "-p", "tcp", "--dport", port, "-j", "DROP")
	}
	testkit.Must(t, rule("-I"))
	mended := false
	return func() {
		if !mended {
			mended = true
			testkit.NoError(t, rule("-D"))
		}
	}
}

// Two clusters are partitioned while much changes in one of them. Meanwhile nothing is withdrawn in the other.
// Afterwards it has the state that it would have had without the partition, including the deletions.
func TestF05_PartitionWithChurn(t *testing.T) {
	tier.OnlyAll(t, "TestModel (broker/replica); sim")
	b := onBed(t)
	g := b.watch(t)
	b.toC1.Set(proxy.Conditions{Stall: true})
	b.toC2.Set(proxy.Conditions{Stall: true})
	// This is longer than keepalives and the first retries, so the parts detect the partition.
	const parted = 25 * time.Second
	until := time.Now().Add(parted)
	// Churn: some Services are deleted, some are created, some are created and deleted, and pods of a set are replaced.
	ctx := t.Context()
	var errs []error
	for i := range 8 {
		errs = append(errs, withdraw(ctx, b.c2, fmt.Sprintf("many-%03d", i)))
		errs = append(errs, offer(ctx, b.c2, fmt.Sprintf("late-%03d", i), 500+i))
		errs = append(errs, offer(ctx, b.c2, fmt.Sprintf("brief-%03d", i), 600+i))
	}
	for i := range 8 {
		errs = append(errs, withdraw(ctx, b.c2, fmt.Sprintf("brief-%03d", i)))
	}
	// A Service that is deleted and re-created under its name is another object.
	errs = append(errs, withdraw(ctx, b.c2, "many-020"), offer(ctx, b.c2, "many-020", 777))
	testkit.Must(t, errors.Join(errs...))
	testkit.Value(b.c2.Kubectl(ctx, nil, "-n", "shop", "scale", "deployment/server", "--replicas=3"))(t)
	pause(t, time.Until(until))
	g.untouched()
	t.Cleanup(func() { b.refill(t) })

	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed })
	b.toC1.Set(proxy.Conditions{})
	b.toC2.Set(proxy.Conditions{})
	took := b.converges(t, settle)
	// Objects without a change were not touched, and objects that existed only during the partition were never written.
	for _, ch := range g.sofar(b.c1) {
		if !b.churned(ch.name) {
			t.Errorf("nothing changed at its source: %s", ch)
		}
	}
	t.Logf("parted for %s; whole %s after healing; %s", parted, seconds(took), g.finish())
}

// churned reports whether an object of c1 results from the changes of F05.
func (b *bed) churned(name string) bool {
	for i := range 8 {
		for _, s := range []string{fmt.Sprintf("many-%03d", i), fmt.Sprintf("late-%03d", i)} {
			if strings.Contains(name, s) {
				return true
			}
		}
	}
	return strings.Contains(name, "many-020") || strings.Contains(name, "shop-server")
}

// refill restores what F05 deleted.
func (b *bed) refill(t *testing.T) {
	t.Helper()
	var errs []error
	for i := range 8 {
		errs = append(errs, withdraw(life, b.c2, fmt.Sprintf("late-%03d", i)),
			offer(life, b.c2, fmt.Sprintf("many-%03d", i), i))
	}
	_, err := b.c2.Kubectl(life, nil, "-n", "shop", "scale", "deployment/server", "--replicas=2")
	testkit.NoError(t, errors.Join(append(errs, err)...))
	testkit.NoError(t, b.c2.WaitForDeployment(life, "shop", "server", settle))
}
