package link

import (
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// completesObjects checks that the shell completes objects of the clusters of all contexts, kind by kind and namespace
// by namespace, and that a cluster that does not answer costs 2 s at most and no names of others.
func completesObjects(t *testing.T, kubeconfig string, admin kubernetes.Interface) {
	t.Helper()
	complete := func(kubeconfig, verb, contexts, typed string) string {
		t.Helper()
		args := strings.Fields("__complete " + verb + " --kubeconfig " + kubeconfig)
		for _, name := range strings.Fields(contexts) {
			args = append(args, "--context", name)
		}
		out, code, err := ctltest.Run(t, append(args, typed)...)
		if code != 0 {
			t.Errorf("%s: %v", verb, err)
		}
		return strings.Join(strings.Fields(out[:strings.LastIndex(out, ":")]), " ") // the shell's directive comes last
	}
	namespaces := "default/ kube-node-lease/ kube-public/ kube-system/ semaphore/"
	const federation = "semaphore/semaphore-broker-federation"
	for _, test := range []struct{ verb, contexts, typed, want string }{
		{"unlink", "c1", "", "c2"},
		{"unlink", "c1 c2", "", "c1 c2"},
		{"unlink", "", "", "c2"},
		{"unlink", "c1", "c2 ", ""},
		{"trace", "c1 c2", "", "endpointslice/ node/ service/ setmember/"},
		{"trace --history", "c1 c2", "node/", "node/n1"},
		{"trace --watch", "c1 c2", "service/", "service/" + strings.ReplaceAll(namespaces, " ", " service/")},
		{"trace --watch", "c1 c2", "service/semaphore/", "service/" + federation},
		{"trace", "c1 c2", "pod/", ""},
		{"explain", "c1 c2", "", namespaces},
		{"explain", "c1 c2", "semaphore/", federation},
		{"explain semaphore/client", "c1 c2", "semaphore/", federation},
		{"explain", "nowhere", "", ""},
	} {
		if got := complete(kubeconfig, test.verb, test.contexts, test.typed); got != test.want {
			t.Errorf("%s %s with contexts %s: the shell offers %q, want %q", test.verb, test.typed, test.contexts, got,
				test.want)
		}
	}

	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and nothing answers
	must(t, err)
	defer silent.Close()
	cfg := clientcmd.GetConfigFromFileOrDie(kubeconfig)
	cfg.Clusters["silent"] = &clientcmdapi.Cluster{Server: "https://" + silent.Addr().String()}
	cfg.Contexts["silent"] = &clientcmdapi.Context{Cluster: "silent"}
	withSilent := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*cfg, withSilent))
	beside := kubetest.WriteBeside(t, admin)
	defer beside.Stop()
	began := time.Now()
	got := complete(withSilent, "unlink --force", "silent c1", "")
	if took := time.Since(began); got != "c2" || took > 2*time.Second+beside.Late() {
		t.Errorf("beside a silent cluster the shell offers %q after %s", got, took)
	}
}

