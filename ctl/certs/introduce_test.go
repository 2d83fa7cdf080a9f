package certs

import (
	"context"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestNobodyNamesItself: a cluster that says that it is another one gets neither its roots nor its RemoteCluster
// replaced, by link or by pki exchange, also if it gives the roots of that other one beside its own. Subnets that a
// cluster claims for itself are not written without the operator's word. A cause that prevents a write is found before
// the first.
func TestNobodyNamesItself(t *testing.T) {
	_, admins, remotes, ctl := ctltest.Linkable(t)
	for context, name := range map[string]string{"c1": "c1", "c2": "c3"} {
		ctl(0, "pki init --context "+context+" --cluster "+name)
		ctltest.Patch(t, admins[context].CoreV1().Services("semaphore"), "semaphore-broker-federation",
			`{"spec":{"type":"NodePort"}}`)
	}
	bundles := func(cluster string) map[string]string {
		t.Helper()
		found := kubetest.Get(t, admins[cluster].CoreV1().ConfigMaps("semaphore"), "semaphore-bundles")
		return found.Data
	}
	remote := func() *unstructured.Unstructured {
		t.Helper()
		found := kubetest.GetObject(t, remotes["c1"], "c3")
		return found
	}

	out := ctl(0, "link --context c1 --context c2")
	if !strings.Contains(out, "c1 gets of c2, which says that it is c3:\n") ||
		!strings.Contains(out, "pods    10.2.0.0/16\n") || !strings.Contains(out, "nodes   172.18.2.0/24\n") {
		t.Errorf("without --yes: %s", out)
	}
	if len(bundles("c1")) != 1 {
		t.Errorf("without --yes c1 trusts %v", bundles("c1"))
	}
	ctl(0, "link --context c1 --context c2 --yes")
	ctl(0, "link --context c1 --context c2") // nothing is new, and it asks nothing
	ctl(0, "pki exchange --context c1 --context c2")
	was, trusted := remote(), bundles("c1")

	// The cluster of context c2 is now another one that says that it is c3, with the roots of the real one beside its own.
	there := admins["c2"].CoreV1()
	must(t, there.Secrets("semaphore").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, there.ConfigMaps("semaphore").Delete(t.Context(), "semaphore-bundles", metav1.DeleteOptions{}))
	ctl(0, "pki init --context c2 --cluster c3")
	both := bundles("c2")["c3.pem"] + trusted["c3.pem"]
	ctltest.Patch(t, there.ConfigMaps("semaphore"), "semaphore-bundles", `{"data":{"c3.pem":`+strconv.Quote(both)+`}}`)
	unchanged := func(what string) {
		t.Helper()
		if remote().GetResourceVersion() != was.GetResourceVersion() || bundles("c1")["c3.pem"] != trusted["c3.pem"] {
			t.Errorf("%s: c1 has now %v and trusts %v", what, remote().Object["spec"], bundles("c1"))
		}
	}
	for _, verb := range []string{"link --context c1 --context c2 --yes", "pki exchange --context c1 --context c2 --yes",
		"link --context c1,c2 --dry-run -o yaml"} {
		if out := ctl(2, verb); !strings.Contains(out, "NotTheSameCluster  c1: remote c3") &&
			!strings.HasSuffix(verb, "yaml") {
			t.Errorf("%s says %s", verb, out)
		}
		unchanged(verb)
	}
	if out := ctl(2, "unlink --context c1 --context c2"); !strings.Contains(out, "NotTheSameCluster") {
		t.Errorf("unlink says %s", out)
	}
	unchanged("unlink")
	// The same where only roots are known by that name.
	must(t, remotes["c1"].Delete(t.Context(), "c3", metav1.DeleteOptions{}))
	if out := ctl(2, "link --context c1 --context c2 --yes"); !strings.Contains(out, "NotTheSameCluster") ||
		bundles("c1")["c3.pem"] != trusted["c3.pem"] {
		t.Errorf("a name of which c1 has the roots alone: %s", out)
	}
	ctl(0, "link --context c1 --context c2 --yes --replace c3,c1")
	if bundles("c1")["c3.pem"] == trusted["c3.pem"] || len(bundles("c2")) != 2 {
		t.Error("with --replace the operator's word did not count")
	}
	// The broker refuses another cluster of the name, unless its UID is in the spec. Here nothing stood for c3 any more.
	system := kubetest.Get(t, there.Namespaces(), "kube-system")
	for _, flags := range []string{" --replace c3", ""} { // the word stays
		ctl(0, "link --context c1 --context c2 --yes"+flags)
		if id, _, _ := unstructured.NestedString(remote().Object, "spec", "sourceID"); id != string(system.UID) {
			t.Errorf("with%q spec.sourceID is %q, not %q", flags, id, system.UID)
		}
	}

	// A conflict with another field manager is found before the first write.
	must(t, remotes["c1"].Delete(t.Context(), "c3", metav1.DeleteOptions{}))
	yes := true
	_, err := remotes["c1"].Patch(t.Context(), "c3", types.ApplyPatchType,
		[]byte(`{"apiVersion":"semaphore.uw.io/v1alpha1",
		"kind":"RemoteCluster","metadata":{"name":"c3"},"spec":{"podSubnets":["10.2.0.0/16"],
		"broker":{"address":"b3.example.org:8443"}}}`), metav1.PatchOptions{FieldManager: "gitops", Force: &yes})
	must(t, err)
	must(t, there.ConfigMaps("semaphore").Delete(t.Context(), "semaphore-bundles", metav1.DeleteOptions{}))
	ctl(0, "pki init --context c2 --cluster c3")
	was, trusted = remote(), bundles("c1")
	ctl(1, "link --context c1 --context c2 --yes")
	unchanged("a conflict")
	if _, ok := bundles("c2")["c1.pem"]; ok {
		t.Error("after a conflict in c1, c2 got the roots of c1")
	}

	// Its claim is public, wide, or another's.
	must(t, remotes["c1"].Delete(t.Context(), "c3", metav1.DeleteOptions{}))
	kubetest.CreateObject(t, remotes["c1"], &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "semaphore.uw.io/v1alpha1", "kind": "RemoteCluster", "metadata": map[string]any{"name": "c4"},
		"spec": map[string]any{"podSubnets": []any{"192.168.0.0/17"}, "nodeSubnets": []any{"172.18.4.0/24"}},
	}})
	for i, pods := range []string{"34.0.0.0/8", "192.168.0.0/16", "100.64.0.0/10"} {
		node := kubetest.Create(t, there.Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "claims-" + strconv.Itoa(i)}, Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}}})
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "140.82.112." +
			strconv.Itoa(i)}}
		kubetest.UpdateStatus(t, there.Nodes(), node)
	}
	out = ctl(2, "link --context c1 --context c2 --yes")
	for _, want := range []string{"34.0.0.0/8 of the pods is outside of the private networks",
		"100.64.0.0/10 of the pods is wider than a /12", "192.168.0.0/16 overlaps 192.168.0.0/17, a subnet of c4",
		"140.82.112.0/24 of the nodes is outside of the private networks"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := remotes["c1"].Get(t.Context(), "c3", metav1.GetOptions{}); err == nil {
		t.Error("what it claims was written")
	}
	ctl(0, "link --context c1 --context c2 --yes --pod-subnets c2=10.2.0.0/16+34.1.0.0/16 --node-subnets c2=172.18.2.0/24")
	spec := remote().Object["spec"].(map[string]any)
	pods, _, _ := unstructured.NestedStringSlice(spec, "podSubnets")
	if strings.Join(pods, " ") != "10.2.0.0/16 34.1.0.0/16" {
		t.Errorf("pods %v", pods)
	}
	// The written bounds stay, and the cluster's next claim does not widen them.
	was, trusted = remote(), bundles("c1")
	if out := ctl(2, "link --context c1 --context c2 --yes"); !strings.Contains(out, "34.0.0.0/8 too, outside of") {
		t.Errorf("the second time: %s", out)
	}
	unchanged("the second time")
}

