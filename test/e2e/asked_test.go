package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// value runs a command and returns its output, which must not be empty.
func (b *explainBed) value(ctx context.Context, t *testing.T, text string) string {
	t.Helper()
	out := testkit.Value(b.commands(ctx, text, 0))(t)
	if out = strings.TrimSpace(out); out == "" {
		t.Fatalf("no output of %s", text)
	}
	return out
}

const (
	echoPod = "kubectl --context %s -n shop get pods -l app=echo -o jsonpath='{.items[0].metadata.name}'"
	podIP   = "kubectl --context %s -n shop get pod %s -o jsonpath='{.status.podIP}'"
	mirrorC = "kubectl --context c1 -n semaphore get service c2-shop-73736d-echo -o jsonpath='{.spec.clusterIP}'"
)

// forms asks about both ends in each form that explain takes, from either cluster. Requests are answered on each path,
// and explain finds the right pods and says so. It finds that a policy denies another port.
func (b *explainBed) forms(ctx context.Context, t *testing.T) {
	echo1, echo2 := b.value(ctx, t, fmt.Sprintf(echoPod, "c1")), b.value(ctx, t, fmt.Sprintf(echoPod, "c2"))
	ip1, ip2 := b.value(ctx, t, fmt.Sprintf(podIP, "c1", echo1)), b.value(ctx, t, fmt.Sprintf(podIP, "c2", echo2))
	client := b.value(ctx, t, fmt.Sprintf(podIP, "c1", explainedClient))
	mirror := b.value(ctx, t, mirrorC)
	b.shell(ctx, t, fmt.Sprintf(labelled, "c1", "service echo mirror.semaphore.uw.io/mirror-service=true"))
	for from, addresses := range map[string][]string{"c1": {ip2, mirror}, "c2": {ip1, "echo.shop.svc.cluster.c1"}} {
		for _, address := range addresses {
			must(t, until(ctx, settle, func() error {
				_, err := b.tb.Cluster(from).ExecPod(ctx, "shop", explainedClient, "curl", "-sS", "--fail", "--max-time", "3",
					"-o", "/dev/null", "http://"+address+":8080/")
				return err
			}))
		}
	}
	pod := []finding.Code{finding.PathRoute, finding.PathDevice, finding.PathPeer, finding.PathHandshake, finding.PathMTU,
		finding.PathFarNode, finding.PathPool, finding.PathPolicyOut, finding.PathPolicyIn}
	service := append([]finding.Code{finding.PathName, finding.PathMirror, finding.PathSlices, finding.PathKubeProxy},
		pod...)
	web1, web2 := "c1/shop/web-7d9f ("+client+")", "c2/shop/web-7d9f ("
	at1, at2 := "c1/shop/"+echo1+" ("+ip1+")", "c2/shop/"+echo2+" ("+ip2+")"
	for _, c := range []struct {
		args, from, to string
		links          []finding.Code
	}{
		{"c1/shop/web-7d9f c2/shop/" + echo2 + ":8080", web1, at2, pod},
		{"shop/web-7d9f c2/shop/echo:8080", web1, at2, service},
		{"c1/shop/web-7d9f " + ip2 + " --port 8080", web1, at2, pod},
		{client + " " + ip2 + ":8080", web1, at2, pod},
		{client + " " + mirror + ":8080", web1, at2, service},
		{"c2/shop/web-7d9f c1/shop/" + echo1, web2, at1, pod},
		{"c2/shop/web-7d9f echo.shop.svc.cluster.c1:8080", web2, at1, service},
		{"c2/shop/web-7d9f " + ip1 + ":8080", web2, at1, pod},
		{"c2/shop/echo " + client, at2, web1, pod},
	} {
		must(t, until(ctx, settle, func() error {
			e, err := b.ask(ctx, "--context c1 --context c2 "+c.args)
			if err != nil {
				return err
			}
			ok := e.with("ok")
			if missing := slices.DeleteFunc(slices.Clone(c.links), func(code finding.Code) bool {
				return slices.Contains(ok, string(code))
			}); !e.Reaches || len(e.with("unknown")) > 0 || len(missing) > 0 {
				err := fmt.Errorf("explain %s: %s, not ok: %v\n%+v", c.args, e.Verdict, missing, e.Links)
				if !e.unanswered() {
					t.Fatal(err)
				}
				return err
			}
			if !strings.HasPrefix(e.From, c.from) || !strings.HasSuffix(e.To, c.to) {
				t.Fatalf("explain %s is of %s to %s; want %s to %s", c.args, e.From, e.To, c.from, c.to)
			}
			return nil
		}))
	}
	for _, args := range []string{ip2 + ":8081", ip2 + " --port 8081", "c2/shop/" + echo2 + ":8081"} {
		must(t, until(ctx, settle, func() error {
			e, err := b.ask(ctx, "--context c1 --context c2 c1/shop/web-7d9f "+args)
			if err == nil && e.unanswered() {
				err = fmt.Errorf("explain %s: %s\n%+v", args, e.Verdict, e.Links)
			}
			if err == nil && !slices.Equal(e.with("broken"), []string{string(finding.PathPolicyIn)}) {
				t.Fatalf("the policy allows port 8080 only; explain %s: %s\n%+v", args, e.Verdict, e.Links)
			}
			return err
		}))
	}
}

