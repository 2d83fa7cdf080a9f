//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B_C": "two"}
	get := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	for in, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"$(A)":         "1",
		"x$(A)$(B_C)y": "x1twoy",
		"$(NONE)":      "$(NONE)",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$1",
		"$A $":         "$A $",
		"$(A":          "$(A",
		"100$%":        "100$%",
	} {
		if got := expand(in, get); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	a, err := newAddresses(netip.MustParsePrefix("10.1.1.7/29"))
	if err != nil {
		t.Fatal(err)
	}
	take := func(want, get string) {
		t.Helper()
		var ask netip.Addr
		if want != "" {
			ask = netip.MustParseAddr(want)
		}
		got, err := a.take(ask)
		switch get {
		case "in use":
			if !errors.Is(err, errAddressInUse) {
				t.Errorf("take(%s) = %v, %v, want it in use", want, got, err)
			}
		case "refused":
			if err == nil || errors.Is(err, errAddressInUse) {
				t.Errorf("take(%s) = %v, %v, want it refused", want, got, err)
			}
		default:
			if err != nil || got.String() != get {
				t.Errorf("take(%s) = %v, %v, want %s", want, got, err, get)
			}
		}
	}
	giveBack := func(ip string) { a.giveBack(netip.MustParseAddr(ip)) }
	take("", "10.1.1.2")
	take("10.1.1.4", "10.1.1.4")
	take("10.1.1.4", "in use")
	take("", "10.1.1.3")
	giveBack("10.1.1.4")
	giveBack("10.1.1.2")
	giveBack("10.1.1.2") // a second time does nothing
	take("", "10.1.1.5") // never used before freed
	take("", "10.1.1.6") // the last but broadcast
	take("", "10.1.1.4") // longest unused
	take("", "10.1.1.2") //
	take("", "in use")   // all are
	giveBack("10.1.1.3") //
	take("10.1.1.3", "10.1.1.3")
	giveBack("10.1.1.3") //
	take("", "10.1.1.3") //
	for _, no := range []string{"10.1.1.0", "10.1.1.1", "10.1.1.7", "10.1.1.8", "fd00::1"} {
		take(no, "refused")
	}
	for _, prefix := range []netip.Prefix{{}, netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("fd00::/64")} {
		if _, err := newAddresses(prefix); err == nil {
			t.Errorf("newAddresses(%s) did not fail", prefix)
		}
	}
}

func testNode(name string, change func(*corev1.Node)) candidate {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "zone": "z-" + name}}}
	if change != nil {
		change(n)
	}
	return candidate{n, netip.MustParsePrefix("10.1." + strings.TrimPrefix(name, "n") + ".0/24")}
}