// TestConfirm: a remote that another operator writes, while the first one thinks about a proposal of the same name, is
// not overwritten.
func TestConfirm(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, cfg)
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "semaphore")
	hub := testkit.Value(fleet.NewCluster("hub", "semaphore", cfg))(t)
	pods := preflight.Subnets{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}}
	proposed := []*Introduction{{Here: &OwnIdentity{Store: Of(apply.New(hub, io.Discard))}, There: "eu",
		Name: "prod", Bundle: []byte("roots"), Facts: &preflight.Cluster{Pods: pods}, Addresses: []string{"b.example:8443"}}}
	says, said := &Word{}, &strings.Builder{}
	must(t, says.Propose(t.Context(), said, proposed))
	must(t, says.Confirm(t.Context(), said, proposed))
	kubetest.CreateRemote(t, cfg, "prod", "{podSubnets: [10.2.0.0/16]}")
	err := says.Confirm(t.Context(), said, proposed)
	if err == nil || !strings.Contains(err.Error(), "hub: remote prod has changed since it was read") {
		t.Errorf("%v\n%s", err, said)
	}
}

// TestAsk: the operator is asked at a terminal, and only y or yes is a yes. Without a terminal nobody can be asked.
func TestAsk(t *testing.T) {
	proposed := []*Introduction{{Name: "c2"}}
	for typed, want := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "n\n": false, "yess\n": false} {
		keyboard, terminal := pseudoTerminal(t)
		testkit.Value(keyboard.WriteString(typed))(t)
		said := &strings.Builder{}
		err := (&Word{In: terminal}).Ask(t.Context(), said, proposed)
		if (err == nil) != want || said.String() != "Write this? [y/N] " {
			t.Errorf("typed %q: %v, after %q", typed, err, said)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, terminal := pseudoTerminal(t)
	if err := (&Word{In: terminal}).Ask(ctx, &strings.Builder{}, proposed); err == nil {
		t.Error("an interrupt at the question is a yes")
	}
	none := testkit.Value(os.Open(os.DevNull))(t)
	defer none.Close()
	if (&Word{In: none}).Ask(t.Context(), &strings.Builder{}, proposed) == nil {
		t.Error("no terminal is a yes")
	}
	must(t, (&Word{In: none, yes: true}).Ask(t.Context(), &strings.Builder{}, proposed))
	must(t, (&Word{In: none}).Ask(t.Context(), &strings.Builder{}, nil)) // nothing is new
}

func pseudoTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard = testkit.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { keyboard.Close() })
	must(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n := testkit.Value(unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN))(t)
	terminal = testkit.Value(os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	return keyboard, terminal
}
