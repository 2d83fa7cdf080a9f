package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// restartAPIServer kills a cluster's apiserver, keeps it down for a while, and returns when it is ready again.
func restartAPIServer(t *testing.T, c *testbed.Cluster, down time.Duration) {
	t.Helper()
	p := c.Process("kube-apiserver")
	pid := p.PID()
	if down > 0 {
		testkit.Must(t, p.Stop())
		pause(t, down)
		p.Start()
	} else if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, settle, func(ctx context.Context) error {
		if p.PID() == pid {
			return errors.New("the old one is still there")
		}
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

// The own apiserver dies while the broker writes many objects. In the end the broker has written each of them once, and
// nothing else.
func TestF09_OwnAPIServerRestartsMidWrite(t *testing.T) {
	b := onBed(t)
	const burst = 30
	names := make([]string, burst)
	for i := range names {
		names[i] = fmt.Sprintf("burst-%03d", i)
	}
	isBurst := func(ch change) bool { return strings.Contains(ch.name, "-73736d-burst-") }
	withdrawn := false
	takeBack := func() {
		var errs []error
		for _, name := range names {
			errs = append(errs, withdraw(life, b.c2, name))
		}
		testkit.NoError(t, errors.Join(errs...))
		withdrawn = true
	}
	g := b.watch(t)
	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed && isBurst(ch) })
	t.Cleanup(func() {
		if !withdrawn {
			takeBack()
		}
	})
	created := make(chan error, 1)
	go func() {
		for i, name := range names {
			if err := offer(life, b.c2, name, 1000+i); err != nil {
				created <- err
				return
			}
		}
		created <- nil
	}()
	// Some mirrors exist at this point, most do not.
	var there int
	eventually(t, settle, func(ctx context.Context) error {
		list, err := b.c1.Client.CoreV1().Services(e2e.Namespace).List(ctx,
			metav1.ListOptions{LabelSelector: managedLabel + "=" + managedBy})
		if err != nil {
			return err
		}
		there = 0
		for _, s := range list.Items {
			if strings.Contains(s.Name, "-burst-") {
				there++
			}
		}
		if there < 5 {
			return fmt.Errorf("%d mirrors", there)
		}
		return nil
	})
	restartAPIServer(t, b.c1, 0)
	testkit.Must(t, <-created)
	back := time.Now()
	b.converges(t, settle)
	took := time.Since(back)
	writes := map[string][]string{}
	for _, ch := range g.sofar(b.c1) {
		writes[ch.resource+" "+ch.name] = append(writes[ch.resource+" "+ch.name], ch.op)
	}
	for name, ops := range writes {
		if len(ops) != 1 || ops[0] != "create" {
			t.Errorf("%s: %v; want it created once", name, ops)
		}
	}
	if len(writes) != 2*burst {
		t.Errorf("%d objects were written, want %d", len(writes), 2*burst)
	}
	takeBack()
	b.converges(t, settle)
	t.Logf("killed when %d of %d mirrors were there; whole %s after it was back, each object written once; %s", there,
		burst, seconds(took), g.finish())
}

