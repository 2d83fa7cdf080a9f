//go:build linux

package kubelet

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
