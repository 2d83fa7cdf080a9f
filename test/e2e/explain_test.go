package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// explained is the output of semaphorectl explain -o json.
type explained struct {
	From, To string
	Reaches  bool
	Verdict  string
	Links    []struct {
		Code, Verdict string
		Evidence      []string
	}
	NotRead []string `json:"not_read"`
}

func (e *explained) with(verdict string) (codes []string) {
	for _, l := range e.Links {
		if l.Verdict == verdict {
			codes = append(codes, l.Code)
		}
	}
	return codes
}

// unanswered reports whether no link is known to be broken, but not all were examined. A part that gets no CPU time for
// five seconds does not answer in time. The test then asks again.
func (e *explained) unanswered() bool {
	return len(e.with("broken")) == 0 && len(e.with("unknown")) > 0
}

// brokenLink is a case: how to break and repair a link. The request goes from web-7d9f in c1 to a Service of c2.
type brokenLink struct {
	code finding.Code
	// how is the description in the table of docs/explain.md.
	how string
	// service is the Service of c2 that receives the request; echo by default.
	service     string
	break_, fix func(context.Context, *testing.T, *explainBed)
	// byIP is set where the mirror does not use what cannot be reached: explain is asked about the IP of the pod then.
	byIP bool
	// within is how long explain may take to find it after requests fail. It is 0 except for links whose detection takes
	// time by design.
	within time.Duration
}

// explainBed is two connected clusters. The test breaks each link of the path in turn.
type explainBed struct {
	*documentsBed
	saved map[string]string
}

const (
	explainedClient = "web-7d9f"
	explainedShop   = `apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: default.web-of-c1, namespace: shop}
spec:
  order: 100
  selector: app == 'echo'
  types: [Ingress]
  ingress:
    - {action: Allow, protocol: TCP, source: {nets: [172.18.2.0/24]}}
    - action: Allow
      protocol: TCP
      source:
        selector: semaphore.uw.systems/name == 'web' && semaphore.uw.systems/cluster == 'c1'
        namespaceSelector: global()
      destination: {ports: [8080]}
`
	denyIn = `apiVersion: crd.projectcalico.org/v1
kind: NetworkPolicy
metadata: {name: default.closed, namespace: shop}
spec:
  order: 50
  selector: app == 'echo'
  types: [Ingress]
  ingress:
    - {action: Allow, protocol: TCP, source: {nets: [172.18.2.0/24]}}
    - {action: Deny}
`
	onlyDNS = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-dns, namespace: shop}
spec:
  podSelector: {matchLabels: {semaphore.uw.systems/name: web}}
  policyTypes: [Egress]
  egress:
    - ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]
`
	otherEcho = `apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 8080, targetPort: http}]
`
	foreignMirror = `apiVersion: v1
kind: Service
metadata: {name: c2-shop-73736d-taken, namespace: semaphore}
spec:
  ports: [{name: http, port: 8080}]
