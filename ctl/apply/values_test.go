package apply

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

var prefixes = testkit.Prefixes

// found returns an ordinary cluster, modified by change.
func found(change func(*preflight.Cluster)) *preflight.Cluster {
	c := &preflight.Cluster{Context: "admin@prod", Names: []string{"prod"}, Version: "v1.34.1", CNI: "Calico",
		Calico: &preflight.Calico{IPAM: fleet.IPAM{Strict: true}}, Pods: preflight.Subnets{Prefixes: prefixes("10.1.0.0/16")},
		Services: preflight.Subnets{Prefixes: prefixes("10.101.0.0/16")},
		IPs:      preflight.Subnets{Prefixes: prefixes("192.0.2.0/24")},
		Nodes: []preflight.Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")},
			PodCIDRs: prefixes("10.1.0.0/24"), Kernel: "6.12.1", OS: "Debian GNU/Linux 13"}},
		DNS: preflight.DNS{ConfigMap: "kube-system/coredns"}}
	change(c)
	return c
}

func TestDecide(t *testing.T) {
	for name, x := range map[string]struct {
		found    func(*preflight.Cluster)
		wishes   Wishes
		version  string
		want     func(*Values)
		findings []string
	}{
		"nothing unusual":          {want: func(v *Values) {}},
		"a release":                {version: "v1.2.3", want: func(v *Values) { v.Image = Repository + ":v1.2.3" }},
		"a commit after a release": {version: "v1.2.3-4-gabcdef", want: func(v *Values) {}},
		"a release candidate": {version: "v1.2.3-rc.1", want: func(v *Values) {
			v.Image = Repository +
				":v1.2.3-rc.1"
		}},
		"another image": {version: "v1.2.3", wishes: Wishes{Image: "r.example/semaphore:x"},
			want: func(v *Values) { v.Image = "r.example/semaphore:x" }},
		"no Calico": {found: func(c *preflight.Cluster) { c.Calico, c.CNI = nil, "flannel" }, want: func(v *Values) {
			v.Features, v.Components = config.Features{config.Encryption, config.Services}, nil
		}, findings: []string{"NoCalico warning"}},
		"policy without Calico": {found: func(c *preflight.Cluster) { c.Calico, c.CNI = nil, "flannel" },
			wishes:   Wishes{Features: config.Features{config.Policy}},
			want:     func(v *Values) { v.Features, v.Components = config.Features{config.Policy}, nil },
			findings: []string{"NoCalico warning", "PolicyWithoutCalico error"}},
		"a CNI past which no tunnel leads": {found: func(c *preflight.Cluster) {
			c.Calico, c.CNI, c.Excluded = nil, "Cilium", "Cilium: eBPF"
		}, want: func(v *Values) {
			v.Features, v.Components = config.Features{config.Encryption, config.Services}, nil
		}, findings: []string{"CNIExcluded error", "NoCalico warning"}},
		"the same, without tunnels": {found: func(c *preflight.Cluster) {
			c.Calico, c.CNI, c.Excluded = nil, "Cilium", "Cilium: eBPF"
		}, wishes: Wishes{Features: config.Features{config.Services}}, want: func(v *Values) {
			v.Features, v.Components = config.Features{config.Services}, nil
		}, findings: []string{"NoCalico warning"}},
		"an old kernel": {found: func(c *preflight.Cluster) { c.Nodes[0].Kernel = "5.4.0-42-generic" },
			want:     func(v *Values) { v.Components = []string{"ippools", "userspace-wireguard"} },
			findings: []string{"KernelWithoutWireGuard warning"}},
		"an old kernel, and no agents": {found: func(c *preflight.Cluster) { c.Nodes[0].Kernel = "5.4.0-42-generic" },
			wishes:   Wishes{Features: config.Features{config.Services}},
			want:     func(v *Values) { v.Features = config.Features{config.Services} },
			findings: []string{"KernelWithoutWireGuard warning"}},
		"privileged in place of the other": {found: func(c *preflight.Cluster) { c.Nodes[0].Kernel = "5.4.0-42-generic" },
			wishes:   Wishes{Components: []string{"userspace-wireguard-privileged"}},
			want:     func(v *Values) { v.Components = []string{"ippools", "userspace-wireguard-privileged"} },
			findings: []string{"KernelWithoutWireGuard warning"}},
		"SELinux": {found: func(c *preflight.Cluster) { c.Nodes[0].OS = "Rocky Linux 9.4 (Blue Onyx)" },
			want: func(v *Values) { v.Components = []string{"ippools", "selinux"} }},
		"OpenShift": {found: func(c *preflight.Cluster) {
			c.Nodes[0].OS = "Red Hat Enterprise Linux CoreOS 417.94.202410090854-0"
		}, wishes: Wishes{Components: []string{"selinux"}},
			want: func(v *Values) { v.Components = []string{"ippools", "openshift"} }},
		"OpenShift, and no agents": {found: func(c *preflight.Cluster) {
			c.Nodes[0].OS = "Red Hat Enterprise Linux CoreOS 417.94.202410090854-0"
		}, wishes: Wishes{Features: config.Features{config.Services}},
			want: func(v *Values) {
				v.Features, v.Components = config.Features{config.Services}, []string{"ippools", "openshift"}
			}},
		"GKE": {found: func(c *preflight.Cluster) { c.Version = "v1.33.5-gke.1080000" },
			want: func(v *Values) { v.Components = []string{"gke", "ippools"} }},
		"GKE, and no agents": {found: func(c *preflight.Cluster) { c.Version = "v1.33.5-gke.1080000" },
			wishes: Wishes{Features: config.Features{config.Services}},
			want: func(v *Values) {
				v.Features, v.Components = config.Features{config.Services}, []string{"gke", "ippools"}
			}},
		"everything is said": {wishes: Wishes{Name: "c1", PodSubnets: prefixes("10.8.0.0/16"),
			ServiceSubnets: prefixes("10.9.0.0/16"), NodeSubnets: prefixes("192.0.2.7/32"), Expose: LoadBalancer,
			NodePort: 30001},
			want: func(v *Values) {
				v.Cluster, v.PodSubnets, v.ServiceSubnets = "c1", prefixes("10.8.0.0/16"), prefixes("10.9.0.0/16")
				v.NodeSubnets, v.Expose, v.NodePort = prefixes("192.0.2.7/32"), LoadBalancer, 30001
			}},
		"no subnets": {found: func(c *preflight.Cluster) { c.Services.Prefixes = nil },
			want: func(v *Values) { v.ServiceSubnets = nil }, findings: []string{"SubnetsUnknown error"}},
		"no subnets, but said": {found: func(c *preflight.Cluster) { c.Services.Prefixes = nil },
			wishes: Wishes{ServiceSubnets: prefixes("10.101.0.0/16")}, want: func(v *Values) {}},
		"no name": {found: func(c *preflight.Cluster) { c.Names, c.Context = nil, "!" },
			want: func(v *Values) { v.Cluster = "!" }, findings: []string{"ClusterNameMissing error"}},
	} {
		t.Run(name, func(t *testing.T) {
			if x.found == nil {
				x.found = func(*preflight.Cluster) {}
			}
			want := Values{Cluster: "prod", Namespace: fleet.DefaultNamespace, Features: AllFeatures,
				Components: []string{"ippools"},
				PodSubnets: prefixes("10.1.0.0/16"), ServiceSubnets: prefixes("10.101.0.0/16"),
				NodeSubnets: prefixes("192.0.2.0/24"), Expose: NodePort}
			x.want(&want)
			want.Components = slices.Sorted(slices.Values(append(want.Components, "network-policies")))
			got, _, findings := Decide(found(x.found), x.wishes, fleet.DefaultNamespace, x.version)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			var codes []string
			for _, f := range findings {
				if f.Level != finding.OK {
					codes = append(codes, string(f.Code)+" "+string(f.Level))
				}
			}
			if slices.Sort(codes); !slices.Equal(codes, x.findings) {
				t.Errorf("findings %q, want %q", codes, x.findings)
			}
		})
	}
}

