package naming

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestNamesNeverChange: clusters, policies, dashboards and DNS rewrites of users contain all of these values. If this
// test fails, an upgrade would break them.
func TestNamesNeverChange(t *testing.T) {
	for what, c := range map[string]struct{ got, want string }{
		// semaphore-wireguard
		"public key annotation":     {PubKeyAnnotation("c1"), "c1.wireguard.semaphore.uw.io/pubKey"},
		"endpoint annotation":       {EndpointAnnotation("c1"), "c1.wireguard.semaphore.uw.io/endpoint"},
		"device":                    {Device("c2"), "wireguard.c2"},
		"device, longest in full":   {Device("aws-1"), "wireguard.aws-1"},
		"device, shortened":         {Device("aws-12"), "wg.49059f49bc"},
		"device, shortened, longer": {Device("exp-1-aws-eu-west-1"), "wg.dff6e77ba9"},
		"alias":                     {DeviceAlias("exp-1-aws-eu-west-1"), "wireguard.exp-1-aws-eu-west-1"},
		// semaphore-service-mirror
		"mirror selector":      {DefaultMirrorSelector, "mirror.semaphore.uw.io/mirror-service=true"},
		"global selector":      {DefaultGlobalSelector, "mirror.semaphore.uw.io/global-service=true"},
		"mirror label":         {LabelMirrored, "mirrored-svc"},
		"mirror prefix label":  {LabelMirrorPrefixSync, "mirror-svc-prefix-sync"},
		"mirror":               {Mirror("c2", "shop", "echo"), "c2-shop-73736d-echo"},
		"global":               {Global("shop", "echo"), "gl-shop-73736d-echo"},
		"global label":         {LabelGlobal, "global-svc"},
		"clusters of a global": {AnnotationGlobalClusters, "global-svc-clusters"},
		"routing": {LabelRouting + "=" + RoutingLocalFirst,
			"mirror.semaphore.uw.io/global-service-routing-strategy=local-first"},
		"separator is ssm":     {MirrorSeparator, "73736d"},
		"mirror, dashed names": {Mirror("aws", "a-b", "c-d"), "aws-a-b-73736d-c-d"},
		// semaphore-policy
		"set":                  {Set("c1", "shop", "client"), "c1-shop-client"},
		"set with suffix":      {SetWithSuffix("c1", "a-b", "c"), "c1-a-b-c-5c958e71dd"},
		"set with suffix, too": {SetWithSuffix("c1", "a", "b-c"), "c1-a-b-c-74970f616f"},
		"set apart":            {SetApart("c1", "eu-pay", "c"), "c1.eu-pay-c-" + shortHash("c1/eu-pay/c")},
		"label domain":         {DefaultLabelDomain, "semaphore.uw.systems"},
		"later label domain":   {PolicyLabelDomain, "policy.semaphore.uw.io"},
		"label of sets":        {LabelSetManagedBy, "managed-by"},
		// ours
		"slice":            {Slice("gl-shop-73736d-echo", "c2", 3), "gl-shop-73736d-echo-c2-3"},
		"export-status":    {AnnotationExportStatus, "semaphore.uw.io/export-status"},
		"gone-clusters":    {AnnotationGoneClusters, "semaphore.uw.io/gone-clusters"},
		"prefer-clusters":  {AnnotationPreferClusters, "semaphore.uw.io/prefer-clusters"},
		"min-ready":        {AnnotationMinReady, "semaphore.uw.io/min-ready"},
		"when-gone":        {AnnotationWhenGone, "semaphore.uw.io/when-gone"},
		"managed-by label": {LabelManagedBy, "app.kubernetes.io/managed-by"},
		"managed-by":       {ManagedByBroker, "semaphore-broker"},
		"source cluster":   {LabelSourceCluster, "semaphore.uw.io/source-cluster"},
		"source namespace": {AnnotationSourceNamespace, "semaphore.uw.io/source-namespace"},
		"source name":      {AnnotationSourceName, "semaphore.uw.io/source-name"},
		"pool":             {Pool("c2", "10.2.0.0/16"), "semaphore-c2-10-2-0-0-16"},
		"import":           {Import("shop", "echo"), "mcs-shop-73736d-echo"},
		// The hash has 128 bits, because remotes choose the names.
		"import, too long": {Import(strings.Repeat("n", 63), strings.Repeat("n", 63)),
			"mcs-73736d-671a356fcfb514cf8b6b0ae95989d851"},
		"pool, IPv6": {Pool("c2", "fd00:2::/48"), "semaphore-c2-fd00-2---48"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q; want %q", what, c.got, c.want)
		}
	}
}

