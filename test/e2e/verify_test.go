package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// verifyLine is a check in the JSON output of semaphorectl check --traffic.
type verifyLine struct {
	From, To, Check, Result, Code, Detail string
}

// directed are the checks from each cluster to each other cluster.
var directed = []string{"pod-ip", "encryption", "path-mtu", "mirror", "dns", "global", "policy"}

// verifies runs semaphorectl check --traffic, expects the exit code, and returns the checks by "c1 c2 mirror". It
// checks that this leaves nothing in either cluster.
func (b *documentsBed) verifies(ctx context.Context, t *testing.T, code int) map[string]verifyLine {
	t.Helper()
	began := time.Now()
	within := "3m"
	if code != 0 {
		within = "40s" // failing checks use the whole time
	}
	_, failed := b.commands(ctx, b.printed(t, "semaphorectl check --traffic ")+" --timeout "+within+
		" -o json > verify.json", code)
	text := testkit.Value(os.ReadFile(filepath.Join(b.dir, "verify.json")))(t)
	var report struct {
		Verdict string
		Checks  []verifyLine
	}
	must(t, json.Unmarshal(text, &report))
	t.Logf("%s (%.1f s)", report.Verdict, time.Since(began).Seconds())
	found := map[string]verifyLine{}
	for _, c := range report.Checks {
		t.Logf("  %s %s %s %s %s: %s", c.From, c.To, c.Check, c.Result, c.Code, c.Detail)
		found[strings.Join(strings.Fields(c.From+" "+c.To+" "+c.Check), " ")] = c
	}
	must(t, failed)
	b.nothingOfVerify(ctx, t)
	return found
}

// nothingOfVerify fails the test if a cluster has an object of check --traffic.
func (b *documentsBed) nothingOfVerify(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, c := range b.tb.Clusters() {
		kinds := "namespaces,pods,services,endpointslices"
		if !b.in.NoCalico {
			kinds += ",networkpolicies.crd.projectcalico.org,globalnetworksets.crd.projectcalico.org"
		}
		left := testkit.Value(c.Kubectl(ctx, nil, "get", kinds, "-A", "-o", "name"))(t)
		for line := range strings.Lines(left) {
			if strings.Contains(line, "verify") {
				t.Errorf("%s has %s", c.Name, line)
			}
		}
	}
}

// expect compares the results with the wanted ones. All other directed checks must have passed. Without CoreDNS blocks,
// dns is not checked.
func expect(t *testing.T, found map[string]verifyLine, blocks bool, want map[string]string) {
	t.Helper()
	for _, way := range []string{"c1 c2", "c2 c1"} {
		for _, name := range directed {
			key := way + " " + name
			wanted, ok := want[key]
			if !ok {
				wanted = "passed"
			}
			if name == "dns" && !blocks {
				wanted = "unchecked"
			}
			if is := strings.TrimSpace(found[key].Result + " " + found[key].Code); is != wanted {
				t.Errorf("%s: %s, want %s: %s", key, is, wanted, found[key].Detail)
			}
		}
	}
	for _, c := range []string{"c1", "c2"} {
		if found[c+" cleanup"].Result != "passed" {
			t.Errorf("%+v", found[c+" cleanup"])
		}
	}
}

