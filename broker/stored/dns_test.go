package stored

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// The tests run in a network namespace of their own, so that no port is anybody else's.
const before = `.:53 {
    errors
    kubernetes cluster.c1 in-addr.arpa ip6.arpa {
        pods insecure
    }
    forward . /etc/resolv.conf
    reload
}
`

const after = `
cluster.c9:53 {
    whoami
}
`

// shipped returns the nth document of a manifest of the component.
func shipped[T any](t *testing.T, file string, n int) *T {
	t.Helper()
	manifest := testkit.Value(os.ReadFile("../../deploy/features/dns/" + file))(t)
	into := new(T)
	testkit.Must(t, yaml.UnmarshalStrict([]byte(strings.Split(string(manifest), "\n---\n")[n]), into))
	return into
}

// grant gives an account the rights of the component, and confines it, as the manifests do. It adds rights that the
// policy must not depend on. It returns the configuration for a client of the account.
func grant(t *testing.T, cfg *rest.Config) *rest.Config {
	t.Helper()
	admin := kubernetes.NewForConfigOrDie(cfg)
	// Those of the component, and what every broker with the feature services has.
	limited := kubetest.Grant(t, cfg, "semaphore-broker", "../../deploy/features/dns/rbac.yaml",
		"../../deploy/features/services/broker/rbac.yaml")
	kubetest.Allow(t, admin, limited.Impersonate.UserName, rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"configmaps"}, Verbs: []string{"create", "delete"}})
	registration := admin.AdmissionregistrationV1()
	kubetest.Create(t, registration.ValidatingAdmissionPolicies(),
		shipped[admissionv1.ValidatingAdmissionPolicy](t, "writes.yaml", 0))
	kubetest.Create(t, registration.ValidatingAdmissionPolicyBindings(),
		shipped[admissionv1.ValidatingAdmissionPolicyBinding](t, "writes.yaml", 1))
	return limited
}

// section returns the blocks of semaphore for remotes, in a cluster with the domain cluster.c1.
func section(remotes ...string) string {
	var all []coredns.Remote
	for _, r := range remotes {
		all = append(all, coredns.Remote{Cluster: r})
	}
	text, _ := coredns.Text(coredns.Of(all, "semaphore", "cluster.c1", false), false)
	return text
}

func remotes(names ...string) (all []config.Remote) {
	for _, n := range names {
		all = append(all, config.Remote{Name: n})
	}
	return all
}