// TestForeignCluster: the namespace of an exporter identifies the cluster that it reads, unless it has a hash.
func TestForeignCluster(t *testing.T) {
	for namespace, want := range map[string]string{
		ForeignNamespace("c2"): "c2", ForeignNamespace("reads-me"): "reads-me",
		ForeignNamespace("eu-1.example.com"): "", ForeignNamespace(strings.Repeat("c", 63)): "",
		"semaphore": "", "kube-system": "", "semaphore-eu.example.com": "",
		"semaphore-" + strings.Repeat("c", 53): strings.Repeat("c", 53),
	} {
		if got, known := ForeignCluster(namespace); known != (want != "") || known && got != want {
			t.Errorf("%s: %q, %t; want %q", namespace, got, known, want)
		}
	}
}

func TestReserved(t *testing.T) {
	for key, want := range map[string]bool{
		LabelManagedBy: true, LabelSourceCluster: true, LabelMirrored: true, LabelGlobal: true, LabelMirrorPrefixSync: true,
		LabelSetManagedBy: true,
		LabelRouting:      true, "kubernetes.io/service-name": true, "service.kubernetes.io/headless": true,
		"endpointslice.kubernetes.io/managed-by": true,
		"node.k8s.io/x":                          true, "semaphore.uw.systems/name": true,
		"policy.semaphore.uw.io/name": true,
		"app.kubernetes.io/name":      false, "team": false, "example.org/kubernetes.io": false, "notkubernetes.io/x": false,
		"app.kubernetes.io/part-of": false, "app.kubernetes.io/version": false, "argoproj.io.example.org/x": false,
		// Labels by which tools find their objects, from their documents:
		"app.kubernetes.io/instance": true, "argocd.argoproj.io/instance": true, // Argo CD 2 and 3, resource tracking
		"argocd.argoproj.io/tracking-id":   true,
		"kustomize.toolkit.fluxcd.io/name": true, // Flux 2, labels of the kustomize-controller and the helm-controller
		"helm.toolkit.fluxcd.io/namespace": true,
		"fluxcd.io/sync-gc-mark":           true,                                                         // Flux 1
		"meta.helm.sh/release-name":        true, "helm.sh/chart": true, "helm.sh/resource-policy": true, // Helm 3 and 4
		"kubectl.kubernetes.io/last-applied-configuration": true, // kubectl apply
		"applyset.kubernetes.io/part-of":                   true, // kubectl apply --prune --applyset
		"config.kubernetes.io/origin":                      true, // kustomize
		"kustomize.config.k8s.io/needs-hash":               true,
		"config.k8s.io/owning-inventory":                   true, // cli-utils, kpt live
		"internal.kpt.dev/upstream-identifier":             true,
		"kapp.k14s.io/app":                                 true, // kapp
		"objectset.rio.cattle.io/hash":                     true, // Rancher's Fleet and its operators
		"configmanagement.gke.io/managed":                  true, // Config Sync
		"configsync.gke.io/declared-version":               true,
		"crossplane.io/composite":                          true,
	} {
		if got := Reserved(key); got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
}

// TestAgentTaints: a taint of any key that an autoscaler leaves out of its simulation can wait for the agent, and no
// other part's taint is mistaken for it.
func TestAgentTaints(t *testing.T) {
	// cluster-autoscaler, commit 0af55ac5, utils/taints/taints.go (SanitizeTaints): a node group's template is
	// simulated without taints of these prefixes. StatusTaintPrefix too, of which its nodes count as ready.
	ignored := []string{"ignore-taint.cluster-autoscaler.kubernetes.io/",
		"startup-taint.cluster-autoscaler.kubernetes.io/", "status-taint.cluster-autoscaler.kubernetes.io/"}
	for _, prefix := range ignored {
		key := strings.TrimSuffix(prefix, "/") + PrefixedAgentNotReady
		if !IsAgentTaint(key) || !strings.HasPrefix(key, prefix) || len(validation.IsQualifiedName(key)) > 0 {
			t.Errorf("%s is no taint of the agent", key)
		}
	}
	for key, want := range map[string]bool{
		TaintAgentNotReady: true, "example.org/semaphore-agent-not-ready": true,
		"semaphore-agent-not-ready": false, "example.org/agent-not-ready": false, "semaphore.uw.io/agent-not-ready-x": false,
		"node.cilium.io/agent-not-ready": false, "example.org/x-semaphore-agent-not-ready": false,
		"node.kubernetes.io/not-ready": false,
	} {
		if got := IsAgentTaint(key); got != want {
			t.Errorf("%s: %t, want %t", key, got, want)
		}
	}
}

// TestWireGuardAnnotationCluster: keys of no cluster; FuzzNames has those of clusters.
func TestWireGuardAnnotationCluster(t *testing.T) {
	for _, key := range []string{
		"", "kubernetes.io/hostname", ".wireguard.semaphore.uw.io/pubKey", "wireguard.semaphore.uw.io/pubKey",
		"c1.wireguard.semaphore.uw.io/", "c1.wireguard.semaphore.uw.io/pubkey", "c1.wireguard.semaphore.uw.io/pubKey2",
	} {
		if got, ok := WireGuardAnnotationCluster(key); ok || got != "" {
			t.Errorf("%q: taken for that of cluster %q", key, got)
		}
	}
}

func TestIsDevice(t *testing.T) {
	short := Device("aws-eu-west-1")
	for _, c := range []struct {
		name, alias string
		want        bool
	}{
		{"wireguard.c2", "", true}, // semaphore-wireguard sets no alias
		{"wireguard.c2", "wireguard.c2", true},
		{"wireguard.", "", false},
		{"wireguard", "", false},
		{"wg0", "", false},
		{short, "wireguard.aws-eu-west-1", true},
		{short, "", false}, // a hash alone proves nothing
		{short, "wireguard.aws-eu-west-2", false},
		{short, "aws-eu-west-1", false},
		{"wg.0000000000", "wireguard.aws-eu-west-1", false},
		{"wg0", "wireguard.c2", false}, // a copied alias
		{"eth0", "uplink", false},
	} {
		if got := IsDevice(c.name, c.alias); got != c.want {
			t.Errorf("IsDevice(%q, %q) = %v", c.name, c.alias, got)
		}
	}
}

// TestNamesAreValid: the API accepts names whose parts have the maximal length.
func TestNamesAreValid(t *testing.T) {
	for _, cluster := range []string{strings.Repeat("c", 32), strings.Repeat("c", 63), longestDotted} {
		namesAreValid(t, cluster)
	}
}

func namesAreValid(t *testing.T, cluster string) {
	t.Helper()
	label := strings.Repeat("n", 63)
	mirror := Mirror("c", "n", strings.Repeat("s", 51))
	if errs := validation.IsDNS1035Label(mirror); len(errs) > 0 {
		t.Errorf("mirror of 63 characters: %v", errs)
	}
	if errs := validation.IsDNS1035Label(Import(label, label)); len(errs) > 0 {
		t.Errorf("import: %v", errs)
	}
	for what, name := range map[string]string{
		"slice":           Slice(mirror, cluster, 1_000_000),
		"set":             Set(cluster, label, label),
		"set apart":       SetApart(cluster, label, label),
		"set with suffix": SetWithSuffix(cluster, label, label),
		"part of a set":   SetPart(SetWithSuffix(cluster, label, label), 1_000_000),
		"pool, IPv4":      Pool(cluster, "255.255.255.255/32"),
		"pool, IPv6":      Pool(cluster, "2001:db8:1111:2222:3333:4444:5555:6666/128"),
		"pool, ::":        Pool(cluster, "2001:db8::/32"),
	} {
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Errorf("%s %q: %v", what, name, errs)
		}
	}
	if errs := validation.IsDNS1123Label(ForeignNamespace(cluster)); len(errs) > 0 {
		t.Errorf("namespace of the exporter for %s: %v", cluster, errs)
	}
	if errs := validation.IsValidLabelValue(cluster); len(errs) > 0 {
		t.Errorf("label value %q: %v", cluster, errs)
	}
	for _, key := range []string{PubKeyAnnotation(cluster), EndpointAnnotation(cluster), LabelManagedBy,
		LabelSourceCluster, LabelMirrored, LabelMirrorPrefixSync,
		LabelSetManagedBy,
		AnnotationSourceNamespace, AnnotationSourceName, DefaultLabelDomain + "/name", PolicyLabelDomain + "/name"} {
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			t.Errorf("key %s: %v", key, errs)
		}
	}
}