// TestPossible: what the cluster serves is used by default, and only then; the operator leaves out what he names.
func TestPossible(t *testing.T) {
	services, policy := config.Features{config.Services}, config.Features{config.Policy}
	for _, x := range []struct {
		mcs, monitors bool
		wishes        Wishes
		want, out     string
	}{
		{false, false, Wishes{Features: services}, "network-policies", "mcs monitors"},
		{true, true, Wishes{Features: services}, "mcs monitors network-policies", ""},
		{true, true, Wishes{Features: policy}, "monitors network-policies", "mcs"},
		{true, true, Wishes{Features: services, Components: []string{"-mcs", "-monitors", "-network-policies", "-ippools"}},
			"", "ippools mcs monitors network-policies"},
		{false, false, Wishes{Features: services, Components: []string{"mcs", "-network-policies"}}, "mcs",
			"monitors network-policies"},
	} {
		v, reasons, _ := Decide(found(func(c *preflight.Cluster) { c.Calico, c.MCS, c.PodMonitors = nil, x.mcs, x.monitors }),
			x.wishes, fleet.DefaultNamespace, "")
		var out []string
		for _, r := range reasons {
			if r.Without {
				out = append(out, r.Component)
			}
			if r.Why == "" {
				t.Errorf("%+v: no reason for %s", x.wishes, r.Component)
			}
		}
		slices.Sort(out)
		if got := strings.Join(v.Components, " "); got != x.want || strings.Join(out, " ") != x.out {
			t.Errorf("%+v: %q without %q, want %q without %q", x.wishes, got, out, x.want, x.out)
		}
	}
}