func TestChoose(t *testing.T) {
	owned := func(p corev1.Pod, owner string) *corev1.Pod {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: &yes}}
		return &p
	}
	on := func(node string) corev1.Pod { return corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }
	affinity := func(term corev1.NodeSelectorTerm) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
		}}}}
	}
	a, b, done := on("n1"), on("n2"), on("n1")
	done.Status.Phase = corev1.PodSucceeded
	two := []candidate{testNode("n1", nil), testNode("n2", nil)}
	cordoned := []candidate{testNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true }), testNode("n2", nil)}
	for _, tc := range []struct {
		name   string
		pod    *corev1.Pod
		nodes  []candidate
		placed []*corev1.Pod
		want   string // or part of the error
	}{
		{"first of equals", &corev1.Pod{}, two, nil, "n1"},
		{"fewest pods", &corev1.Pod{}, two, []*corev1.Pod{&a, &a, &b}, "n2"},
		{"finished pods do not count", &corev1.Pod{}, two, []*corev1.Pod{&done, &done, &b}, "n1"},
		{"siblings are spread first", owned(corev1.Pod{}, "x"), two, []*corev1.Pod{owned(on("n1"), "x"), &b, &b, owned(on("n2"), "y")}, "n2"},
		{"node selector", &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "n2"}}}, two, nil, "n2"},
		{"daemonset", affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}}}), two, nil, "n2"},
		{"affinity by label", affinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"z-n1"}}}}), two, nil, "n2"},
		{"empty term", affinity(corev1.NodeSelectorTerm{}), two, nil, "n1: does not match node affinity; n2: does not match"},
		{"cordoned", &corev1.Pod{}, cordoned, []*corev1.Pod{&b}, "n2"},
		{"cordon tolerated", &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}},
			cordoned, []*corev1.Pod{&b}, "n1"},
		{"taints", &corev1.Pod{}, []candidate{
			testNode("n1", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
			}),
			testNode("n2", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}
			})}, nil, "n2"},
		{"exact address", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "10.1.2.9"}}}, two, nil, "n2"},
		{"address of no node", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "10.9.2.9"}}},
			two, nil, "10.9.2.9 is not in 10.1.1.0/24"},
		{"bad address", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "x"}}}, two, nil, AddressAnnotation},
		{"no nodes", &corev1.Pod{}, nil, nil, "none of 0 nodes"},
	} {
		got, err := choose(tc.pod, tc.nodes, tc.placed)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != tc.want || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestResolvConf(t *testing.T) {
	value := "2"
	const node = "search lab\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n"
	const cluster = "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.101.0.10\noptions ndots:5\n"
	const machine = "search lab\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions edns0\n"
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want string
	}{
		{"ClusterFirst", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, cluster},
		{"unset", corev1.PodSpec{}, cluster},
		{"ClusterFirst on host network", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, machine},
		{"ClusterFirstWithHostNet", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, cluster},
		{"Default", corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, machine},
		{"None", corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"192.0.2.9"}, Options: []corev1.PodDNSConfigOption{{Name: "rotate"}}}},
			"nameserver 192.0.2.9\noptions rotate\n"},
		{"merged", corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{
			Nameservers: []string{"10.101.0.10", "192.0.2.9"}, Searches: []string{"lab", "cluster.local"},
			Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &value}}}},
			"search shop.svc.cluster.local svc.cluster.local cluster.local lab\nnameserver 10.101.0.10\nnameserver 192.0.2.9\noptions ndots:2\n"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: tc.spec}
		got := resolvConf(pod, netip.MustParseAddr("10.101.0.10"), "cluster.local", node)
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

func TestHosts(t *testing.T) {
	ip := netip.MustParseAddr("10.1.1.2")
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		host string
		want string
	}{
		{"plain", corev1.PodSpec{}, "web-0", "10.1.1.2\tweb-0\n"},
		{"headless", corev1.PodSpec{Hostname: "web", Subdomain: "all"}, "web", "10.1.1.2\tweb.all.shop.svc.cluster.local\tweb\n"},
		{"host network", corev1.PodSpec{HostNetwork: true, Subdomain: "all"}, "n1", "10.1.1.2\tn1\n"},
		{"aliases", corev1.PodSpec{HostAliases: []corev1.HostAlias{{IP: "192.0.2.1", Hostnames: []string{"a", "b"}}}}, "web-0",
			"10.1.1.2\tweb-0\n192.0.2.1\ta\tb\n"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0"}, Spec: tc.spec}
		if got := hostname(pod, "n1"); got != tc.host {
			t.Errorf("%s: host name %q, want %q", tc.name, got, tc.host)
		}
		if diff := cmp.Diff(local+tc.want, hosts(pod, ip, "n1", "cluster.local")); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
	long := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 62) + "-b"}}
	if got := hostname(long, "n1"); got != strings.Repeat("a", 62) {
		t.Errorf("long host name %q", got)
	}
}

// fakeSources are the objects of a namespace, by name.
type fakeSources struct {
	configMaps map[string]map[string]string
	secrets    map[string]map[string][]byte
}