// awayConfig copies the kubeconfig to a file in which nothing answers at the apiserver of a cluster.
func (b *explainBed) awayConfig(ctx context.Context, t *testing.T, cluster string) (file string) {
	t.Helper()
	file = "without-" + cluster + ".yaml"
	b.shell(ctx, t, fmt.Sprintf(`kubectl config view --raw > %[1]s
name=$(kubectl config view --kubeconfig %[1]s -o jsonpath='{.contexts[?(@.name=="%[2]s")].context.cluster}')
kubectl config set-cluster "$name" --kubeconfig %[1]s --server https://%[3]s:1`, file, cluster,
		b.tb.Cluster(cluster).Nodes[0].IP))
	return file
}

// oneAway asks while the apiserver of one cluster does not answer, or without its context. explain says what it could
// not look at, and finds a broken link in the cluster that it reaches all the same.
func (b *explainBed) oneAway(ctx context.Context, t *testing.T) {
	without1, without2 := b.awayConfig(ctx, t, "c1"), b.awayConfig(ctx, t, "c2")
	target := b.value(ctx, t, fmt.Sprintf(podIP, "c2", b.value(ctx, t, fmt.Sprintf(echoPod, "c2"))))
	far := []string{string(finding.PathFarNode), string(finding.PathSet), string(finding.PathPolicyIn)}
	asked := []struct{ args, says string }{
		{"--context c1 c1/shop/web-7d9f echo.shop.svc.cluster.c2:8080", "no --context is of c2"},
		{"--context c1 c1/shop/web-7d9f " + target + ":8080", "no --context is of c2"},
		{"--kubeconfig " + without2 + " --context c1 --context c2 c1/shop/web-7d9f echo.shop.svc.cluster.c2:8080",
			"context c2: "},
		{"--kubeconfig " + without2 + " --context c1 --context c2 c1/shop/web-7d9f c2/shop/echo:8080", "context c2: "},
		{"--kubeconfig " + without2 + " --context c1 --context c2 c1/shop/web-7d9f " + target, "context c2: "},
	}
	all := func(broken ...string) {
		t.Helper()
		for _, c := range asked {
			must(t, until(ctx, settle, func() error {
				e, err := b.ask(ctx, c.args)
				if err != nil {
					return err
				}
				unknown := e.with("unknown")
				for _, code := range far {
					if !slices.Contains(unknown, code) {
						return fmt.Errorf("explain %s: %s is not unknown\n%+v", c.args, code, e.Links)
					}
				}
				if says := strings.Join(e.NotRead, "\n"); !strings.Contains(says, c.says) {
					return fmt.Errorf("explain %s: not looked at is\n%s\nwant %s", c.args, says, c.says)
				}
				if got := e.with("broken"); !slices.Equal(got, broken) {
					return fmt.Errorf("explain %s: broken is %v, want %v: %s", c.args, got, broken, e.Verdict)
				}
				if strings.HasPrefix(e.Verdict, "not known: ") != (broken == nil) {
					return fmt.Errorf("explain %s: %s", c.args, e.Verdict)
				}
				return nil
			}))
		}
	}
	all()
	onNode("c1", "ip", "rule", "add", "pref", "10", "to", "10.2.0.0/16", "unreachable")(ctx, t, b)
	all(string(finding.PathRoute))
	onNode("c1", "ip", "rule", "del", "pref", "10")(ctx, t, b)
	b.reaches(ctx, t, "echo")
	// The sender's cluster is away: nothing can be said, and it says why.
	out := testkit.Value(b.commands(ctx, "semaphorectl explain --kubeconfig "+without1+
		" --context c1 --context c2 c1/shop/web-7d9f echo.shop.svc.cluster.c2:8080 2>&1", 1))(t)
	if !strings.Contains(out, "no such pod in c2; not asked: context c1: ") {
		t.Errorf("without the sender's cluster it says: %s", out)
	}
}