// TestUnread: an installation depends on no fact that could not be read, unless the operator decides in its place. One
// that decides nothing does not prevent it.
func TestUnread(t *testing.T) {
	services := config.Features{config.Services}
	for _, x := range []struct {
		fact   preflight.Fact
		wishes Wishes
		want   finding.Level
	}{
		{preflight.FactPodMonitors, Wishes{}, finding.Error},
		{preflight.FactPodMonitors, Wishes{Components: []string{"monitors"}}, finding.Warning},
		{preflight.FactPodMonitors, Wishes{Components: []string{"-monitors"}}, finding.Warning},
		{preflight.FactMCS, Wishes{}, finding.Error},
		{preflight.FactMCS, Wishes{Components: []string{"-mcs"}}, finding.Warning},
		{preflight.FactMCS, Wishes{Features: config.Features{config.Policy}}, finding.Warning},
		{preflight.FactCalico, Wishes{}, finding.Error},
		{preflight.FactCalico, Wishes{Features: services}, finding.Error},
		{preflight.FactBlocks, Wishes{}, finding.Error},
		{preflight.FactStrict, Wishes{}, finding.Warning},
		{preflight.FactNodes, Wishes{NodeSubnets: prefixes("192.0.2.0/24")}, finding.Error},
		{preflight.FactCNI, Wishes{}, finding.Error},
		{preflight.FactServices, Wishes{}, finding.Error},
		{preflight.FactServices, Wishes{ServiceSubnets: prefixes("10.101.0.0/16")}, finding.Warning},
		{preflight.FactRights, Wishes{}, finding.Error},
		{preflight.FactPods, Wishes{}, finding.Warning}, // else there would be none
		{preflight.FactCoreDNS, Wishes{}, finding.Warning},
		{"", Wishes{}, finding.Warning}, // as the clock
	} {
		facts := found(func(c *preflight.Cluster) { // as Survey leaves them
			c.Unread = []preflight.Unread{{Fact: x.fact, Why: "the apiserver did not answer within 15s"}}
			if x.fact == preflight.FactCalico {
				c.Calico = nil
			}
		})
		v, _, findings := Decide(facts, x.wishes, fleet.DefaultNamespace, "")
		var got []string
		for _, f := range findings {
			if f.Level != finding.OK {
				got = append(got, fmt.Sprintf("%s %s: %s", f.Code, f.Level, f.Evidence))
			}
		}
		want := fmt.Sprintf("NotRead %s: the apiserver did not answer within 15s", x.want)
		if strings.Join(got, "\n") != want {
			t.Errorf("%q is not known, %+v: %q, want %q", x.fact, x.wishes, got, want)
		}
		if x.wishes.Features == nil && !v.Features.Has(config.Policy) {
			// install would say that the feature policy is to be taken away
			t.Errorf("%q is not known, and the features are %v", x.fact, v.Features)
		}
	}
}