func (f fakeSources) configMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if data, ok := f.configMaps[name]; ok {
		return &corev1.ConfigMap{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (f fakeSources) secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if data, ok := f.secrets[name]; ok {
		return &corev1.Secret{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

func TestContainerEnv(t *testing.T) {
	yes := true
	from := fakeSources{
		configMaps: map[string]map[string]string{"cm": {"k": "v", "LEVEL": "debug"}},
		secrets:    map[string]map[string][]byte{"s": {"password": []byte("hidden")}},
	}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	configMap := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u1", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", ServiceAccountName: "sa"},
	}
	c := &corev1.Container{
		Name: "c",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceCPU: resource.MustParse("1500m")}},
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "CM_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: &yes}},
		},
		Env: []corev1.EnvVar{
			{Name: "PLAIN", Value: "x"},
			{Name: "JOINED", Value: "$(PLAIN)-$(CM_k)-$(WEB_SVC_SERVICE_HOST)-$(LATER)"},
			{Name: "LATER", Value: "y"},
			{Name: "POD_IP", ValueFrom: field("status.podIP")},
			{Name: "HOST_IP", ValueFrom: field("status.hostIP")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "APP", ValueFrom: field("metadata.labels['app']")},
			{Name: "UID", ValueFrom: field("metadata.uid")},
			{Name: "KEY", ValueFrom: configMap("cm", "k", nil)},
			{Name: "NO_KEY", ValueFrom: configMap("cm", "none", &yes)},
			{Name: "NO_MAP", ValueFrom: configMap("none", "none", &yes)},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "password"}}},
			{Name: "MEMORY", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
			{Name: "CPUS", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		},
	}
	services := []*corev1.Service{
		{ObjectMeta: metav1.ObjectMeta{Name: "web-svc"}, Spec: corev1.ServiceSpec{ClusterIP: "10.101.0.20", Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
	}
	place := placement{hostIP: netip.MustParseAddr("172.18.1.11"), podIP: netip.MustParseAddr("10.1.1.2")}
	env, err := containerEnv(t.Context(), pod, c, place, services, netip.MustParseAddrPort("10.101.0.1:443"), from)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": "web-0", "HOME": "/",
		"KUBERNETES_SERVICE_HOST": "10.101.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.101.0.1:443", "KUBERNETES_PORT_443_TCP": "tcp://10.101.0.1:443",
		"KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "10.101.0.1",
		"WEB_SVC_SERVICE_HOST": "10.101.0.20", "WEB_SVC_SERVICE_PORT": "80", "WEB_SVC_SERVICE_PORT_HTTP": "80",
		"WEB_SVC_SERVICE_PORT_DNS_UDP": "53", "WEB_SVC_PORT": "tcp://10.101.0.20:80", "WEB_SVC_PORT_80_TCP": "tcp://10.101.0.20:80",
		"WEB_SVC_PORT_80_TCP_PROTO": "tcp", "WEB_SVC_PORT_80_TCP_PORT": "80", "WEB_SVC_PORT_80_TCP_ADDR": "10.101.0.20",
		"WEB_SVC_PORT_53_UDP": "udp://10.101.0.20:53", "WEB_SVC_PORT_53_UDP_PROTO": "udp", "WEB_SVC_PORT_53_UDP_PORT": "53",
		"WEB_SVC_PORT_53_UDP_ADDR": "10.101.0.20",
		"CM_k":                     "v", "CM_LEVEL": "debug", "password": "hidden",
		"PLAIN": "x", "JOINED": "x-v-10.101.0.20-$(LATER)", "LATER": "y", "POD_IP": "10.1.1.2", "HOST_IP": "172.18.1.11",
		"NODE": "n1", "APP": "web", "UID": "u1", "KEY": "v", "SECRET": "hidden", "MEMORY": "67108864", "CPUS": "2",
	}
	if diff := cmp.Diff(want, env.values); diff != "" {
		t.Error(diff)
	}
	if list := env.list(); len(list) != len(want) {
		t.Errorf("%d variables in %v", len(list), list)
	}

	for name, source := range map[string]*corev1.EnvVarSource{
		`no key none`:        configMap("cm", "none", nil),
		`not found`:          configMap("none", "k", nil),
		`spec.what`:          field("spec.what"),
		`not supported`:      {},
		`sets no limits.gpu`: {ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.gpu"}},
	} {
		bad := &corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "BAD", ValueFrom: source}}}
		_, err := containerEnv(t.Context(), pod, bad, place, nil, netip.AddrPort{}, from)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "BAD") {
			t.Errorf("error %v, want one about BAD with %q", err, name)
		}
	}
}