// TestKeeper: with the rights that the component ships, the broker keeps the blocks that semaphorectl put into
// CoreDNS's configuration current, adds none where there are none, and changes nothing else. The policy of the
// component refuses every other change, on an apiserver.
func TestKeeper(t *testing.T) {
	cfg := kubetest.Start(t)
	admin, ctx := kubernetes.NewForConfigOrDie(cfg), t.Context()
	limited := grant(t, cfg)
	client := kubernetes.NewForConfigOrDie(limited)
	files := admin.CoreV1().ConfigMaps("kube-system")
	create := func(name string, data map[string]string) {
		t.Helper()
		kubetest.Create(t, files, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: map[string]string{"mine": "stays"}}, Data: data})
	}
	text := func(name, key string) string {
		t.Helper()
		return kubetest.Get(t, files, name).Data[key]
	}
	replace := func(corefile string) {
		t.Helper()
		m := kubetest.Get(t, files, "coredns")
		m.Data["Corefile"] = corefile
		kubetest.Update(t, files, m)
	}
	create("coredns", map[string]string{"Corefile": before, "NodeHosts": "172.18.1.7 n1"})
	k := NewDNS(client, &config.Broker{MirrorNamespace: "semaphore", ManageCoreDNS: true,
		Remotes: remotes("c3", "c2")}, slog.Default())
	testkit.Eventually(t, time.Minute, "the rights are in force",
		testkit.State(func() (bool, string) { err := k.keep(ctx); return errors.Is(err, errNotWired), errText(err) }))
	if got := text("coredns", "Corefile"); got != before {
		t.Errorf("a Corefile without blocks became\n%s", got)
	}

	// semaphorectl has wired it, and a user added a block behind it.
	replace(coredns.WithSection(before, section("c2")) + after)
	testkit.Eventually(t, time.Minute, "the policy is in force", testkit.State(func() (bool, string) {
		err := write(ctx, client, "coredns", func(d map[string]string) { d["Corefile"] = "" })
		return err != nil && strings.Contains(err.Error(), "semaphore-dns-writes"), errText(err)
	}))
	testkit.Must(t, k.keep(ctx))
	if got, want := text("coredns", "Corefile"), before+"\n"+strings.TrimPrefix(
		coredns.WithSection("", section("c2", "c3")), "\n")+after; got != want {
		t.Errorf("with c3 the Corefile is\n%s\nwant\n%s", got, want)
	}
	attack(t, client)

	// Remotes come and go. CoreDNS would load no configuration with two blocks for c9. Somebody else changes the ConfigMap
	// at the same moment.
	var once sync.Once
	limited.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut {
				once.Do(func() {
					_, err := files.Patch(ctx, "coredns", types.MergePatchType,
						[]byte(`{"metadata":{"annotations":{"theirs":"too"}}}`),
						metav1.PatchOptions{})
					if err != nil {
						t.Error(err)
					}
				})
			}
			return next.RoundTrip(r)
		})
	})
	var logged bytes.Buffer
	k = NewDNS(kubernetes.NewForConfigOrDie(limited), &config.Broker{MirrorNamespace: "semaphore", ManageCoreDNS: true,
		Remotes: remotes("c2", "c3")}, slog.New(slog.NewTextHandler(&logged, nil)))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- k.Run(running) }()
	k.Follow(remotes("c9", "c3"))
	testkit.Eventually(t, 2*checkInterval, "the blocks follow the remotes", testkit.State(func() (bool, string) {
		got := text("coredns", "Corefile")
		return got == coredns.WithSection(before, section("c3"))+after, got
	}))
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if found := k.Findings(); len(found) > 0 || strings.Contains(logged.String(), "WARN") {
		t.Errorf("findings %v, log\n%s", found, &logged)
	}

	// With a file of its own.
	const imports = before + "import /etc/coredns/custom/*.server\n"
	replace(imports)
	if err := k.keep(ctx); !errors.Is(err, errNotWired) {
		t.Errorf("without the ConfigMap: %v", err)
	}
	create("coredns-custom", map[string]string{"example.server": "cluster.c9 {\n    whoami\n}\n"})
	if err := k.keep(ctx); !errors.Is(err, errNotWired) {
		t.Errorf("without the file: %v", err)
	}
	m := kubetest.Get(t, files, "coredns-custom")
	m.Data["semaphore.server"] = section("c2")
	kubetest.Update(t, files, m)
	testkit.Must(t, k.keep(ctx))
	if got := text("coredns-custom", "semaphore.server"); got != section("c3") {
		t.Errorf("the file is\n%s", got)
	}
	for _, test := range []struct {
		says string
		edit func(map[string]string)
	}{
		{"only semaphore.server", func(d map[string]string) { d["example.server"] = "" }},
		{"only semaphore.server", func(d map[string]string) { d["evil.server"] = section("c2") }},
		{"only semaphore.server", func(d map[string]string) { delete(d, "semaphore.server") }},
		{"and no others", func(d map[string]string) { d["semaphore.server"] = ".:53 {\n    errors\n}\n" }},
		{"a domain that has one", func(d map[string]string) { d["semaphore.server"] = section("c9") }},
	} {
		if err := write(ctx, client, "coredns-custom", test.edit); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("a file: %v, want %q", err, test.says)
		}
	}
	if text("coredns", "Corefile") != imports {
		t.Error("the Corefile was changed")
	}
}