`
)

// onNode runs a command on the only node of a cluster.
func onNode(cluster string, args ...string) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) {
		t.Helper()
		testkit.Value(b.tb.Cluster(cluster).Nodes[0].Exec(ctx, args...))(t)
	}
}

func commands(text string) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) { t.Helper(); b.shell(ctx, t, text) }
}

func yamlIn(cluster, text string) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) {
		t.Helper()
		must(t, b.tb.Cluster(cluster).ApplyYAML(ctx, text))
	}
}

func both(all ...func(context.Context, *testing.T, *explainBed)) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) {
		t.Helper()
		for _, one := range all {
			one(ctx, t, b)
		}
	}
}

// save stores objects for later, without the fields that the apiserver adds.
func save(cluster, what string) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) {
		t.Helper()
		text := testkit.Value(b.commands(ctx, "kubectl --context "+cluster+" get "+what+" -o json", 0))(t)
		var list struct{ Items []map[string]any }
		must(t, json.Unmarshal([]byte(text), &list))
		var documents []string
		for _, item := range list.Items {
			meta := item["metadata"].(map[string]any)
			for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"} {
				delete(meta, field)
			}
			documents = append(documents, string(testkit.Value(json.Marshal(item))(t)))
		}
		b.saved[cluster+" "+what] = strings.Join(documents, "\n---\n")
	}
}

func restore(cluster, what string) func(context.Context, *testing.T, *explainBed) {
	return func(ctx context.Context, t *testing.T, b *explainBed) {
		t.Helper()
		must(t, b.tb.Cluster(cluster).ApplyYAML(ctx, b.saved[cluster+" "+what]))
	}
}

const (
	drop     = "iptables %s INPUT -p udp --dport 51820 -j DROP"
	dropBig  = "iptables %s INPUT -p udp -m length --length 1100:65535 -j DROP"
	stopped  = "kill -%s $(pidof kube-proxy)"
	labelled = "kubectl --context %s -n shop label --overwrite %s"
)

// brokenLinks returns the cases, in the order of the path.
func brokenLinks() []brokenLink {
	sh := func(cluster, format string, args ...any) func(context.Context, *testing.T, *explainBed) {
		return onNode(cluster, "sh", "-c", fmt.Sprintf(format, args...))
	}
	return []brokenLink{
		{code: finding.PathName, how: "the Service in c2 loses its label",
			break_: commands(fmt.Sprintf(labelled, "c2", "service echo mirror.semaphore.uw.io/mirror-service-")),
			fix:    commands(fmt.Sprintf(labelled, "c2", "service echo mirror.semaphore.uw.io/mirror-service=true"))},
		{code: finding.PathDNS, how: "the server block of c2 leaves the Corefile of c1",
			break_: func(ctx context.Context, t *testing.T, b *explainBed) { must(t, b.c1.AppendCorefile(ctx, "")) },
			fix: func(ctx context.Context, t *testing.T, b *explainBed) {
				blocks := testkit.Value(b.commands(ctx, "semaphorectl coredns --context c1 2>/dev/null", 0))(t)
				must(t, b.c1.AppendCorefile(ctx, blocks))
			}},
		{code: finding.PathMirror, how: "somebody's Service has the name of the mirror", service: "taken",
			break_: both(yamlIn("c1", foreignMirror), yamlIn("c2", strings.ReplaceAll(otherEcho, "NAME", "taken"))),
			fix:    commands("kubectl --context c1 -n semaphore delete service c2-shop-73736d-taken")},
		{code: finding.PathSlices, how: "c2 is drained in c1",
			break_: commands("semaphorectl drain cluster c2 --context c1"),
			fix:    commands("semaphorectl undrain cluster c2 --context c1")},
		{code: finding.PathKubeProxy, how: "kube-proxy of the client's node hangs", service: "fresh",
			break_: both(sh("c1", stopped, "STOP"), yamlIn("c2", strings.ReplaceAll(otherEcho, "NAME", "fresh")),
				func(ctx context.Context, t *testing.T, b *explainBed) {
					must(t, until(ctx, settle, func() error {
						out, err := b.commands(ctx, "kubectl --context c1 -n semaphore get endpointslices "+
							"-l kubernetes.io/service-name=c2-shop-73736d-fresh -o jsonpath='{.items[*].endpoints[*].addresses}'", 0)
						if err == nil && !strings.Contains(out, "10.2.") {
							err = fmt.Errorf("no endpoint of the new mirror: %q", out)
						}
						return err
					}))
				}),
			fix: sh("c1", stopped, "CONT")},
		{code: finding.PathRoute, how: "a routing rule of the client's node comes before the agent's",
			break_: sh("c1", "ip rule add pref 10 to 10.2.0.0/16 unreachable"),
			fix:    sh("c1", "ip rule del pref 10")},
		{code: finding.PathDevice, how: "another interface has the name of the device",
			break_: func(ctx context.Context, t *testing.T, b *explainBed) {
				// The agent re-creates its device immediately and may be first.
				must(t, until(ctx, settle, func() error {
					_, err := b.c1.Nodes[0].Exec(ctx, "sh", "-c", "ip tuntap add other0 mode tun || true; "+
						"printf 'link del wireguard.c2\nlink set other0 name wireguard.c2\nlink set wireguard.c2 up\n' | ip -batch -")
					return err
				}))
			},
			fix: sh("c1", "ip link del wireguard.c2")},
		{code: finding.PathPeer, how: "Calico's block of the pod's node is deleted, so that its prefix is no longer exported",
			byIP: true, break_: both(save("c2", "blockaffinities.crd.projectcalico.org"),
				commands("kubectl --context c2 delete blockaffinities.crd.projectcalico.org --all")),
			fix: restore("c2", "blockaffinities.crd.projectcalico.org")},
		{code: finding.PathHandshake, how: "the far node's firewall drops the tunnel's UDP port", within: 40 * time.Second,
			break_: sh("c2", drop, "-I"), fix: sh("c2", drop, "-D")},
		{code: finding.PathMTU, how: "the far node's firewall drops large UDP packets",
			break_: sh("c2", dropBig, "-I"), fix: sh("c2", dropBig, "-D")},
		{code: finding.PathFarNode, how: "a routing rule of the pod's node comes before the agent's",
			break_: sh("c2", "ip rule add pref 10 to 10.1.0.0/16 unreachable"),
			fix:    sh("c2", "ip rule del pref 10")},
		{code: finding.PathPool, how: "c1 has no IPPool of c2's pods",
			break_: commands("kubectl --context c1 delete ippools.crd.projectcalico.org of-c2"),
			fix:    yamlIn("c1", ownPool("c2", "10.2.0.0/16"))},
		{code: finding.PathSet, how: "the client loses the label of its set",
			break_: commands(fmt.Sprintf(labelled, "c1", "pod web-7d9f semaphore.uw.systems/name-")),
			fix:    commands(fmt.Sprintf(labelled, "c1", "pod web-7d9f semaphore.uw.systems/name=web"))},
		{code: finding.PathPolicyOut, how: "a NetworkPolicy of c1 lets the client ask DNS only",
			break_: yamlIn("c1", onlyDNS),
			fix:    commands("kubectl --context c1 -n shop delete networkpolicies.networking.k8s.io only-dns")},
		{code: finding.PathPolicyIn, how: "a policy of c2 that comes first denies everybody",
			break_: yamlIn("c2", denyIn),
			fix:    commands("kubectl --context c2 -n shop delete networkpolicies.crd.projectcalico.org default.closed")},
	}
}

func ownPool(name, cidr string) string {
	return "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: of-" + name +
		"}\nspec: {cidr: " + cidr +
		", disabled: true, ipipMode: Never, vxlanMode: Never, natOutgoing: false, nodeSelector: all()}\n"
}

// TestExplainDocumentsEachLink checks that docs/explain.md lists each link, with how the test breaks it, and no other.
func TestExplainDocumentsEachLink(t *testing.T) {
	page := testkit.Value(os.ReadFile(filepath.Join("..", "..", "docs", "explain.md")))(t)
	var got, want []string
	row := regexp.MustCompile("(?m)^\\| [^|]+ \\| <a id=\"Path[A-Za-z]+\"></a>`(Path[A-Za-z]+)` \\| .* \\| ([^|]+) \\|$")
	for _, m := range row.
		FindAllStringSubmatch(string(page), -1) {
		got = append(got, m[1]+": "+m[2])
	}
	var codes []finding.Code
	for _, c := range brokenLinks() {
		want, codes = append(want, string(c.code)+": "+c.how), append(codes, c.code)
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/explain.md has\n%s\nthe test\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	slices.Sort(codes)
	if all := finding.Of(finding.Paths); !slices.Equal(codes, all) {
		t.Errorf("the test breaks %v, the links are %v", codes, all)
	}
}

// TestExplain breaks each link of the path between two pods on real nodes. Each time requests fail, explain names that
// link and no other, and requests succeed again after the repair. While the tunnel is cut, the broker's page shows it.
// Before, explain takes both ends in each form and does without a cluster that does not answer, and trace, its --watch
// and bundle are used on the same clusters.
func TestExplain(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures breaks three links; internal/diagnose has the table of all")
	ctx := needsBed(t)
	b := newExplainBed(ctx, t)
	b.reaches(ctx, t, "echo")
	b.whole(ctx, t, "echo")
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{{"forms", b.forms}, {"a cluster is away", b.oneAway}, {"trace", b.traces}, {"watch", b.watches},
		{"bundle", b.bundles}} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) && os.Getenv("EXPLAIN_ALL") == "" {
			t.FailNow()
		}
	}
	for _, c := range brokenLinks() {
		ok := t.Run(string(c.code), func(t *testing.T) {
			if c.code == finding.PathHandshake { // the dashboard has to show it, too
				// Packets pass both ways until the cut.
				stop, answered := b.keepAsking(ctx, t, "echo", 200*time.Millisecond)
				defer stop()
				if d := b.openDashboard(ctx, t); d != nil {
					opened := answered()
					d.equals(ctx, t)
					// The agent suspects only a peer that it has seen answer promptly.
					must(t, until(ctx, settle, func() error {
						if n := answered() - opened; n < promptAnswers {
							return fmt.Errorf("%d of %d requests were answered with the page open", n, promptAnswers)
						}
						return nil
					}))
					cut, fix := c.break_, c.fix
					c.break_ = func(ctx context.Context, t *testing.T, b *explainBed) {
						t.Helper()
						d.cut = time.Now()
						cut(ctx, t, b)
					}
					c.fix = func(ctx context.Context, t *testing.T, b *explainBed) {
						t.Helper()
						d.sawCut(t) // the agent answers explain before it reports to the broker
						fix(ctx, t, b)
					}
				}
			}
			b.breaks(ctx, t, c)
		})
		if !ok && t.Failed() && os.Getenv("EXPLAIN_ALL") == "" {
			t.FailNow() // the next case begins with a path that works
		}
	}
	b.whole(ctx, t, "echo")
}

func newExplainBed(ctx context.Context, t *testing.T) *explainBed {
	b := &explainBed{documentsBed: newDocumentsBed(ctx, t), saved: map[string]string{}}
	b.startsNamed(ctx, t)
	b.in.OwnPools = true
	b.in.Broker = dashboardConfig
	b.in.Agent = "serviceTraffic: true" // the dashboard shows it
	for _, c := range b.tb.Clusters() {
		for _, other := range b.tb.Clusters() {
			if other != c {
				must(t, c.ApplyYAML(ctx, ownPool(other.Name, other.PodCIDR.String())))
			}
		}
	}
	must(t, b.in.Install(ctx, b.progress))
	must(t, b.c2.ApplyYAML(ctx, explainedShop))
	b.shell(ctx, t, fmt.Sprintf(labelled, "c2", "service echo mirror.semaphore.uw.io/mirror-service=true"))
	return b
}

// request sends one request to the Service, with a header that needs more than one packet.
func (b *explainBed) request(ctx context.Context, service string) error {
	_, err := b.c1.ExecPod(ctx, "shop", explainedClient, "curl", "-sS", "--fail", "--max-time", "3", "-o", "/dev/null",
		"-H", "X-Fill: "+strings.Repeat("x", 6000), "http://"+service+".shop.svc.cluster.c2:8080/?headers")
	return err
}

// keepAsking sends requests while explain runs, with pauses. An agent detects a cut path by packets that are sent and
// not answered.
func (b *explainBed) keepAsking(ctx context.Context, t *testing.T, service string,
	pause time.Duration) (stop func(), answered func() int) {
	t.Helper()
	client := testkit.Value(b.c1.Pod(ctx, "shop", explainedClient))(t)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	var n atomic.Int64
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if _, err := client.Exec(ctx, "curl", "-s", "--max-time", "1", "-o", "/dev/null", "http://"+service+
				".shop.svc.cluster.c2:8080/"); err == nil {
				n.Add(1)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}, func() int { return int(n.Load()) }
}

func (b *explainBed) reaches(ctx context.Context, t *testing.T, service string) {
	t.Helper()
	must(t, until(ctx, settle, func() error { return b.request(ctx, service) }))
}

// explain runs semaphorectl outside the clusters.
func (b *explainBed) explain(ctx context.Context, to string) (*explained, error) {
	return b.ask(ctx, "--context c1 --context c2 c1/shop/"+explainedClient+" "+to+":8080")
}

// ask runs semaphorectl explain with arguments.
func (b *explainBed) ask(ctx context.Context, args string) (*explained, error) {
	out, err := b.commands(ctx, "semaphorectl explain -o json "+args+" 2>/dev/null || test $? -le 2", 0) // 1: not known
	if err != nil {
		return nil, err
	}
	var e explained
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return &e, nil
}

// whole waits until all links work and all were examined.
func (b *explainBed) whole(ctx context.Context, t *testing.T, service string) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		e := testkit.Value(b.explain(ctx, service+".shop.svc.cluster.c2"))(t)
		if e.unanswered() {
			return fmt.Errorf("somebody who was asked did not answer: %s\n%+v", e.Verdict, e.Links)
		}
		if !e.Reaches || len(e.with("unknown")) > 0 || len(e.with("ok")) != len(finding.Of(finding.Paths)) {
			t.Fatalf("the path works, and explain says: %s\n%+v", e.Verdict, e.Links)
		}
		return nil
	}))
}

func (b *explainBed) breaks(ctx context.Context, t *testing.T, c brokenLink) {
	service := "echo"
	if c.service != "" {
		service = c.service
	}
	to := service + ".shop.svc.cluster.c2"
	if c.byIP {
		to = b.value(ctx, t, fmt.Sprintf(podIP, "c2", b.value(ctx, t, fmt.Sprintf(echoPod, "c2"))))
	}
	began := time.Now()
	c.break_(ctx, t, b)
	must(t, until(ctx, settle, func() error {
		if b.request(ctx, service) == nil {
			return fmt.Errorf("requests are still answered")
		}
		return nil
	}))
	failed := time.Now()
	stop, _ := b.keepAsking(ctx, t, service, time.Second)
	defer stop()
	asked := time.Now()
	must(t, until(ctx, settle, func() error {
		e, err := b.explain(ctx, to)
		if err != nil {
			return err
		}
		if broken := e.with("broken"); !slices.Equal(broken, []string{string(c.code)}) {
			err := fmt.Errorf("broken is %s, explain says %v: %s\n%+v", c.code, broken, e.Verdict, e.Links)
			if !e.unanswered() && time.Since(asked) > c.within {
				t.Fatal(err)
			}
			return err
		}
		t.Log(e.Verdict)
		return nil
	}))
	named := time.Now()
	stop()
	c.fix(ctx, t, b)
	b.reaches(ctx, t, service)
	t.Logf(
		"requests fail %.1f s after the break, explain names it %.1f s later, requests are answered %.1f s after the fix",
		failed.Sub(began).Seconds(), named.Sub(failed).Seconds(), time.Since(named).Seconds())
}