func TestIdentity(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	yes := true
	all := defaultCapabilities
	for _, tc := range []struct {
		name  string
		pod   *corev1.PodSecurityContext
		own   *corev1.SecurityContext
		image Image
		want  identity
		err   string
	}{
		{name: "plain", want: identity{capabilities: &all}},
		{name: "privileged", own: &corev1.SecurityContext{Privileged: &yes}, want: identity{}},
		{name: "agent", own: &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}},
			want: identity{capabilities: &[]string{"NET_ADMIN"}, readOnlyRoot: true}},
		{name: "one dropped", own: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"CAP_AUDIT_WRITE"}}},
			want: identity{capabilities: ptr(all[1:])}},
		{name: "user of the pod", pod: &corev1.PodSecurityContext{RunAsUser: number(5), RunAsGroup: number(6), FSGroup: number(7),
			SupplementalGroups: []int64{8}, RunAsNonRoot: &yes}, want: identity{user: 5, group: 6, groups: []int{8, 7}, capabilities: &all}},
		{name: "user of the container wins", pod: &corev1.PodSecurityContext{RunAsUser: number(5)},
			own: &corev1.SecurityContext{RunAsUser: number(9)}, want: identity{user: 9, capabilities: &all}},
		{name: "user of the image", image: Image{User: 65532, Group: 65532}, pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes},
			want: identity{user: 65532, group: 65532, capabilities: &all}},
		{name: "root forbidden", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, err: "runAsUser"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: tc.pod}}
		got, err := containerIdentity(pod, &corev1.Container{SecurityContext: tc.own}, tc.image)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(identity{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tc.name, err, diff)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestTokenOwner(t *testing.T) {
	user := func(n int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &n} }
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want int
	}{
		{"nobody says", corev1.PodSpec{Containers: []corev1.Container{{}}}, -1},
		{"one user", corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: user(5)}, {SecurityContext: user(5)}}}, 5},
		{"two users", corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: user(5)}, {SecurityContext: user(6)}}}, -1},
		{"pod's user", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr(int64(7))}, Containers: []corev1.Container{{}}}, 7},
		{"fsGroup decides", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr(int64(7))},
			Containers: []corev1.Container{{SecurityContext: user(5)}}}, -1},
	} {
		if got := tokenOwner(&corev1.Pod{Spec: tc.spec}); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestTokenRefresh(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		life      time.Duration
		requested *int64
		want      time.Duration
	}{
		{time.Hour, nil, 48 * time.Minute},
		{10 * time.Minute, ptr(int64(600)), 8 * time.Minute},
		{365 * 24 * time.Hour, ptr(int64(3607)), 3607 * time.Second * 8 / 10}, // an extended token
		{365 * 24 * time.Hour, nil, 24 * time.Hour},
	} {
		if got := tokenRefresh(now, now.Add(tc.life), tc.requested).Sub(now); got != tc.want {
			t.Errorf("life %s: refresh after %s, want %s", tc.life, got, tc.want)
		}
	}
}