// TestLink: one command and a kubeconfig create a RemoteCluster in each of two clusters that have semaphore. Obstacles
// are found before the first write.
func TestLink(t *testing.T) {
	kubeconfig, admins, remotes, ctl := ctltest.Linkable(t)
	list := func(cluster string) []unstructured.Unstructured {
		t.Helper()
		return testkit.Value(remotes[cluster].List(t.Context(), metav1.ListOptions{}))(t).Items
	}
	subnets := subnetKeys(t, admins)
	ctl(0, "pki init --context c1 --cluster c1")
	if _, code, err := ctltest.Run(t, "link", "--context", "c1", "--with-all", "--kubeconfig", kubeconfig); code != 1 ||
		!strings.Contains(err.Error(), "give two or more clusters") {
		t.Errorf("c2 has no semaphore yet: exit code %d, %v", code, err)
	}
	ctl(0, "pki init --context c2 --cluster c2")

	// There is no address, and both have the same pod subnets.
	ctltest.Golden(t, "link-without-address", ctl(2, "link --context c1 --context c2"))
	for _, name := range []string{"c1", "c2"} {
		ctltest.Patch(t, admins[name].CoreV1().Services("semaphore"), "semaphore-broker-federation",
			`{"spec":{"type":"NodePort"}}`)
		if len(list(name)) != 0 {
			t.Errorf("%s: something was written", name)
		}
	}
	yaml := ctl(0, "link --context c1,c2 --dry-run=client -o yaml")
	if strings.Count(yaml, "kind: RemoteCluster") != 2 || len(list("c1")) != 0 ||
		strings.Contains(yaml, "kind: ConfigMap") ||
		!strings.Contains(yaml, `# the ConfigMap semaphore-subnets also gets remotePodSubnets.c2: "10.2.0.0/16"`) {
		t.Errorf("printed, and not written:\n%s", yaml)
	}
	var asJSON struct{ Clusters []show.Planned }
	must(t, json.Unmarshal([]byte(ctl(0, "link --context c1,c2 --dry-run=client -o json")), &asJSON))
	if len(asJSON.Clusters) != 2 || asJSON.Clusters[0].Context != "c1" || len(asJSON.Clusters[0].Objects) != 1 ||
		asJSON.Clusters[0].Objects[0].GetName() != "c2" || len(list("c1")) != 0 ||
		asJSON.Clusters[1].SubnetKeys["remotePodSubnets.c1"] != "10.1.0.0/16" {
		t.Errorf("printed as JSON: %v", asJSON)
	}
	subnets("c1", "") // printed, and not written
	linked := ctl(0, "link --context c1 --context c2 --yes")
	ctltest.Golden(t, "link", regexp.MustCompile(`\b[0-9a-f]{16}\b`).ReplaceAllString(linked, "FINGERPRINT"))
	ctl(0, "link --context c1 --with-all") // again
	subnets("c1", "10.2.0.0/16")
	subnets("c2", "10.1.0.0/16")
	completesObjects(t, kubeconfig, admins["c1"])
	for here, there := range map[string]string{"c1": "c2", "c2": "c1"} {
		all := list(here)
		if len(all) != 1 || all[0].GetName() != there {
			t.Fatalf("%s has %v", here, all)
		}
		bundle, _, _ := unstructured.NestedString(all[0].Object, "spec", "trustBundle")
		address, _, _ := unstructured.NestedString(all[0].Object, "spec", "broker", "address")
		subnets, _, _ := unstructured.NestedStringSlice(all[0].Object, "spec", "podSubnets")
		if bundle != ctl(0, "pki bundle --context "+there) || !strings.HasPrefix(address, "172.18."+there[1:]+".7:3") ||
			strings.Join(subnets, "") != ctltest.PodSubnets[there] {
			t.Errorf("%s in %s: %v", there, here, all[0].Object["spec"])
		}
	}

	ctltest.Patch(t, remotes["c1"], "c2",
		`{"status":{"objects":{"nodes":3,"services":12,"endpointSlices":20,"setMembers":400}}}`, "status")
	ctltest.Golden(t, "forget", ctl(0, "unlink c2 --force --context c1"))
	if len(list("c1")) != 1 {
		t.Error("without --yes it was removed")
	}
	subnets("c1", "10.2.0.0/16")
	ctltest.Golden(t, "forget-yes", ctl(0, "unlink c2 --force --context c1,c2 --yes"))
	subnets("c1", "")
	subnets("c2", "10.1.0.0/16")
	// An interrupted call has left the key alone.
	ctltest.Patch(t, admins["c1"].CoreV1().ConfigMaps("semaphore"), "semaphore-subnets",
		`{"data":{"remotePodSubnets.c2":"10.2.0.0/16"}}`)
	ctltest.Golden(t, "unlink", ctl(0, "unlink --context c1,c2"))
	if n := len(list("c2")); n != 1 {
		t.Errorf("without --yes, c2 has %d RemoteClusters", n)
	}
	ctltest.Golden(t, "unlink-yes", ctl(0, "unlink --context c1,c2 --yes"))
	if n := len(list("c1")) + len(list("c2")); n != 0 {
		t.Errorf("%d RemoteClusters are left", n)
	}
	subnets("c1", "")
	subnets("c2", "")
	wiresEach(t, admins["c2"], remotes["c2"], ctl)
}