// TestWishes: an error names the key, and fields that are not set keep their earlier value.
func TestWishes(t *testing.T) {
	for want, w := range map[string]Wishes{
		"name: ":           {Name: "C1"},
		`features: "fast"`: {Features: config.Features{"fast"}},
		"listed twice":     {Features: config.Features{config.Policy, config.Policy}},
		`components: "x"`:  {Components: []string{"x"}},
		`components: "ser`: {Components: []string{"services"}},
		`expose: "public"`: {Expose: "public"},
		"nodePort: 30000":  {Expose: ClusterIP, NodePort: 30000},
		"nodePort: 70000":  {NodePort: 70000},
		"image: ":          {Image: "no image"},
		"nodeSubnets: ":    {NodeSubnets: prefixes("192.0.2.7/24")},
	} {
		if err := w.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", w, err, want)
		}
	}
	before := Wishes{Name: "c1", Image: "x:1", Components: []string{"gke", "-monitors"},
		NodeSubnets: prefixes("192.0.2.0/24"), Features: config.Features{config.Services}, Expose: LoadBalancer,
		NodePort: 30000}
	equal := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(before, Wishes{}.Over(before), equal); diff != "" {
		t.Error(diff)
	}
	before.Components = []string{"gke", "mcs", "-monitors"}
	if none := (Wishes{Components: []string{}}).Over(before); len(none.Components) != 0 {
		t.Errorf("an empty list leaves %v", none.Components)
	}
	changed := Wishes{Image: "x:2", Components: []string{"-mcs", "monitors", "dns"}}.Over(before)
	if got := strings.Join(changed.Components, " "); changed.Image != "x:2" || got != "gke -mcs monitors dns" ||
		changed.Name != "c1" {
		t.Errorf("%+v", changed)
	}
	if closed := (Wishes{Expose: ClusterIP}).Over(before); closed.NodePort != 0 || closed.Check() != nil {
		t.Errorf("a Service of type ClusterIP keeps port %d: %v", closed.NodePort, closed.Check())
	}
}