func TestPodStatus(t *testing.T) {
	now := time.Unix(2000, 0)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	exited := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCreating}}
	one := func(c containerObservation) []containerObservation { c.name = "c"; return []containerObservation{c} }
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for _, tc := range []struct {
		name   string
		policy corev1.RestartPolicy
		o      observation
		phase  corev1.PodPhase
		ready  corev1.ConditionStatus
		init   corev1.ConditionStatus
		reason string // of Ready
	}{
		{"starting", always, observation{initialized: true, containers: one(containerObservation{state: waiting})},
			corev1.PodPending, "False", "True", "ContainersNotReady"},
		{"initializing", always, observation{inits: one(containerObservation{state: running}), containers: one(containerObservation{state: waiting})},
			corev1.PodPending, "False", "False", "ContainersNotReady"},
		{"init failed, retried", always, observation{inits: one(containerObservation{state: waiting, last: exited(1)}),
			containers: one(containerObservation{state: waiting})}, corev1.PodPending, "False", "False", "ContainersNotReady"},
		{"init failed for good", never, observation{inits: one(containerObservation{state: exited(1)}),
			containers: one(containerObservation{state: waiting})}, corev1.PodFailed, "False", "False", "PodFailed"},
		{"running, not ready", always, observation{initialized: true, containers: one(containerObservation{state: running})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"ready", always, observation{initialized: true, containers: one(containerObservation{state: running, ready: true})},
			corev1.PodRunning, "True", "True", ""},
		{"crash loop", always, observation{initialized: true, containers: one(containerObservation{state: waiting, last: exited(1)})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"done", onFailure, observation{initialized: true, containers: one(containerObservation{state: exited(0)})},
			corev1.PodSucceeded, "False", "True", "PodCompleted"},
		{"failed, retried", onFailure, observation{initialized: true, containers: one(containerObservation{state: waiting, last: exited(1)})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"failed", never, observation{initialized: true, containers: one(containerObservation{state: exited(1)})},
			corev1.PodFailed, "False", "True", "PodFailed"},
		{"one of two done", never, observation{initialized: true, containers: append(
			one(containerObservation{state: exited(0)}), containerObservation{state: running, ready: true})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"deleted, all exited 0", always, observation{initialized: true, ended: true, containers: one(containerObservation{state: exited(0)})},
			corev1.PodSucceeded, "False", "True", "PodCompleted"},
		{"deleted, killed", always, observation{initialized: true, ended: true, containers: one(containerObservation{state: exited(137)})},
			corev1.PodFailed, "False", "True", "PodFailed"},
		{"deleted before it ran", always, observation{ended: true, containers: one(containerObservation{state: waiting})},
			corev1.PodFailed, "False", "False", "PodFailed"},
		{"rejected", always, observation{reason: "No", containers: one(containerObservation{state: waiting})},
			corev1.PodFailed, "False", "False", "PodFailed"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: tc.policy}}
		tc.o.accepted = now
		s := podStatus(pod, &corev1.PodStatus{}, tc.o, now)
		got := map[corev1.PodConditionType]corev1.PodCondition{}
		for _, c := range s.Conditions {
			got[c.Type] = c
		}
		if s.Phase != tc.phase || got[corev1.PodReady].Status != tc.ready || got[corev1.ContainersReady].Status != tc.ready ||
			got[corev1.PodInitialized].Status != tc.init || got[corev1.PodReady].Reason != tc.reason ||
			got[corev1.PodScheduled].Status != corev1.ConditionTrue {
			t.Errorf("%s: phase %s, conditions %+v", tc.name, s.Phase, s.Conditions)
		}
	}
}

func TestPodStatusKeeps(t *testing.T) {
	then, now := time.Unix(1000, 0), time.Unix(2000, 0)
	pod := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}}}
	running := observation{
		accepted: then, initialized: true,
		place:      placement{hostIP: netip.MustParseAddr("172.18.1.11"), podIP: netip.MustParseAddr("10.1.1.2")},
		containers: []containerObservation{{name: "c", ready: true, started: true, restarts: 2, state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	foreign := corev1.PodCondition{Type: "example.com/other", Status: corev1.ConditionTrue, LastTransitionTime: atSecond(then)}
	first := podStatus(pod, &corev1.PodStatus{Conditions: []corev1.PodCondition{foreign}}, running, then)
	again := podStatus(pod, &first, running, now)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("a status changed with time alone:\n%s", diff)
	}
	condition := func(s corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
		for _, c := range s.Conditions {
			if c.Type == kind {
				return c
			}
		}
		return corev1.PodCondition{}
	}
	if got := condition(first, "example.com/other"); got != foreign {
		t.Errorf("condition of others: %+v", got)
	}
	if got := condition(first, corev1.PodReady); got.Reason != "ReadinessGatesNotReady" || !strings.Contains(got.Message, "example.com/gate") {
		t.Errorf("ready without its gate: %+v", got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue}}
	open := podStatus(pod, &first, running, now)
	if got := condition(open, corev1.PodReady); got.Status != corev1.ConditionTrue || !got.LastTransitionTime.Time.Equal(now) {
		t.Errorf("ready with its gate: %+v", got)
	}
	if got := condition(open, corev1.ContainersReady); !got.LastTransitionTime.Time.Equal(then) {
		t.Errorf("transition time of an unchanged condition: %+v", got)
	}
	if open.PodIP != "10.1.1.2" || open.HostIPs[0].IP != "172.18.1.11" || open.ContainerStatuses[0].RestartCount != 2 {
		t.Errorf("status %+v", open)
	}
	patch, err := statusPatch("u1", &first, &open)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"uid":"u1"`, `"type":"Ready"`} {
		if !strings.Contains(string(patch), want) {
			t.Errorf("patch lacks %s: %s", want, patch)
		}
	}
	for _, no := range []string{"containerStatuses", "podIP", `"type":"Initialized","`} {
		if strings.Contains(string(patch), no) {
			t.Errorf("patch has %s, which did not change: %s", no, patch)
		}
	}
}