// The own apiserver is down for a minute. The broker exits, because it cannot renew its Lease, and much changes in the
// remote. Meanwhile no packet is lost, and afterwards the broker writes each object once.
func TestF09_OwnAPIServerIsAwayForAMinute(t *testing.T) {
	tier.OnlyAll(t, "TestF09_OwnAPIServerRestartsMidWrite; TestServicesUnderAPIServerFaults (broker)")
	const (
		away  = time.Minute
		fresh = 8
	)
	b := onBed(t)
	// op is the expected operation on the mirror of each name, and on its slice. A changed port gives another slice.
	op := map[string]string{}
	for i := range fresh {
		op[fmt.Sprintf("away-%03d", i)] = "create"
	}
	for i := 20; i < 26; i++ {
		op[fmt.Sprintf("many-%03d", i)] = "delete"
	}
	for i := 26; i < 29; i++ {
		op[fmt.Sprintf("many-%03d", i)] = "update"
	}
	nameOf := func(ch change) string {
		_, name, _ := strings.Cut(ch.name, "-73736d-")
		if len(name) < len("away-000") {
			return ""
		}
		return name[:len("away-000")]
	}
	g := b.watch(t)
	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed && op[nameOf(ch)] != "" })
	p := b.c1.Process("kube-apiserver")
	testkit.Must(t, p.Stop())
	stopped := time.Now()
	restore := func() {
		var errs []error
		for name, what := range op {
			var number int
			testkit.Value(fmt.Sscanf(name[len("many-"):], "%d", &number))(t)
			if what != "delete" {
				errs = append(errs, withdraw(life, b.c2, name))
			}
			if what != "create" {
				errs = append(errs, offer(life, b.c2, name, number))
			}
		}
		testkit.NoError(t, errors.Join(errs...))
	}
	changed, restored := false, false
	t.Cleanup(func() {
		p.Start()
		if changed && !restored {
			restore()
		}
	})
	// Some changes arrive immediately, while the old leader still tries to renew, and the others after it has exited.
	number := 2000
	for _, part := range []struct {
		at  time.Duration
		odd int
	}{{0, 0}, {away / 2, 1}} {
		pause(t, part.at-time.Since(stopped))
		changed = true
		for i, name := range slices.Sorted(maps.Keys(op)) {
			if i%2 != part.odd {
				continue
			}
			number++
			var errs []error
			if op[name] != "create" {
				errs = append(errs, withdraw(t.Context(), b.c2, name))
			}
			if op[name] != "delete" {
				errs = append(errs, offer(t.Context(), b.c2, name, number))
			}
			testkit.Must(t, errors.Join(errs...))
		}
	}
	pause(t, away-time.Since(stopped))
	p.Start()
	eventually(t, settle, func(ctx context.Context) error {
		_, err := b.c1.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	back := time.Now()
	// An apiserver that stops removes its address from the Service kubernetes. kube-proxy, whose watch has failed for a
	// minute, retries it only every 30 to 60 s (client-go's reflector), and until then no pod of the cluster reaches the
	// apiserver. This test is not about that, so restart kube-proxy, which then lists immediately.
	for _, n := range b.c1.Nodes {
		testkit.Must(t, b.c1.Process("kube-proxy/"+n.Name).Kill())
	}
	reached := eventually(t, settle,
		func(ctx context.Context) error { return reachAPIServer(ctx, b.c1, "broker", "exporter") })
	// This time includes the Lease of the old leader and the exporters' reconnect backoff.
	took := b.converges(t, settle)
	whole := time.Since(back)
	writes := map[string][]string{}
	for _, ch := range g.sofar(b.c1) {
		writes[ch.resource+" "+ch.name] = append(writes[ch.resource+" "+ch.name], ch.op)
		want := op[nameOf(ch)]
		replaced := want == "update" && ch.resource == "endpointslices" && (ch.op == "delete" || ch.op == "create")
		if ch.op != want && !replaced {
			t.Errorf("%s; want %s", ch, want)
		}
	}
	wanted := 0
	for _, what := range op {
		if wanted += 2; what == "update" {
			wanted++
		}
	}
	for name, ops := range writes {
		if len(ops) != 1 {
			t.Errorf("%s: %v; want it written once", name, ops)
		}
	}
	if len(writes) != wanted {
		t.Errorf("%d objects were written, want %d", len(writes), wanted)
	}
	restored = true
	restore()
	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed && op[nameOf(ch)] != "" })
	b.converges(t, settle)
	t.Logf("away for %s; pods reached it %s after it was back, all was whole %s after that (%s after it was back), each "+
		"of %d objects written once; %s",
		away, seconds(reached), seconds(took), seconds(whole), len(writes), g.finish())
}

