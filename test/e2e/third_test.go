package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// delivered bounds the time until agents run with a changed ConfigMap: two minutes for the kubelets, plus the start of
// pods.
const delivered = 2*time.Minute + settle

// third checks that one command adds a third cluster, installed from files, to two that are connected by commands,
// without naming a value of the others, and that it can be removed again. Meanwhile no packet between the two is lost,
// and nothing of theirs restarts: no process, no engine of a broker, no stream of an agent. At the end it comes once
// more, as an object that kubectl applies, and CoreDNS follows.
func (b *documentsBed) third(ctx context.Context, t *testing.T) {
	c3 := b.tb.Cluster("c3")
	// The broker of c1 is to keep CoreDNS current.
	wired := make(chan error, 1)
	go func() {
		_, err := b.commands(ctx, ownMachine("semaphorectl install --context c1 --dns"), 0)
		wired <- err
	}()
	b.installForLink(ctx, t, c3)
	must(t, <-wired)
	servers := map[string]*testbed.Pod{}
	for _, c := range b.tb.Clusters() {
		servers[c.Name] = podOf(ctx, t, c, "client")
		udpEcho(t, servers[c.Name])
	}
	answers := func(from, to string) {
		t.Helper()
		must(t, until(ctx, delivered, func() error {
			b, a := servers[to], servers[from]
			if err := exchange(a.Netns, addrPort(b), 100); err != nil {
				return fmt.Errorf("%s to %s: %w", from, to, err)
			}
			return nil
		}))
	}
	answers("c1", "c2")
	answers("c2", "c1")

	before, since := b.started(ctx, t), b.attachedSince(ctx, t)
	leases := b.leases(ctx, t)
	there, back := startPings(t, servers["c1"], servers["c2"]), startPings(t, servers["c2"], servers["c1"])
	untouched := func(when string) {
		t.Helper()
		there.noneLost(t)
		back.noneLost(t)
		if b.leases(ctx, t) != leases && !b.noneDeposed(ctx, t) {
			before, since, leases = b.started(ctx, t), b.attachedSince(ctx, t), b.leases(ctx, t)
			return
		}
		if after := b.started(ctx, t); after != before {
			t.Errorf("%s, a part restarted: before\n%s\nafter\n%s", when, before, after)
		}
		if now := b.attachedSince(ctx, t); now != since {
			t.Errorf("%s, agents attached again: before\n%s\nafter\n%s", when, since, now)
		}
	}

	link := b.printed(t, "semaphorectl link ")
	began := time.Now()
	out := testkit.Value(b.commands(ctx, ownMachine(link), 0))(t)
	t.Logf("%s (%.1f s)\n%s", link, time.Since(began).Seconds(), out)
	for _, c := range b.tb.Clusters() {
		b.shell(ctx, t, "kubectl --context "+c.Name+" wait --for=condition=Connected --timeout=300s remotecluster --all")
	}
	connected := time.Since(began)
	for _, other := range []string{"c1", "c2"} {
		answers("c3", other)
		answers(other, "c3")
	}
	spec := testkit.Value(b.c1.Kubectl(ctx, nil, "get", "remotecluster", "c3", "-o", "jsonpath={.spec}"))(t)
	t.Logf("a third cluster: 1 command, 1 value, 0 files; connected after %.1f s, pods of all clusters reach each other "+
		"after %.1f s", connected.Seconds(), time.Since(began).Seconds())
	untouched("with c3")

	const forget = "semaphorectl unlink c3 --force --context c1,c2 --yes"
	began = time.Now()
	out = testkit.Value(b.commands(ctx, forget, 0))(t)
	t.Logf("%s (%.1f s)\n%s", forget, time.Since(began).Seconds(), out)
	for _, name := range []string{"c1", "c2"} {
		must(t, until(ctx, settle, func() error {
			left, err := b.ofRemote(ctx, b.tb.Cluster(name), "c3")
			if err == nil && left != "" {
				err = fmt.Errorf("%s has of c3 still:\n%s", name, left)
			}
			return err
		}))
	}
	t.Logf("forgotten: 1 command; nothing of it is left after %.1f s", time.Since(began).Seconds())
	// The agents receive the change after the apiserver.
	must(t, until(ctx, settle, func() error {
		if exchange(servers["c3"].Netns, addrPort(servers["c1"]), 100) == nil {
			return errors.New("a pod of c3 still reaches c1")
		}
		return nil
	}))
	untouched("without c3")
	there.end()
	back.end()
	b.byObject(ctx, t, c3, spec)
	b.shell(ctx, t, "kubectl --context c3 delete namespace semaphore --wait=false")
}