// TestLostBlocks: blocks that semaphorectl added and somebody removed are an error, and restored where the broker may:
// a reset of the Corefile, as by an add-on manager, differs from a CoreDNS that was never wired.
func TestLostBlocks(t *testing.T) {
	cfg := kubetest.Start(t)
	admin, ctx := kubernetes.NewForConfigOrDie(cfg), t.Context()
	client := kubernetes.NewForConfigOrDie(grant(t, cfg))
	files, marks := admin.CoreV1().ConfigMaps("kube-system"), admin.CoreV1().ConfigMaps("semaphore")
	set := func(name string, data map[string]string) {
		t.Helper()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
		if _, err := files.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			kubetest.Create(t, files, m)
		}
	}
	is := func(name, key, want string) {
		t.Helper()
		if got := kubetest.Get(t, files, name).Data[key]; got != want {
			t.Errorf("%s has\n%s\nwant\n%s", name, got, want)
		}
	}
	cfgOf := &config.Broker{MirrorNamespace: "semaphore", Remotes: remotes("c2", "c3")}
	looks := NewDNS(client, cfgOf, slog.Default())
	managing := *cfgOf
	managing.ManageCoreDNS = true
	manages := NewDNS(client, &managing, slog.Default())
	set("coredns", map[string]string{"Corefile": before})
	testkit.Eventually(t, time.Minute, "the rights are in force",
		testkit.State(func() (bool, string) {
			err := manages.keep(ctx)
			return errors.Is(err, errNotWired) && looks.keep(ctx) == nil, errText(err)
		}))
	testkit.Eventually(t, time.Minute, "the policy is in force", testkit.State(func() (bool, string) {
		err := write(ctx, client, "coredns", func(d map[string]string) { d["Corefile"] = "" })
		return err != nil && strings.Contains(err.Error(), "semaphore-dns-writes"), errText(err)
	}))

	kubetest.Create(t, marks, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: naming.ConfigMapDNS}})
	if err := looks.keep(ctx); !errors.Is(err, errLost) {
		t.Errorf("lost: %v", err)
	}
	is("coredns", "Corefile", before)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- looks.Run(running) }()
	testkit.Eventually(t, time.Minute, "the loss is reported", testkit.State(func() (bool, string) {
		found := looks.Findings()
		return len(found) == 1 && found[0].Code == finding.CoreDNSLost && found[0].Code.Level() == finding.Error,
			fmt.Sprint(found)
	}))
	stop()
	<-ended
	for name, edit := range map[string]func(map[string]string){
		"text before": func(d map[string]string) {
			d["Corefile"] = "# x\n" + coredns.WithSection(d["Corefile"], section("c2"))
		},
		"text after": func(d map[string]string) {
			d["Corefile"] = coredns.WithSection(d["Corefile"], section("c2")) + "# x\n"
		},
		"two": func(d map[string]string) {
			d["Corefile"] = coredns.WithSection(d["Corefile"], section("c2")) + coredns.WithSection("", section("c3"))
		},
	} {
		if err := write(ctx, client, "coredns", edit); err == nil || !strings.Contains(err.Error(), "between its marks") {
			t.Errorf("restored with %s: %v", name, err)
		}
	}
	testkit.Must(t, manages.keep(ctx))
	is("coredns", "Corefile", coredns.WithSection(before, section("c2", "c3")))
	testkit.Must(t, looks.keep(ctx))

	// In a file of its own.
	const imports = before + "import /etc/coredns/custom/*.server\n"
	set("coredns", map[string]string{"Corefile": imports})
	for _, k := range []*DNS{looks, manages} {
		if err := k.keep(ctx); !errors.Is(err, errLost) {
			t.Errorf("without the ConfigMap: %v", err)
		}
	}
	set("coredns-custom", nil)
	if err := looks.keep(ctx); !errors.Is(err, errLost) {
		t.Errorf("without the file: %v", err)
	}
	testkit.Must(t, manages.keep(ctx))
	is("coredns-custom", "semaphore.server", section("c2", "c3"))
	testkit.Must(t, looks.keep(ctx))

	// Who deletes the mark ends it.
	testkit.Must(t, marks.Delete(ctx, naming.ConfigMapDNS, metav1.DeleteOptions{}))
	set("coredns", map[string]string{"Corefile": before})
	testkit.Must(t, looks.keep(ctx))
	if err := manages.keep(ctx); !errors.Is(err, errNotWired) {
		t.Errorf("without the mark: %v", err)
	}
	is("coredns", "Corefile", before)
}