// reachAPIServer reports whether all replicas of parts reach their apiserver by its Service, as pods do.
func reachAPIServer(ctx context.Context, c *testbed.Cluster, parts ...string) error {
	service, err := c.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	address := net.JoinHostPort(service.Spec.ClusterIP, "443")
	for _, name := range parts {
		replicas, err := e2e.Part(ctx, c, name)
		if err != nil {
			return err
		}
		for _, p := range replicas {
			running, err := c.Pod(ctx, p.Namespace, p.Name)
			if err != nil {
				return err
			}
			dialing, cancel := context.WithTimeout(ctx, 3*time.Second)
			conn, err := running.Netns.DialContext(dialing, "tcp", address)
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			conn.Close()
		}
	}
	return nil
}

// The remote apiserver restarts. Its exporter continues its watch, and the broker receives nothing.
func TestF10_RemoteAPIServerRestarts(t *testing.T) {
	tier.OnlyAll(t, "TestF03AnApiserverThatLags (exporter), TestRetryWhileAway (internal/kube)")
	b := onBed(t)
	g := b.watch(t)
	exporter := waitActive(t, b.c2, "exporter")
	broker := waitActive(t, b.c1, "broker")
	sent := testkit.Value(metrics(t.Context(), exporter))(t)
	taken := testkit.Value(metrics(t.Context(), broker))(t)
	lines := b.logLines(b.c2, "exporter")
	killed := time.Now()
	restartAPIServer(t, b.c2, 0)
	back := time.Now()
	down := back.Sub(killed)
	// The exporter watches again: a new object arrives.
	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && strings.Contains(ch.name, "-after-") })
	t.Cleanup(func() { testkit.NoError(t, withdraw(life, b.c2, "after-restart")) })
	testkit.Must(t, offer(t.Context(), b.c2, "after-restart", 900))
	b.converges(t, settle)
	took := time.Since(back)
	after := waitActive(t, b.c2, "exporter")
	sentNow := testkit.Value(metrics(t.Context(), after))(t)
	takenNow := testkit.Value(metrics(t.Context(), broker))(t)
	if after.Container.PID == exporter.Container.PID {
		for _, m := range []struct {
			name          string
			before, after float64
			want          float64
		}{
			{"semaphore_exporter_changes_sent_total", sent["semaphore_exporter_changes_sent_total"],
				sentNow["semaphore_exporter_changes_sent_total"], 2},
			{"semaphore_exporter_streams_ended_total", sent["semaphore_exporter_streams_ended_total"],
				sentNow["semaphore_exporter_streams_ended_total"], 0},
			{"semaphore_broker_changes_total", taken["semaphore_broker_changes_total"],
				takenNow["semaphore_broker_changes_total"], 2},
		} {
			if m.after-m.before != m.want {
				t.Errorf("%s went from %v to %v; want %v more: the Service made afterwards and its slice", m.name, m.before,
					m.after, m.want)
			}
		}
	} else {
		// If the apiserver is down for more than two thirds of the Lease, the leader exits, and the next one lists everything
		// again. The broker's cluster must not change because of that either.
		t.Logf("the exporter that led could not renew its lease for so long; another leads")
	}
	if n := len(g.sofar(b.c1)); n != 2 {
		t.Errorf("%d objects were written, want the mirror and the slice of the Service made afterwards", n)
	}
	t.Logf("down for %s; what was made afterwards arrived %s after it was back; exporter wrote %d lines; %s",
		seconds(down), seconds(took), b.logLines(b.c2, "exporter")-lines, g.finish())
}