// traced is the output of semaphorectl trace -o json.
type traced struct {
	Places []struct{ Hop, Part, At, Cluster, Object, State, Detail string }
	Hops   []struct {
		Part, Cluster, Action string
		After                 *float64 `json:"after_seconds"`
	}
}

// traces asks where objects are: a Service, a pod of a set, and a node with its peer in the kernel. Each hop is there
// and done.
func (b *explainBed) traces(ctx context.Context, t *testing.T) {
	node1, node2 := b.c1.Nodes[0].Name, b.c2.Nodes[0].Name
	kernel := "kernel of c1/" + node1
	for _, c := range []struct {
		object string
		hops   []string
	}{
		{"service/shop/echo", []string{"source of c2", "export of c2", "stream of c2", "accept of c1", "plan of c1",
			"write of c1"}},
		{"setmember/shop/web-7d9f", []string{"source of c1", "export of c1", "stream of c1", "accept of c2", "plan of c2",
			"write of c2"}},
		{"node/" + node2, []string{"source of c2", "export of c2", "stream of c2", "accept of c1", "plan of c1",
			"agents of c1",
			kernel}},
	} {
		must(t, until(ctx, settle, func() error {
			args := c.object
			if slices.Contains(c.hops, kernel) {
				args += " --agent " + node1
			}
			out, err := b.commands(ctx, "semaphorectl trace --context c1 --context c2 -o json "+args+" 2>/dev/null", 0)
			if err != nil {
				return err
			}
			var found traced
			if err := json.Unmarshal([]byte(out), &found); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			done := map[string]string{}
			for _, p := range found.Places {
				done[p.Hop+" of "+p.At] = p.State
			}
			for _, hop := range c.hops {
				if done[hop] != "done" {
					return fmt.Errorf("%s: %s is %q; the places are %+v", c.object, hop, done[hop], found.Places)
				}
			}
			return nil
		}))
	}
}

// watchLine is a line of trace --watch: the time of the hop, the time, and the part.
var watchLine = regexp.MustCompile(`(?m)^ *([+-][0-9.µmsh]+)  \S+  (\w+/c\d)\s`)

// watches follows one change of a Service through the parts of both clusters while it happens.
func (b *explainBed) watches(ctx context.Context, t *testing.T) {
	watching, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := b.commands(watching,
			"exec semaphorectl trace --watch --context c1 --context c2 service/shop/echo > watch.txt", 0)
		ended <- err
	}()
	defer func() {
		stop()
		<-ended // killed
	}()
	port := 9000
	must(t, until(ctx, settle, func() error {
		// A change before it watches is not seen: the next one is.
		port++
		b.shell(ctx, t, fmt.Sprintf(`kubectl --context c2 -n shop patch service echo --type=json -p '[{"op": "replace",
			"path": "/spec/ports/1", "value": {"name": "other", "port": %d}}]' ||
			kubectl --context c2 -n shop patch service echo --type=json -p '[{"op": "add",
			"path": "/spec/ports/-", "value": {"name": "other", "port": %[1]d}}]'`, port))
		time.Sleep(2 * time.Second)
		text, err := os.ReadFile(filepath.Join(b.dir, "watch.txt"))
		if err != nil {
			return err
		}
		for _, change := range strings.Split(string(text), "change seen in c2 at ")[1:] {
			var parts []string
			for _, m := range watchLine.FindAllStringSubmatch(change, -1) {
				if took, err := time.ParseDuration(m[1]); err != nil || took < -time.Second || took > 30*time.Second {
					return fmt.Errorf("the time of a hop is %q:\n%s", m[1], text)
				}
				parts = append(parts, m[2])
			}
			exporter, broker := slices.Index(parts, "exporter/c2"), slices.Index(parts, "broker/c1")
			if exporter == 0 && broker > 0 && strings.Contains(change, "service c2-shop-73736d-echo") {
				t.Logf("change seen in c2 at %s", change)
				return nil
			}
		}
		return fmt.Errorf("no change passes from exporter/c2 to broker/c1:\n%s", text)
	}))
	b.shell(ctx, t, `kubectl --context c2 -n shop patch service echo --type=json -p '[{"op": "remove", "path": `+
		`"/spec/ports/1"}]'`)
}