// wiresEach: a cluster without CoreDNS, c1, does not keep names from those named after it. unlink writes no names
// without --yes, also where it has nothing to remove.
func wiresEach(t *testing.T, c2 kubernetes.Interface, remotes dynamic.ResourceInterface,
	ctl func(want int, args string) string) {
	t.Helper()
	files := c2.CoreV1().ConfigMaps("kube-system")
	kubetest.Create(t, files, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"},
		Data: map[string]string{"Corefile": ".:53 {\n    kubernetes cluster.local\n}\n"}})
	answers := func(want bool) {
		t.Helper()
		if is := kubetest.Get(t, files, "coredns").Data["Corefile"]; strings.Contains(is, "\ncluster.c1 {") != want {
			t.Errorf("want a block for c1: %t; the Corefile is\n%s", want, is)
		}
	}
	ctl(1, "link --context c1 --context c2 --yes --dns")
	answers(true)
	must(t, remotes.Delete(t.Context(), "c1", metav1.DeleteOptions{}))
	for _, unlink := range []string{"unlink c9 --force --context c2", "unlink --context c2 --agentless c1=c9"} {
		ctl(0, unlink)
		answers(true)
	}
	ctl(0, "unlink c9 --force --context c2 --yes")
	answers(false)
}

// subnetKeys gives each cluster the ConfigMap semaphore-subnets of an installation, and returns what checks the key for
// the other cluster, empty for none. All else in it stays.
func subnetKeys(t *testing.T, admins map[string]kubernetes.Interface) func(cluster, want string) {
	t.Helper()
	installed := map[string]string{"broker.yaml": "cluster: any\n", "localSubnets": "10.0.0.0/8"}
	for _, admin := range admins {
		kubetest.Create(t, admin.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: "semaphore-subnets", Labels: map[string]string{"semaphore.uw.io/subnets": "true"}}, Data: installed})
	}
	return func(cluster, want string) {
		t.Helper()
		is := kubetest.Get(t, admins[cluster].CoreV1().ConfigMaps("semaphore"), "semaphore-subnets")
		all := maps.Clone(installed)
		if other := map[string]string{"c1": "c2", "c2": "c1"}[cluster]; want != "" {
			all["remotePodSubnets."+other] = want
		}
		if !maps.Equal(is.Data, all) {
			t.Errorf("semaphore-subnets of %s has %v, want %v", cluster, is.Data, all)
		}
	}
}

// TestLinkOfDottedNames: clusters whose names have dots and the maximal length are linked, get DNS blocks and are
// forgotten like others.
func TestLinkOfDottedNames(t *testing.T) {
	_, admins, remotes, ctl := ctltest.Linkable(t)
	names := map[string]string{"c1": "eu-1.example.com", "c2": strings.Repeat("c", 55) + ".example"}
	for context, name := range names {
		ctl(0, "pki init --context "+context+" --cluster "+name)
		ctltest.Patch(t, admins[context].CoreV1().Services("semaphore"), "semaphore-broker-federation",
			`{"spec":{"type":"NodePort"}}`)
	}
	ctl(0, "link --context c1 --context c2 --yes")
	for here, there := range map[string]string{"c1": "c2", "c2": "c1"} {
		found := kubetest.GetObject(t, remotes[here], names[there])
		bundle, _, _ := unstructured.NestedString(found.Object, "spec", "trustBundle")
		prefix, has, _ := unstructured.NestedString(found.Object, "spec", "servicePrefix")
		if bundle != ctl(0, "pki bundle --context "+there) || has {
			t.Errorf("%s in %s: prefix %q, bundle %q", names[there], here, prefix, bundle)
		}
	}
	ctl(0, "link --context c1 --with-all") // again
	blocks := blocksOf(t, names["c1"])
	for _, want := range []string{"cluster.eu-1.example.com {", " " + naming.ClusterLabel(names["c1"]) +
		"-{2}-73736d-{1}."} {
		if !strings.Contains(blocks, want) {
			t.Errorf("no %q in the blocks of CoreDNS:\n%s", want, blocks)
		}
	}
	if out := ctl(0, "unlink "+names["c2"]+" --force --context c1"); !strings.Contains(out, names["c2"]) {
		t.Errorf("unlink --force says %s", out)
	}
	ctl(0, "unlink "+names["c2"]+" --force --context c1 --yes")
	ctl(0, "unlink "+names["c1"]+" --force --context c2 --yes")
	for context := range names {
		all := testkit.Value(remotes[context].List(t.Context(), metav1.ListOptions{}))(t)
		if len(all.Items) > 0 {
			t.Errorf("%s has %v", context, all.Items)
		}
	}
	if out := blocksOf(t, "local"); strings.Contains(out, "\ncluster.local {") ||
		!strings.Contains(out, "# no block for cluster.local: ") || !strings.Contains(out, "cluster.global {") {
		t.Errorf("for a remote that is named as the own domain:\n%s", out)
	}
}