// TestPartsOfSets: whatever the names of sets, no part of one has the name of another set, or of a part of it.
func TestPartsOfSets(t *testing.T) {
	sets := map[string]string{}
	for _, name := range []string{"web", "web.part-2", "web.part-3", "web.part-2.part-2", "web.part-1", "web.part-02",
		"web.part-+2", "web.part-x", "part-2", "x.part-2"} {
		set := Set("c2", "shop", name)
		for part := range 4 {
			of := SetPart(set, part+1)
			if other, taken := sets[of]; taken {
				t.Errorf("%s is of the sets %s and %s", of, other, name)
			}
			sets[of] = name
			if base, number := SplitSetPart(of); base != set || number != part+1 {
				t.Errorf("%s is part %d of %s, and was taken for part %d of %s", of, part+1, set, number, base)
			}
		}
	}
	for _, name := range []string{"web.v2", "web.part-02"} { // no part has such a name
		if got := Set("c2", "shop", name); got != "c2-shop-"+name {
			t.Errorf("%s is %s", name, got)
		}
	}
}

// longestDotted is a name with dots of the maximal length.
var longestDotted = strings.Repeat("c", 55) + ".example"

// TestIsClusterName: which texts are valid cluster names.
func TestIsClusterName(t *testing.T) {
	// The definition of RemoteClusters and the chart have the same rule.
	rules := map[string]*regexp.Regexp{}
	for file, find := range map[string]string{
		"../../deploy/crds/remoteclusters.yaml": `self\.metadata\.name\.size\(\) <= 63 && ` +
			`self\.metadata\.name\.matches\('([^']+)'\)`,
		"../../deploy/values.schema.json": `"cluster": \{\s+"type": "string",\s+"pattern": "([^"]+)",\s+` +
			`"maxLength": 63,`,
	} {
		text := testkit.Value(os.ReadFile(file))(t)
		found := regexp.MustCompile(find).FindStringSubmatch(strings.Join(strings.Fields(string(text)), " "))
		if found == nil {
			t.Fatalf("%s has no rule for names of clusters", file)
		}
		rules[file] = regexp.MustCompile(found[1])
	}
	for name, want := range map[string]bool{
		"c1": true, "0": true, "aws-eu-west-1": true, "eu-1.example.com": true, "a.b": true,
		"remote-aws-us-west-2.k8s.testing.com": true, strings.Repeat("c", 63): true, longestDotted: true,
		"": false, "C1": false, "c_1": false, "-c": false, "c-": false, ".c": false, "c.": false, "a..b": false,
		"a.-b": false,
		"a-.b": false, "a/b": false, "a b": false, "a\n": false, "ü": false, strings.Repeat("c", 64): false,
		longestDotted + "s": false,
	} {
		if got := IsClusterName(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
		if errs := validation.IsDNS1123Subdomain(name); want && len(errs) > 0 {
			t.Errorf("%q is no name of a RemoteCluster: %v", name, errs)
		}
		for file, rule := range rules {
			if got := len(name) <= MaxClusterName && rule.MatchString(name); got != want {
				t.Errorf("%s: %q: %t", file, name, got)
			}
		}
	}
}

// TestClusterLabel: the label of a name without dots and of up to 32 characters is the name itself, as in earlier
// releases. Any other name has a label that is short, without dots, and distinct.
func TestClusterLabel(t *testing.T) {
	for _, plain := range []string{"c1", "0", "aws-eu-west-1", strings.Repeat("c", 32), "x49059f49bc"} {
		if got := ClusterLabel(plain); got != plain {
			t.Errorf("%s has become %s", plain, got)
		}
	}
	for _, name := range []string{"eu-1.example.com", "a.b", strings.Repeat("c", 33), longestDotted} {
		if want := "x" + shortHash(name); ClusterLabel(name) != want {
			t.Errorf("%s: %s, want %s", name, ClusterLabel(name), want)
		}
		if errs := validation.IsDNS1035Label(ClusterLabel(name)); len(errs) > 0 || len(ClusterLabel(name)) > 11 {
			t.Errorf("%s: %s begins no name of a Service: %v", name, ClusterLabel(name), errs)
		}
	}
	// Clusters of users contain these: they never change.
	for what, c := range map[string]struct{ got, want string }{
		"label":        {ClusterLabel("eu-1.example.com"), "x1853a87fd3"},
		"device":       {Device("eu-1.example.com"), "wg.1853a87fd3"},
		"short device": {Device("a.b"), "wireguard.a.b"},
		"set":          {Set("eu-1.example.com", "shop", "web"), "x1853a87fd3-shop-web"},
		"set apart": {SetApart("eu-1.example.com", "shop", "web"), "x1853a87fd3.shop-web-" +
			shortHash("eu-1.example.com/shop/web")},
		"slice":      {Slice("gl-shop-73736d-echo", "eu-1.example.com", 3), "gl-shop-73736d-echo-x1853a87fd3-3"},
		"pool":       {Pool("eu-1.example.com", "10.2.0.0/16"), "semaphore-x1853a87fd3-10-2-0-0-16"},
		"annotation": {PubKeyAnnotation("eu-1.example.com"), "eu-1.example.com.wireguard.semaphore.uw.io/pubKey"},
		"namespace":  {ForeignNamespace("eu-1.example.com"), "semaphore-reads-1853a87fd3"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q; want %q", what, c.got, c.want)
		}
	}
}

// TestDottedNamesAreDistinct: names that differ only in the place of a dot or a dash, or in one letter, result in
// different names of everything. The kernel accepts those of interfaces, and IsDevice recognizes them.
func TestDottedNamesAreDistinct(t *testing.T) {
	clusters := []string{"c2", "c2-eu", "c2.eu", "c2.eu-pay", "c2-eu.pay", "c2.eu.pay", "c2eu", "eu.c2", longestDotted,
		strings.Repeat("c", 63), strings.Repeat("c", 62), "a", "abcde", "abcdef", "abcdeg", "aws-eu-west-1", "aws-eu-west-2"}
	seen := map[string]string{}
	for _, cluster := range clusters {
		for what, name := range map[string]string{
			"device": Device(cluster), "label": ClusterLabel(cluster), "set": Set(cluster, "shop", "web"),
			"pool": Pool(cluster, "10.2.0.0/16"), "slice": Slice("gl-a-73736d-b", cluster, 1),
			"namespace": ForeignNamespace(cluster), "annotation": PubKeyAnnotation(cluster), "alias": DeviceAlias(cluster),
		} {
			if other, taken := seen[what+" "+name]; taken {
				t.Errorf("%s %s is that of %s and of %s", what, name, other, cluster)
			}
			seen[what+" "+name] = cluster
		}
		if got, ok := WireGuardAnnotationCluster(PubKeyAnnotation(cluster)); !ok || got != cluster {
			t.Errorf("the annotation of %s is that of %s", cluster, got)
		}
		if name := Device(cluster); len(name) > unix.IFNAMSIZ-1 || strings.ContainsAny(name, "/ :") ||
			!IsDevice(name, DeviceAlias(cluster)) {
			t.Errorf("the device of %s is %s", cluster, name)
		}
	}
}