// write makes a change as a dry run.
func write(ctx context.Context, client kubernetes.Interface, name string, edit func(map[string]string)) error {
	files := client.CoreV1().ConfigMaps("kube-system")
	m, err := files.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	m.Data = maps.Clone(m.Data)
	edit(m.Data)
	_, err = files.Update(ctx, m, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// attack makes the writes that a stolen token must not be able to make.
func attack(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	c2 := section("c2")
	corefile := func(text string) func(map[string]string) {
		return func(d map[string]string) { d["Corefile"] = coredns.WithSection(d["Corefile"], text) }
	}
	change := func(old, with string) func(map[string]string) {
		return corefile(strings.Replace(c2, old, with, 1))
	}
	for name, test := range map[string]struct {
		says string // empty for a change that is allowed
		edit func(map[string]string)
	}{
		"fewer remotes":    {"", corefile(section())},
		"the same remotes": {"", corefile(c2)},
		"with imports":     {"", corefile(c2 + coredns.Multicluster)},
		"all imported names by rewrite": {"", corefile(func() string {
			text, _ := coredns.Text(coredns.Of(nil, "semaphore", "cluster.c1", true), false)
			return text
		}())},
		"300 remotes": {"", corefile(func() string {
			var names []string
			for i := range 300 {
				names = append(names, "r"+string(rune('a'+i/26))+string(rune('a'+i%26)))
			}
			return section(names...)
		}())},
		"another key":    {"only Corefile", func(d map[string]string) { d["NodeHosts"] = "192.0.2.1 n1" }},
		"one key more":   {"only Corefile", func(d map[string]string) { d["more"] = "" }},
		"one key less":   {"only Corefile", func(d map[string]string) { delete(d, "NodeHosts") }},
		"text before":    {"between its marks", func(d map[string]string) { d["Corefile"] = "# x\n" + d["Corefile"] }},
		"text after":     {"between its marks", func(d map[string]string) { d["Corefile"] += "# x\n" }},
		"no section":     {"between its marks", corefile("")},
		"two sections":   {"between its marks", func(d map[string]string) { d["Corefile"] += coredns.WithSection("", c2) }},
		"two ends":       {"between its marks", corefile(c2 + "# END semaphore\n" + c2)},
		"all names":      {"and no others", change("cluster.c2 {", ". {")},
		"a port":         {"and no others", change("cluster.c2 {", "cluster.c2:53 {")},
		"two domains":    {"and no others", change("cluster.c2 {", "cluster.c2 example.org {")},
		"forward":        {"and no others", change("    errors\n", "    errors\n    forward . 192.0.2.1\n")},
		"import":         {"and no others", change("    errors\n", "    import /etc/passwd\n")},
		"not closed":     {"and no others", corefile(strings.TrimSuffix(c2, "}\n"))},
		"closed twice":   {"and no others", corefile(c2 + "}\n")},
		"empty block":    {"and no others", corefile(c2 + "\n}\n")},
		"a comment":      {"and no others", corefile(c2 + "# x\n")},
		"environment":    {"and no others", change("name regex ^", "name regex ^{$HOME}")},
		"an open brace":  {"and no others", change("name regex ^", "name regex { ^")},
		"twice":          {"a domain that has one", corefile(c2 + c2)},
		"another's":      {"a domain that has one", corefile(section("c9"))},
		"own domain":     {"names of the cluster itself", change("cluster.c2 {", "cluster.c1 {")},
		"usual domain":   {"names of the cluster itself", change("cluster.c2 {", "cluster.local {")},
		"own namespaces": {"names of the cluster itself", change("cluster.c2 {", "cluster.svc.cluster.c1 {")},
		"false domain": {"names of the cluster itself", corefile(strings.NewReplacer("cluster.c2 {", "cluster.c1 {",
			"kubernetes cluster.c1 {", "kubernetes cluster..1 {").Replace(c2))},
	} {
		err := write(t.Context(), client, "coredns", test.edit)
		if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
	// All but the data, and other ConfigMaps of these names, where other roles of the account allow more.
	files := client.CoreV1().ConfigMaps("kube-system")
	for name, edit := range map[string]func(*corev1.ConfigMap){
		"an annotation": func(m *corev1.ConfigMap) { m.Annotations = map[string]string{"mine": "changed"} },
		"a label":       func(m *corev1.ConfigMap) { m.Labels = map[string]string{"k8s-app": "other"} },
		"a finalizer":   func(m *corev1.ConfigMap) { m.Finalizers = []string{"example.org/stays"} },
		"an owner": func(m *corev1.ConfigMap) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		},
		"binary data": func(m *corev1.ConfigMap) { m.BinaryData = map[string][]byte{"more": {0}} },
		"immutable":   func(m *corev1.ConfigMap) { m.Immutable = new(bool); *m.Immutable = true },
	} {
		m := kubetest.Get(t, files, "coredns")
		edit(m)
		if _, err := files.Update(t.Context(), m, metav1.UpdateOptions{}); err == nil ||
			!strings.Contains(err.Error(), "only the data") {
			t.Errorf("%s: %v", name, err)
		}
	}
	dry := []string{metav1.DryRunAll}
	for name, err := range map[string]error{
		"a second one is made": func() error {
			_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name: "coredns"}}, metav1.CreateOptions{DryRun: dry})
			return err
		}(),
		"it is deleted": files.Delete(t.Context(), "coredns", metav1.DeleteOptions{DryRun: dry}),
	} {
		if err == nil || !strings.Contains(err.Error(), "updates the ConfigMaps of CoreDNS in kube-system only") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}