// blocksOf returns the server blocks for the names of a remote.
func blocksOf(t *testing.T, remote string) string {
	t.Helper()
	var out strings.Builder
	blocks := coredns.Of([]coredns.Remote{{Cluster: remote}}, "semaphore", "cluster.local", false)
	must(t, coredns.Print(&out, blocks, false))
	return out.String()
}

// TestLinkSaysWhatIsUnread: a fact that could not be read is printed. It prevents a link where nothing else says what
// other clusters need.
func TestLinkSaysWhatIsUnread(t *testing.T) {
	for _, x := range []struct {
		fact  preflight.Fact
		spoil func(*linkedCluster)
		want  string
	}{
		{preflight.FactStrict, func(*linkedCluster) {}, "WARNING  NotRead  c1: unread objects: 429"},
		{preflight.FactCalico, func(*linkedCluster) {}, "WARNING  NotRead  c1: unread objects: 429"}, // --pod-subnets
		{preflight.FactPods, func(p *linkedCluster) { p.facts.Pods = preflight.Subnets{} },
			"ERROR    SubnetsUnknown  c1: pod subnets: none were found"},
		{preflight.FactNodes, func(p *linkedCluster) { p.facts.Nodes, p.addresses = nil, nil }, // --node-subnets
			"it has no load balancer, and the nodes could not be read"},
		{preflight.FactPodMonitors, func(*linkedCluster) {}, ""},
	} {
		facts := &preflight.Cluster{Context: "c1", Version: "v1.34.1", Calico: &preflight.Calico{},
			Pods:     preflight.Subnets{Prefixes: testkit.Prefixes("10.1.0.0/16")},
			Services: preflight.Subnets{Prefixes: testkit.Prefixes("10.101.0.0/16")},
			IPs:      preflight.Subnets{Prefixes: testkit.Prefixes("192.0.2.0/24")},
			Unread:   []preflight.Unread{{Fact: x.fact, Why: "429"}}}
		toLink(facts, "c1")
		p := &linkedCluster{facts: facts, addresses: []string{"192.0.2.7:31000"}}
		x.spoil(p)
		var out strings.Builder
		err := checkLinkable(&out, []*linkedCluster{p}, nil)
		if prevents := strings.Contains(out.String(), "ERROR"); (err != nil) != prevents ||
			!strings.Contains(out.String(), x.want) || (out.Len() > 0) != (x.want != "") {
			t.Errorf("%q is not known: %v\n%s", x.fact, err, out.String())
		}
	}
}

// TestAddressesOf: others reach a broker by its load balancer, or by several nodes, first those that are likely to
// stay.
func TestAddressesOf(t *testing.T) {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	node := func(ip string, age int, controlPlane bool) preflight.Node {
		n := preflight.Node{Name: ip, Created: day.AddDate(0, 0, -age), ControlPlane: controlPlane}
		if ip != "" {
			n.InternalIPs = []netip.Addr{netip.MustParseAddr(ip)}
		}
		return n
	}
	nodes := []preflight.Node{node("172.18.1.1", 1, false), node("172.18.1.2", 9, false), node("", 99, false),
		node("172.18.1.3", 2, true), node("172.18.1.4", 8, false)}
	service := func(port int32, hosts ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8443, NodePort: port}}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: hosts}}}
	}
	for _, test := range []struct {
		service *corev1.Service
		nodes   []preflight.Node
		want    string
	}{
		{service(30443), nodes, "172.18.1.3:30443 172.18.1.2:30443 172.18.1.4:30443"},
		{service(30443), nodes[:1], "172.18.1.1:30443"},
		{service(30443, corev1.LoadBalancerIngress{IP: "192.0.2.1"}), nodes, "192.0.2.1:8443"},
		{service(0), nodes, ""},
		{service(30443), nil, ""},
		{&corev1.Service{}, nodes, ""},
	} {
		if got := strings.Join(addressesOf(test.service, test.nodes), " "); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