// testTraffic checks that semaphorectl check --traffic finds two linked clusters well, and names the cause when one
// thing is broken.
func (b *documentsBed) testTraffic(ctx context.Context, t *testing.T) {
	c1, c2 := b.c1, b.c2
	corefile := testkit.Value(c1.Kubectl(ctx, nil, "-n", "kube-system", "get", "configmap", "coredns", "-o", "yaml"))(t)
	blocks := strings.Contains(corefile, "cluster.c2")
	verify := b.printed(t, "semaphorectl check --traffic ")
	t.Run("well", func(t *testing.T) {
		found := b.verifies(ctx, t, 0)
		expect(t, found, blocks, nil)
		if c := found["c1 c2 dns"]; !blocks && !strings.Contains(c.Detail, "no block for cluster.c2") {
			t.Errorf("%+v", c)
		}
		out := testkit.Value(b.commands(ctx, verify+" --bench --timeout 3m", 0))(t)
		t.Log(out)
		for _, path := range []string{"c1 c1", "c1 c2", "c2 c1", "c2 c2"} {
			for _, name := range []string{"bandwidth", "latency", "requests"} {
				want := regexp.MustCompile("(?m)^" + strings.ReplaceAll(path+" "+name+" passed ", " ", " +") + ".*n[12] to n[12]")
				if !want.MatchString(out) {
					t.Errorf("no line %s", want)
				}
			}
		}
		b.nothingOfVerify(ctx, t)
	})
	t.Run("interrupted", func(t *testing.T) {
		// Interrupt it while pods send what they can. With job control, the job receives SIGINT.
		out := testkit.Value(b.commands(ctx, "set -m; "+verify+" --bench > interrupted 2>&1 & "+
			"until grep -q 'measuring for' interrupted; do kill -0 $!; sleep 0.1; done; sleep 1; kill -INT $!; code=0; "+
			"wait $! || code=$?; cat interrupted; exit $code", 1))(t)
		if !strings.Contains(out, "interrupted; what the check made is removed") {
			t.Error(out)
		}
		b.nothingOfVerify(ctx, t)
	})
	t.Run("image that is nowhere", func(t *testing.T) {
		out := testkit.Value(b.commands(ctx, verify+" --image nowhere.invalid/x:1 --timeout 3s", 1))(t)
		if !strings.Contains(out, "pod client: ") || !strings.Contains(out, "what the check made is removed") {
			t.Error(out)
		}
		b.nothingOfVerify(ctx, t)
	})
	// Break one thing in each direction at once: a failing check uses all of the time.
	t.Run("policy that blocks, and mirror that export rules withhold", func(t *testing.T) {
		policy := `{apiVersion: crd.projectcalico.org/v1, kind: GlobalNetworkPolicy, metadata: {name: default.blocks}, ` +
			`spec: {order: 10, ` +
			`selector: "semaphore.uw.io/verify == 'server'", types: [Ingress], ingress: [{action: Deny, source: {nets: ["` +
			c1.PodCIDR.String() + `"]}}, {action: Allow}]}}`
		must(t, c2.ApplyYAML(ctx, policy))
		testkit.Value(c1.Kubectl(ctx, nil, "patch", "remotecluster", "c2", "--type=merge", "-p",
			`{"spec":{"export":{"rules":[{"action":"Withhold","kinds":["services"]}]}}}`))(t)
		must(t, until(ctx, settle, func() error {
			left, err := b.ofRemote(ctx, c2, "c1")
			if err == nil && strings.Contains(left, "c1-shop-73736d-echo") {
				err = errors.New("c2 has the mirror of c1's echo still")
			}
			return err
		}))
		expect(t, b.verifies(ctx, t, 2), blocks, map[string]string{
			"c1 c2 pod-ip": "failed PodUnreachable", "c1 c2 dns": "unchecked", "c1 c2 encryption": "unchecked",
			"c1 c2 path-mtu": "unchecked",
			"c1 c2 mirror":   "unchecked", "c1 c2 global": "unchecked", "c1 c2 policy": "unchecked",
			"c2 c1 mirror": "failed MirrorMissing", "c2 c1 dns": "unchecked", "c2 c1 global": "failed MirrorMissing",
		})
		testkit.Value(c2.Kubectl(ctx, nil, "delete", "globalnetworkpolicies.crd.projectcalico.org", "default.blocks"))(t)
		testkit.Value(c1.Kubectl(ctx, nil, "patch", "remotecluster", "c2", "--type=json", "-p",
			`[{"op":"remove","path":"/spec/export"}]`))(t)
	})
	t.Run("no agent", func(t *testing.T) {
		patch := func(selector string) {
			testkit.Value(c1.Kubectl(ctx, nil, "-n", Namespace, "patch", "daemonset", "semaphore-agent", "--type=merge", "-p",
				fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":%s}}}}}`, selector)))(t)
		}
		patch(`"x"`)
		must(t, until(ctx, settle, func() error {
			agents, err := pods(ctx, c1, Namespace, "app.kubernetes.io/component=agent")
			if err == nil && len(agents) > 0 {
				err = fmt.Errorf("%d agents run", len(agents))
			}
			return err
		}))
		want := map[string]string{}
		for _, way := range []string{"c1 c2 ", "c2 c1 "} {
			for _, name := range directed {
				want[way+name] = "unchecked"
			}
			want[way+"pod-ip"] = "failed PodUnreachable"
		}
		expect(t, b.verifies(ctx, t, 2), blocks, want)
		patch("null")
	})
	b.shell(ctx, t, "kubectl --context c1 -n semaphore rollout status daemonset/semaphore-agent --timeout=3m")
	b.wellSoon(ctx, t)
}