// The exporters are cut off from their apiserver while objects are deleted and etcd compacts their history. No watch
// can deliver the deletions, but they must take effect.
func TestF11_CompactionWithDeletesInTheGap(t *testing.T) {
	tier.OnlyAll(t, "TestF03AnApiserverThatLags, TestRestoredEtcd (exporter)")
	b := onBed(t)
	g := b.watch(t)
	exporter := waitActive(t, b.c2, "exporter")
	before := testkit.Value(metrics(t.Context(), exporter))(t)
	// Cut off the standby too: otherwise it leads if the apiserver takes longer than the Lease to start.
	ctx := t.Context()
	replicas := testkit.Value(e2e.Part(ctx, b.c2, "exporter"))(t)
	var cut []*netns.Namespace
	var mends []func()
	for _, p := range replicas {
		running := testkit.Value(b.c2.Pod(ctx, p.Namespace, p.Name))(t)
		ns, mend := cutOffFromAPIServer(t, running)
		cut, mends = append(cut, ns), append(mends, mend)
	}
	var gone []string
	for i := 10; i < 16; i++ {
		name := fmt.Sprintf("many-%03d", i)
		gone = append(gone, name)
		testkit.Must(t, withdraw(ctx, b.c2, name))
	}
	t.Cleanup(func() {
		for i := 10; i < 16; i++ {
			testkit.NoError(t, offer(life, b.c2, fmt.Sprintf("many-%03d", i), i))
		}
	})
	revision := testkit.Value(compact(ctx, b.c2))(t)
	// A new apiserver has no watch cache from before the compaction either.
	restartAPIServer(t, b.c2, 0)
	pause(t, 3*time.Second)
	g.untouched()
	g.allow(func(c *testbed.Cluster, ch change) bool {
		if c != b.c1 || !ch.managed || ch.op != "delete" {
			return false
		}
		for _, name := range gone {
			if strings.Contains(ch.name, "-"+name) {
				return true
			}
		}
		return false
	})
	for i, mend := range mends {
		mend()
		// client-go detects a silent connection after 45 s. Close it now if ss(8) can.
		if err := testkit.CommandIn(cut[i], "ss", "-K", "( dport = 443 or dport = 6443 )"); err != nil {
			t.Log(err)
		}
	}
	took := b.converges(t, settle)
	// An exporter that could not renew its Lease in time has exited. Another one, or its restart, lists everything again.
	after := testkit.Value(metrics(ctx, waitActive(t, b.c2, "exporter")))(t)
	deletes := 0
	for _, ch := range g.sofar(b.c1) {
		if ch.op == "delete" {
			deletes++
		}
	}
	if deletes != 2*len(gone) {
		t.Errorf("%d objects were deleted, want the mirrors and slices of %d Services", deletes, len(gone))
	}
	errs := after["semaphore_exporter_watch_errors_total"] - before["semaphore_exporter_watch_errors_total"]
	t.Logf("compacted at revision %d; %d deletes took effect %s after the exporter reached its apiserver again; %v "+
		"failed lists and watches; %s",
		revision, deletes, seconds(took), errs, g.finish())
}

// cutOffFromAPIServer drops all packets between a pod and its apiserver. The namespace stays valid until the test ends,
// even if the containers end.
func cutOffFromAPIServer(t *testing.T, pod *testbed.Pod) (ns *netns.Namespace, mend func()) {
	t.Helper()
	rules := [][]string{
		{"OUTPUT", "-p", "tcp", "-m", "multiport", "--dports", "443,6443", "-j", "DROP"},
		{"INPUT", "-p", "tcp", "-m", "multiport", "--sports", "443,6443", "-j", "DROP"},
	}
	held := testkit.Value(os.Open(pod.Netns.Path()))(t)
	t.Cleanup(func() { held.Close() })
	ns = netns.OfFile(held)
	for _, r := range rules {
		testkit.Must(t, iptables(ns, append([]string{"-I"}, r...)...))
	}
	done := false
	mend = func() {
		if done {
			return
		}
		done = true
		for _, r := range rules {
			testkit.NoError(t, iptables(ns, append([]string{"-D"}, r...)...))
		}
	}
	t.Cleanup(mend)
	return ns, mend
}

// compact compacts the whole history of a cluster's etcd through its HTTP gateway, and returns the revision.
func compact(ctx context.Context, c *testbed.Cluster) (int64, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: c.ControlPlane().DialContext, DisableKeepAlives: true}}
	call := func(path string, body, into any) error {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:2379"+path, bytes.NewReader(data))
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, answer)
		}
		if err != nil {
			return fmt.Errorf("etcd of %s: %s: %w", c.Name, path, err)
		}
		return json.Unmarshal(answer, into)
	}
	var head struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	if err := call("/v3/kv/range", map[string]any{"key": []byte("none")}, &head); err != nil {
		return 0, err
	}
	return head.Header.Revision,
		call("/v3/kv/compaction", map[string]any{"revision": head.Header.Revision, "physical": true}, &struct{}{})
}