// byObject checks that a name of a Service of c3 resolves in c1 because of a RemoteCluster alone, which no verb makes,
// and no longer when the object is deleted.
func (b *documentsBed) byObject(ctx context.Context, t *testing.T, c3 *testbed.Cluster, spec string) {
	const url = "http://echo.shop.svc.cluster.c3:8080"
	ask := func(codes ...int) error {
		_, err := b.commands(ctx, "kubectl --context c1 -n shop exec client -- curl -sS --max-time 3 "+url, codes...)
		return err
	}
	has := func() bool {
		corefile := testkit.Value(b.c1.Kubectl(ctx, nil, "-n", "kube-system", "get", "configmap", "coredns", "-o",
			"jsonpath={.data.Corefile}"))(t)
		return strings.Contains(corefile, "\ncluster.c3 {")
	}
	const noSuchHost = 6 // exit code of curl
	must(t, ask(noSuchHost))
	if has() {
		t.Error("CoreDNS of c1 has a block for cluster.c3 before there is an object")
	}
	b.shell(ctx, t, "kubectl --context c3 -n shop label service echo mirror.semaphore.uw.io/mirror-service=true")
	began := time.Now()
	must(t, b.c1.ApplyYAML(ctx, `{"apiVersion":"semaphore.uw.io/v1alpha1","kind":"RemoteCluster",`+
		`"metadata":{"name":"c3"},"spec":`+spec+`}`))
	must(t, until(ctx, delivered, func() error { return ask(0) }))
	t.Logf("kubectl alone: a pod of c1 has an answer of %s after %.1f s", url, time.Since(began).Seconds())

	began = time.Now()
	b.shell(ctx, t, "kubectl --context c1 delete remotecluster c3")
	must(t, until(ctx, settle, func() error {
		if has() {
			return errors.New("CoreDNS of c1 has a block for cluster.c3 still")
		}
		return ask(noSuchHost)
	}))
	t.Logf("the object is deleted: the name is gone after %.1f s", time.Since(began).Seconds())
}

// leases returns the number of leader changes in c1 and c2.
func (b *documentsBed) leases(ctx context.Context, t *testing.T) string {
	t.Helper()
	return testkit.Value(b.commands(ctx, `for c in c1 c2; do kubectl --context $c -n semaphore get leases -o `+
		`jsonpath='{range .items[*]}{.metadata.name} {.spec.leaseTransitions}{"\n"}{end}'; done`, 0))(t)
}

// attachedSince returns since when the agents of c1 and c2 are attached, according to the brokers, once they are.
func (b *documentsBed) attachedSince(ctx context.Context, t *testing.T) string {
	t.Helper()
	var lines []string
	must(t, until(ctx, settle, func() error {
		out, err := b.commands(ctx, `for c in c1 c2; do kubectl --context $c -n semaphore exec deploy/semaphore-broker -- `+
			`semaphorectl status -o json; done`, 0, 2)
		if err != nil {
			return err
		}
		lines = nil
		node := ""
		for line := range strings.Lines(out) {
			switch field := strings.Trim(line, " ,\n"); {
			case strings.HasPrefix(field, `"node":`):
				node = field
			case strings.HasPrefix(field, `"since":`) && node != "":
				lines, node = append(lines, node+" "+field), ""
			}
		}
		if len(lines) != 2 {
			return fmt.Errorf("agents of two clusters: %q of\n%s", lines, out)
		}
		return nil
	}))
	return strings.Join(lines, "\n")
}