// bundles makes an archive of both clusters. It has the state of all sides, and neither a value of a Secret nor
// anything like a key.
func (b *explainBed) bundles(ctx context.Context, t *testing.T) {
	node := b.c1.Nodes[0].Name
	all := b.unpacked(ctx, t, "plain", "--agent "+node)
	for _, c := range []string{"c1", "c2"} {
		for _, file := range []string{"status/broker.json", "status/exporter.json", "status/agent-" + node + ".json",
			"sets.json", "objects/corefiles.json", "objects/ippools.json", "objects/blockaffinities.json"} {
			if all[c+"/"+file] == "" {
				t.Errorf("the archive lacks %s/%s", c, file)
			}
		}
	}
	if !strings.Contains(all["c2/objects/calico-networkpolicies.json"], "web-of-c1") ||
		!strings.Contains(all["c2/objects/networksets.json"], "c1") ||
		!strings.Contains(all["c1/objects/endpointslices.json"], "c2-shop-73736d-echo") {
		t.Error("the archive lacks a policy of c2, a set of c2 or a slice of a mirror of c1")
	}
	b.noSecrets(ctx, t, all)
	hidden := b.unpacked(ctx, t, "hidden", "--hash-names")
	for name, text := range hidden {
		if found := regexp.MustCompile(`\b(web-7d9f|web-of-c1|` + regexp.QuoteMeta(node) + `)\b`).
			FindString(name + "\n" + text); found != "" {
			t.Errorf("with --hash-names %s has the name %s", name, found)
		}
	}
}

// unpacked makes an archive and returns its files.
func (b *explainBed) unpacked(ctx context.Context, t *testing.T, name, args string) map[string]string {
	t.Helper()
	b.shell(ctx, t, fmt.Sprintf(`semaphorectl bundle --context c1 --context c2 %[1]s.tar.gz %[2]s ||
		{ tar -xzOf %[1]s.tar.gz semaphore-bundle/errors.txt; exit 1; }
		mkdir %[1]s; tar -xzf %[1]s.tar.gz -C %[1]s --strip-components=1`, name, args))
	all, root := map[string]string{}, filepath.Join(b.dir, name)
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, root+"/")] = string(data)
		return err
	}))
	return all
}

// noSecrets checks that an archive has no value of a Secret of the parts, but for certificates, which are public.
func (b *explainBed) noSecrets(ctx context.Context, t *testing.T, all map[string]string) {
	t.Helper()
	var secrets []string
	for _, c := range []string{"c1", "c2"} {
		var list struct {
			Items []struct{ Data map[string]string }
		}
		must(t, json.Unmarshal([]byte(b.value(ctx, t, "kubectl --context "+c+" -n semaphore get secrets -o json")), &list))
		for _, item := range list.Items {
			for _, encoded := range item.Data {
				value := testkit.Value(base64.StdEncoding.DecodeString(encoded))(t)
				if strings.Contains(string(value), "PRIVATE KEY") {
					secrets = append(secrets, encoded[40:100], strings.Split(string(value), "\n")[1])
				}
			}
		}
	}
	if len(secrets) == 0 {
		t.Fatal("the clusters have no Secret with a private key: the test proves nothing")
	}
	for name, text := range all {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s has a value of a Secret", name)
			}
		}
		if found := regexp.MustCompile(`PRIVATE KEY|[A-Za-z0-9+/]{43}=`).FindString(text); found != "" {
			t.Errorf("%s has what looks like a key: %s", name, found)
		}
	}
}