// TestRecord: the record of an installation is read as it was written.
func TestRecord(t *testing.T) {
	v, _, _ := Decide(found(func(*preflight.Cluster) {}), Wishes{}, fleet.DefaultNamespace, "")
	objects := testkit.Value(Build(v))(t)
	r := &Record{Wishes: Wishes{Name: "c1", NodeSubnets: prefixes("192.0.2.0/24"), Components: []string{"-mcs"}},
		Values: v, Version: "v1"}
	for _, o := range objects {
		r.Objects = append(r.Objects, RefOf(o))
	}
	o := testkit.Value(r.Object())(t)
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	testkit.Must(t, err)
	got := testkit.Value(ParseRecord(data))(t)
	if diff := cmp.Diff(r, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if left := r.Without(r.Objects[1:]); len(left) != 1 || left[0] != r.Objects[0] {
		t.Errorf("%v", left)
	}
	data["objects"] = "nonsense"
	if _, err := ParseRecord(data); err == nil || !strings.Contains(err.Error(), "names no object") {
		t.Errorf("%v", err)
	}
}

// TestUnready: the results are those of kubectl rollout status.
func TestUnready(t *testing.T) {
	for _, x := range []struct {
		kind   string
		status map[string]any
		want   string
	}{
		{"Deployment", map[string]any{}, "has not seen it"},
		{"Deployment", map[string]any{"observedGeneration": int64(2), "replicas": int64(2), "updatedReplicas": int64(2),
			"availableReplicas": int64(1)}, "1 available"},
		{"Deployment", map[string]any{"observedGeneration": int64(2), "replicas": int64(3), "updatedReplicas": int64(2),
			"availableReplicas": int64(2)}, "1 old ones left"},
		{"Deployment", map[string]any{"observedGeneration": int64(2), "replicas": int64(2), "updatedReplicas": int64(2),
			"availableReplicas": int64(2)}, ""},
		{"DaemonSet", map[string]any{"observedGeneration": int64(2), "desiredNumberScheduled": int64(3),
			"updatedNumberScheduled": int64(3), "numberAvailable": int64(2)}, "3 of 3 pods are new, 2 available"},
		{"DaemonSet", map[string]any{"observedGeneration": int64(2), "desiredNumberScheduled": int64(3),
			"updatedNumberScheduled": int64(3), "numberAvailable": int64(3)}, ""},
		{"Job", map[string]any{}, "not complete"},
		{"Job", map[string]any{"conditions": []any{map[string]any{"type": "Complete", "status": "True"}}}, ""},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"kind": x.kind,
			"metadata": map[string]any{"generation": int64(2)},
			"spec":     map[string]any{"replicas": int64(2)}, "status": x.status}}
		got, err := Unready(o)
		if err != nil || x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%s %v: %q, %v, want %q", x.kind, x.status, got, err, x.want)
		}
	}
	failed := &unstructured.Unstructured{Object: map[string]any{"kind": "Job",
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "Failed", "status": "True", "message": "BackoffLimitExceeded"}}}}}
	if _, err := Unready(failed); err == nil || !strings.Contains(err.Error(), "BackoffLimitExceeded") {
		t.Errorf("a Job that failed: %v", err)
	}
}

// TestStuck: a pod that cannot run says why, and how to fix what install can fix.
func TestStuck(t *testing.T) {
	waits := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", Image: "example.org/image:v2",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
	}
	crashed := waits("CrashLoopBackOff", "back-off")
	crashed.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2}
	first := corev1.PodStatus{InitContainerStatuses: waits("ErrImageNeverPull", "never").ContainerStatuses}
	pull := "; let node n1 pull example.org/image:v2, or give another --image"
	for want, status := range map[string]corev1.PodStatus{
		"": waits("ContainerCreating", ""),
		"pod p: ImagePullBackOff: unknown" + pull:                   waits("ImagePullBackOff", "unknown"),
		"pod p: ErrImageNeverPull: never" + pull:                    first,
		"pod p: RunContainerError: no file":                         waits("RunContainerError", "no file"),
		"pod p: CrashLoopBackOff: agent ended with code 2: kubectl": crashed,
		"pod p: no node has room": {Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Message: "no node has room"}}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: status}
		if got := Stuck(pod); got != want && (want == "" || !strings.HasPrefix(got, want)) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPoliciesFindSubnets: the admission policies find the subnets of the installation in any namespace, with and
// without encryption.
func TestPoliciesFindSubnets(t *testing.T) {
	for _, features := range []config.Features{AllFeatures, {config.Services}} {
		for _, namespace := range []string{fleet.DefaultNamespace, "federation"} {
			v, _, _ := Decide(found(func(*preflight.Cluster) {}), Wishes{}, namespace, "")
			v.Features, v.Components = features, []string{MCS}
			objects := testkit.Value(Build(v))(t)
			subnets, bindings := 0, 0
			for _, o := range objects {
				text, _, _ := unstructured.NestedString(o.Object, "data", "broker.yaml")
				if o.GetLabels()["semaphore.uw.io/subnets"] == "true" && o.GetNamespace() == namespace &&
					strings.Contains(text, "localSubnets:\n- ") {
					subnets++
				}
				if in, has, _ := unstructured.NestedString(o.Object, "spec", "paramRef", "namespace"); has {
					if bindings++; in != namespace {
						t.Errorf("%v in %s: %s looks in %s", features, namespace, o.GetName(), in)
					}
				}
			}
			if subnets != 1 || bindings != 4 {
				t.Errorf("%v in %s: %d ConfigMaps with subnets, and %d policies that look for one", features, namespace,
					subnets, bindings)
			}
		}
	}
}