// The broker cannot look up agents, because it may not create TokenReviews. Existing streams continue. A new stream
// retries with backoff, its node keeps its devices, and it recovers when the permission is back.
func TestF20_TokenReviewUnavailable(t *testing.T) {
	b := onBed(t)
	g := b.watch(t)
	// Remove only the permissions that the admission of agents needs.
	setVerbs := func(ctx context.Context, verbs ...string) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			roles := b.c1.Client.RbacV1().ClusterRoles()
			role, err := roles.Get(ctx, "semaphore-broker-encryption", metav1.GetOptions{})
			if err != nil {
				return err
			}
			found := false
			for i := range role.Rules {
				if strings.Join(role.Rules[i].Resources, ",") == "tokenreviews" {
					role.Rules[i].Verbs, found = verbs, true
				}
			}
			if !found {
				return errors.New("no rule for tokenreviews")
			}
			_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
			return err
		})
	}
	testkit.Must(t, setVerbs(t.Context(), "nothing"))
	restored := false
	restore := func() {
		if !restored {
			restored = true
			testkit.NoError(t, setVerbs(life, "create"))
		}
	}
	t.Cleanup(restore)
	// The authorizer learns of the change by a watch.
	eventually(t, settle, func(ctx context.Context) error {
		review, err := b.c1.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + e2e.Namespace + ":semaphore-broker",
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "create", Group: "authentication.k8s.io",
					Resource: "tokenreviews"},
			}}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed {
			err = errors.New("the broker may still review tokens")
		}
		return err
	})
	broker := waitActive(t, b.c1, "broker")
	before := testkit.Value(metrics(t.Context(), broker))(t)
	// One agent loses its stream. The test does not restart the agent, because a userspace device lives in the agent's
	// container.
	lonely := b.c1.Nodes[0]
	reject := []string{"OUTPUT", "-p", "tcp", "--dport", "8444", "-j", "REJECT", "--reject-with", "tcp-reset"}
	testkit.Must(t, iptables(lonely.Netns, append([]string{"-I"}, reject...)...))
	attached := func(ctx context.Context) (map[string]bool, error) {
		s, err := status(ctx, b.c1, broker)
		out := map[string]bool{}
		for _, n := range s.GetNodes() {
			out[n.Node] = n.Attached
		}
		return out, err
	}
	eventually(t, settle, func(ctx context.Context) error {
		nodes, err := attached(ctx)
		if err == nil && nodes[lonely.Name] {
			err = errors.New("it is attached")
		}
		return err
	})
	testkit.Must(t, iptables(lonely.Netns, append([]string{"-D"}, reject...)...))
	const unavailable = 20 * time.Second
	pause(t, unavailable)
	nodes := testkit.Value(attached(t.Context()))(t)
	for _, n := range b.c1.Nodes {
		if want := n != lonely; nodes[n.Name] != want {
			t.Errorf("node %s: attached %t, want %t", n.Name, nodes[n.Name], want)
		}
	}
	var refused float64
	waited := unavailable + eventually(t, settle, func(ctx context.Context) error {
		after, err := metrics(ctx, broker)
		refused = after["semaphore_broker_agents_refused_total"] - before["semaphore_broker_agents_refused_total"]
		if err == nil && refused < 1 {
			err = errors.New("no attempt was refused")
		}
		return err
	})
	// With a backoff of up to 15 s there are a few attempts. Without it there would be hundreds.
	if refused > 12 {
		t.Errorf("%v attempts in %s: want a few, with backoff", refused, waited)
	}
	g.untouched()
	restore()
	took := b.converges(t, settle)
	t.Logf("%v attempts of the new stream in %s, the other stream continued; attached %s after the right was back; %s",
		refused, unavailable, seconds(took), g.finish())
}