func TestProbeOutcome(t *testing.T) {
	// Attempts: '+' success, '-' failure on its period, '.' failure between. Changes: 'R'eady, 'U'nready, ' ' none.
	for _, tc := range []struct {
		successes, failures int
		attempts, changes   string
	}{
		{1, 3, "+++", "R  "},
		{1, 3, "---", "  U"},
		{1, 3, "-..-..-..-", "      U   "},
		{1, 3, "--+---", "  R  U"},
		{1, 1, "-+-+", "URUR"},
		{3, 1, "++-+++", "  U  R"},
		{2, 3, "+.+.++", "     R"},
		{1, 3, "+--+--+", "R      "},
	} {
		o := probeOutcome{successes: tc.successes, failures: tc.failures}
		got := ""
		for _, a := range tc.attempts {
			change := " "
			if o.add(a == '+', a != '.') {
				change = map[bool]string{true: "R", false: "U"}[o.ok]
			}
			got += change
		}
		if got != tc.changes {
			t.Errorf("%d/%d %q: changes %q, want %q", tc.successes, tc.failures, tc.attempts, got, tc.changes)
		}
	}
}

func TestImageName(t *testing.T) {
	for in, want := range map[string]string{
		"semaphore":                                        "semaphore",
		"semaphore:v1":                                     "semaphore",
		"ghcr.io/kube-semaphore/semaphore:v1":              "semaphore",
		"localhost:5000/coredns":                           "coredns",
		"registry.example/x/testbed@sha256:abcdef":         "testbed",
		"registry.example:5000/x/testbed:v1@sha256:abcdef": "testbed",
	} {
		if got := imageName(in); got != want {
			t.Errorf("imageName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestRestartBackoff(t *testing.T) {
	var got []time.Duration
	for n := 1; n <= 6; n++ {
		got = append(got, restartBackoff(n))
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{s, 2 * s, 4 * s, 8 * s, 10 * s, 10 * s}, got); diff != "" {
		t.Error(diff)
	}
	if restartBackoff(1000) != 10*s {
		t.Error("backoff overflows")
	}
}

func TestNames(t *testing.T) {
	// printf default.web-0 | sha1sum
	if got := VethName("default", "web-0"); got != "cali0d7763386da" {
		t.Errorf("veth name %q", got)
	}
	long := strings.Repeat("p", 253)
	a, b := netnsName("sb-1-", "ns", long), netnsName("sb-1-", "ns", long+"2")
	if len(a) > 255 || a == b {
		t.Errorf("names of long pods: %q, %q", a, b)
	}
	if got := netnsName("sb-1-c1-p-", "ns", "pod"); got != "sb-1-c1-p-ns.pod" {
		t.Errorf("netnsName = %q", got)
	}
	for path, want := range map[string]string{
		"/var/lib/x": "/disk/var/lib/x", "/dev/net/tun": "/dev/net/tun", "/../etc": "/disk/etc", "/dev/../etc": "/disk/etc",
	} {
		if got := hostPath("/disk", path); got != want {
			t.Errorf("hostPath(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	read := func() map[string]string {
		got := map[string]string{}
		names, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
		if err != nil {
			t.Fatal(err)
		}
		below, err := filepath.Glob(filepath.Join(dir, "[^.]*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(names, below...) {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				t.Fatal(err)
			}
			got[rel] = string(data)
		}
		return got
	}
	file := func(s string) volumeFile { return volumeFile{data: []byte(s), mode: 0o640, user: -1} }
	for i, tc := range []struct {
		files   map[string]volumeFile
		changed bool
	}{
		{map[string]volumeFile{"a": file("1"), "dir/b": file("2")}, true},
		{map[string]volumeFile{"a": file("1"), "dir/b": file("2")}, false},
		{map[string]volumeFile{"a": file("3"), "dir/b": file("2")}, true},
		{map[string]volumeFile{"c": file("4"), "dir/d": file("5")}, true},
		{nil, true},
		{nil, false},
	} {
		changed, err := writeAtomic(dir, tc.files, -1)
		if err != nil || changed != tc.changed {
			t.Fatalf("step %d: changed %v, %v", i, changed, err)
		}
		want := map[string]string{}
		for name, f := range tc.files {
			want[name] = string(f.data)
		}
		if diff := cmp.Diff(want, read()); diff != "" {
			t.Errorf("step %d:\n%s", i, diff)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left besides ..data and its directory: %v, %v", entries, err)
	}
	for _, name := range []string{"../x", "/x", "..x", "a/../../x"} {
		if _, err := writeAtomic(dir, map[string]volumeFile{name: file("")}, -1); err == nil {
			t.Errorf("path %q was accepted", name)
		}
	}
}

func TestTokensAreReplaced(t *testing.T) {
	asked := 0
	v := volumes{dir: t.TempDir(), from: fakeSources{}, request: func(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		asked++
		if namespace != "shop" || account != "sa" || r.Spec.BoundObjectRef.UID != "u1" || r.Spec.Audiences[0] != "broker" {
			t.Errorf("request for %s/%s: %+v", namespace, account, r.Spec)
		}
		if asked == 2 {
			return nil, errors.New("apiserver is away")
		}
		r.Status.Token = fmt.Sprintf("token %d", asked)
		r.Status.ExpirationTimestamp = metav1.NewTime(time.Unix(1600, 0))
		return r, nil
	}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u1"},
		Spec: corev1.PodSpec{ServiceAccountName: "sa", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "broker", Path: "token"}}}}}}}},
	}
	for _, step := range []struct {
		at   int64 // seconds
		want string
		next int64
		err  bool
	}{
		{1000, "token 1", 1480, false},
		{1479, "token 1", 1480, false},
		{1480, "token 1", 0, true}, // the old one stays while there is no new one
		{1481, "token 3", 1576, false},
	} {
		next, err := v.render(t.Context(), pod, placement{}, time.Unix(step.at, 0))
		if (err != nil) != step.err || !step.err && next.Unix() != step.next {
			t.Errorf("at %d: next %d, error %v", step.at, next.Unix(), err)
		}
		if data, err := os.ReadFile(filepath.Join(v.dir, "v", "token")); err != nil || string(data) != step.want {
			t.Errorf("at %d: %q, %v, want %q", step.at, data, err, step.want)
		}
	}
}

func TestSubPath(t *testing.T) {
	dir := t.TempDir()
	if _, err := writeAtomic(dir, map[string]volumeFile{"a": {mode: 0o644, user: -1}}, -1); err != nil {
		t.Fatal(err)
	}
	if got, err := subPath(dir, "a", false); err != nil || strings.Contains(got, dataLink+"/") {
		t.Errorf("subPath = %q, %v, want the file itself", got, err)
	}
	if _, err := subPath(dir, "none", false); err == nil {
		t.Error("a missing file was found")
	}
	if got, err := subPath(dir, "made", true); err != nil || got != filepath.Join(dir, "made") {
		t.Errorf("subPath = %q, %v", got, err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"out", "../x", "/etc"} {
		if got, err := subPath(dir, path, true); err == nil {
			t.Errorf("subPath(%q) = %q, want an error", path, got)
		}
	}
}

func TestConfigValidation(t *testing.T) {
	_, err := New(Config{Nodes: []Node{{}, {Name: "n1"}, {Name: "n1"}}})
	for _, want := range []string{"REST", "Dir", "ClusterDNS", "ClusterDomain", "NetnsPrefix", "Nodes[0].Name", "Nodes[1].Netns", "Nodes[2].Name", "Nodes[1].Root"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
}
