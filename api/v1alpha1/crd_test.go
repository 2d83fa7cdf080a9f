package v1alpha1_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

const certificate = `"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"`

// Each rule of the definition, against a real apiserver: an object that breaks it is rejected, and the message says in
// words what is wrong and what to do.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an apiserver")
	}
	cfg := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, cfg)
	client, err := dynamic.NewForConfig(cfg)
	testkit.Must(t, err)
	remotes := client.Resource(v1alpha1.RemoteClusters)
	create := func(t *testing.T, name, spec string) error {
		t.Helper()
		var content map[string]any
		if err := yaml.Unmarshal([]byte(spec), &content); err != nil {
			t.Fatalf("%v\n%s", err, spec)
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
		o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
		o.SetName(name)
		_, err := remotes.Create(t.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		return err
	}
	const pods = "podSubnets: [10.2.0.0/16]\n"
	tests := []struct{ test, name, spec, want string }{
		{"NothingToDo", "c2", "encryption: strict",
			"spec has neither podSubnets nor broker: set podSubnets to take what the remote cluster exports"},
		{"LongName", strings.Repeat("c", 64), pods, "use 1 to 63 lower-case letters"},
		{"LongDottedName", strings.Repeat("c", 57) + ".eu-west", pods, "use 1 to 63 lower-case letters, digits, '-' and '.'"},
		{"Global", "global", pods,
			`"global" means all clusters in names such as echo.shop.svc.cluster.global: use another name`},
		{"NoCIDR", "c2", "podSubnets: [10.2.0.0]",
			`spec.podSubnets[0]: Invalid value: "10.2.0.0": "10.2.0.0" is no CIDR: use one such as 10.2.0.0/16`},
		{"MappedCIDR", "c2", `podSubnets: ["::ffff:10.2.0.0/112"]`, `"::ffff:10.2.0.0/112" is no CIDR`},
		{"BitsOutside", "c2", "podSubnets: [10.2.3.4/16]",
			"10.2.3.4/16 has bits set outside its mask: write the address of the network, such as 10.2.0.0/16"},
		{"Everything", "c2", "podSubnets: [0.0.0.0/0]",
			"0.0.0.0/0 is everything: name the subnets of the remote cluster"},
		{"NoPodSubnets", "c2", "podSubnets: []", "spec.podSubnets"},
		{"Twice", "c2", "podSubnets: [10.2.0.0/16, 10.2.0.0/16]", "Duplicate value"},
		{"NodeSubnet", "c2", pods + "nodeSubnets: [192.0.2.17/28]",
			`spec.nodeSubnets[0]: Invalid value: "192.0.2.17/28": 192.0.2.17/28 has bits set outside its mask: write the ` +
				`address of the network`},
		{"NodesInPods", "c2", pods + "nodeSubnets: [10.2.4.0/24]",
			"nodeSubnets and podSubnets overlap: packets for a tunnel would go into the tunnel"},
		{"PodsInNodes", "c2", pods + "nodeSubnets: [10.0.0.0/8]", "nodeSubnets and podSubnets overlap"},
		{"PrivateKey", "c2", pods + "trustBundle: \"-----BEGIN CERTIFICATE-----\\n-----BEGIN PRIVATE KEY-----\"",
			"trustBundle holds a private key: it has certificates only, which are public; replace that key"},
		{"NoCertificate", "c2", pods + "trustBundle: c2.pem",
			"trustBundle holds no certificate: use the PEM text that semaphorectl pki bundle prints"},
		{"NoPort", "c2", "broker: {address: broker.example.org}",
			`"broker.example.org": use host:port, such as broker.example.org:8443`},
		{"NoHost", "c2", `broker: {address: ":8443"}`, `":8443": use host:port`},
		{"PortTooHigh", "c2", `broker: {address: "b:70000"}`, `"b:70000": use host:port`},
		{"BareIPv6", "c2", `broker: {address: "fd00:2::1:8443"}`,
			"use host:port, such as broker.example.org:8443 or [fd00:2::1]:8443"},
		{"NoAddress", "c2", `broker: {}`, "spec.broker.address: Required value"},
		{"Prefix", "c2", pods + "servicePrefix: 2c",
			"servicePrefix begins the names of Services: use lower-case letters"},
		{"GlobalPrefix", "c2", pods + "servicePrefix: gl-c2",
			`names of global services begin with "gl": use another`},
		{"Encryption", "c2", pods + "encryption: on", `supported values: "strict", "permissive", "clear"`},
		{"ListenPort", "c2", pods + "wireguard: {listenPort: 70000}", "spec.wireguard.listenPort"},
		{"MTU", "c2", pods + "wireguard: {mtu: 1000}",
			"mtu: use 1280 to 65455 bytes, or leave it out so that each node derives it"},
		{"Family", "c2", pods + "wireguard: {addressFamily: ipv4}", `supported values: "IPv4", "IPv6"`},
		{"Keepalive", "c2", pods + "wireguard: {persistentKeepalive: 1500ms}",
			"1500ms: use 0s to 65535s, whole seconds"},
		{"LongKeepalive", "c2", pods + "wireguard: {persistentKeepalive: 24h}",
			"24h: use 0s to 65535s, whole seconds"},
		{"NoDuration", "c2", pods + "wireguard: {persistentKeepalive: soon}", "spec.wireguard.persistentKeepalive"},
		{"KeyMaxAge", "c2", pods + "wireguard: {keyMaxAge: 5m}", "5m: use 1h or more, or leave it out for never"},
		{"Size", "c2", pods + "size: huge", `supported values: "small", "medium", "large"`},
		{"Limit", "c2", pods + "limits: {nodes: 0}", "spec.limits.nodes"},
		{"UnknownLimit", "c2", pods + "limits: {node: 1}", `unknown field "spec.limits.node"`},
		{"UnknownField", "c2", pods + "podSubnet: x", `unknown field "spec.podSubnet"`},
		{"Kind", "c2", pods + "export: {rules: [{kinds: [encryption], action: Offer}]}",
			`supported values: "services", "policy"`},
		{"Action", "c2", pods + "export: {rules: [{kinds: [policy]}]}",
			"spec.export.rules[0].action: Required value"},
	}
	for _, test := range tests {
		t.Run(test.test, func(t *testing.T) {
			err := create(t, test.name, test.spec)
			switch {
			case err == nil:
				_ = remotes.Delete(t.Context(), test.name, metav1.DeleteOptions{})
				t.Fatal("the apiserver accepts it")
			case !errors.IsInvalid(err) && !errors.IsBadRequest(err):
				t.Fatal(err)
			case !strings.Contains(err.Error(), test.want):
				t.Fatalf("%v\nwant %s", err, test.want)
			}
		})
	}

	for name, spec := range map[string]string{
		"eu-1.example.com": pods, strings.Repeat("c", 63): pods, strings.Repeat("c", 55) + ".example": pods,
		"c2": pods, "c3": "broker: {address: \"[fd00:2::1]:8443\"}", "c-4": pods +
			"broker: {address: broker.example.org:65535}",
		"full": `
podSubnets: [10.5.0.0/16, "fd00:5::/48"]
nodeSubnets: [192.0.2.16/28, "fd00:5:1::/64"]
trustBundle: ` + certificate + `
broker: {address: 192.0.2.21:30843}
servicePrefix: aws
encryption: permissive
wireguard: {listenPort: 7775, mtu: 0, probePort: 0, addressFamily: IPv6, persistentKeepalive: 25s, keyMaxAge: 720h}
size: large
limits: {nodes: 10000, setIPs: 1000}
export: {rules: [{kinds: [services], namespaces: [shop], selector: {matchLabels: {a: b}}, action: Withhold}]}`,
	} {
		if err := create(t, name, spec); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	t.Run("ImmutablePrefix", func(t *testing.T) {
		for _, patch := range []string{`{"spec":{"servicePrefix":"other"}}`, `{"spec":{"servicePrefix":null}}`} {
			_, err := remotes.Patch(t.Context(), "full", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
			if err == nil || !strings.Contains(err.Error(), "servicePrefix is immutable") {
				t.Errorf("%s: %v", patch, err)
			}
		}
		_, err := remotes.Patch(t.Context(), "c2", "application/merge-patch+json",
			[]byte(`{"spec":{"servicePrefix":"late"}}`), metav1.PatchOptions{})
		if err == nil || !strings.Contains(err.Error(), "servicePrefix is immutable") {
			t.Errorf("a prefix that is added: %v", err)
		}
	})
	t.Run("StatusIsApart", func(t *testing.T) {
		o, err := remotes.Patch(t.Context(), "full", "application/merge-patch+json",
			[]byte(`{"spec":{"encryption":"clear"},"status":{"listenPort":7777}}`), metav1.PatchOptions{}, "status")
		testkit.Must(t, err)
		port, _, _ := unstructured.NestedInt64(o.Object, "status", "listenPort")
		encryption, _, _ := unstructured.NestedString(o.Object, "spec", "encryption")
		if port != 7777 || encryption != "permissive" {
			t.Errorf("a write of status gives listenPort %d and encryption %s, want 7777 and permissive", port, encryption)
		}
	})
}
