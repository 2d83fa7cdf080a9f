package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestLoadExporter(t *testing.T) {
	c := testkit.Value(Load[Exporter](write(t, `
cluster: c1
features: [services, policy]
localBroker: {address: "[fd00::1]:8443"}
listen:
  debug: :8444
kube: {qps: 0.3}
`)))(t)
	want := &Exporter{
		Cluster:        "c1",
		Features:       Features{Services, Policy},
		LocalBroker:    ExporterBroker{Cluster: "c1", Address: "[fd00::1]:8443"},
		ServiceLabels:  LabelKeys{"app.kubernetes.io/*"},
		MirrorSelector: "mirror.semaphore.uw.io/mirror-service=true",
		GlobalSelector: "mirror.semaphore.uw.io/global-service=true",
		LabelDomains:   []string{"semaphore.uw.systems"},
		Events:         true,
		AllowedIPs:     AutoAllowedIPs,
		TLS:            TLS{"/etc/semaphore/tls/tls.crt", "/etc/semaphore/tls/tls.key", "/etc/semaphore/bundles", ""},
		Kube:           Kube{QPS: 0.3},
		WireGuard:      DevicePorts{"7775-8030", 7775, 8030},
		LeaderElection: LeaderElection{Enabled: true, Lease: "semaphore-exporter-leader",
			Duration: Duration{Duration: 15 * time.Second}},
	}
	want.Listen.HTTP, want.Listen.Debug, want.Listen.DebugSocket = ":8080", ":8444", "/run/semaphore/exporter.sock"
	want.SubnetsFile = "/etc/semaphore/subnets/broker.yaml"
	want.Mirror = testkit.Value(labels.Parse(want.MirrorSelector))(t)
	want.Global = testkit.Value(labels.Parse(want.GlobalSelector))(t)
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if c.Features.Has(Encryption) || !c.Features.Has(Policy) {
		t.Errorf("features %v", c.Features)
	}
}

// TestEncryption: a remote has the value of the file unless it sets its own. An invalid value is an error with its
// field.
func TestEncryption(t *testing.T) {
	const text = `
cluster: c1
encryption: %s
localSubnets: [10.1.0.0/16]
remotes:
  - {name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24]}
  - {name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 51821}, encryption: %s}
`
	c, err := Parse[described](fmt.Appendf(nil, text, "permissive", "strict"))
	testkit.Must(t, err)
	if c.Remotes[0].Encryption != Permissive || c.Remotes[1].Encryption != Strict {
		t.Errorf("%s, %s", c.Remotes[0].Encryption, c.Remotes[1].Encryption)
	}
	c, err = Parse[described](fmt.Appendf(nil, text, "clear", "strict"))
	if err != nil || c.Remotes[0].Encryption != Clear || !c.Remotes[0].Encryption.Passes() ||
		c.Remotes[1].Encryption.Passes() {
		t.Errorf("%v, %v", c, err)
	}
	_, err = Parse[described](fmt.Appendf(nil, text, "none", "maybe"))
	for _, want := range []string{`encryption: "none": use strict; permissive while`, `remotes[1].encryption: "maybe"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

func TestLoadBroker(t *testing.T) {
	// JSON is YAML.
	c := testkit.Value(Load[described](write(t, `{
  "cluster": "c1", "localSubnets": ["10.1.0.0/16", "fd00:1::/48"], "manageIPPools": true, "manageCoreDNS": true,
  "remotes": [
    {"name": "c2", "podSubnets": ["10.2.0.0/16"], "nodeSubnets": ["172.18.2.0/24"], "servicePrefix": "two",
     "limits": {"nodes": 7},
     "wireguard": {"mtu": 1380, "probePort": 0, "persistentKeepalive": "25s"}},
    {"name": "c3", "podSubnets": ["10.3.0.0/16", "fd00:3::/48"], "nodeSubnets": ["172.18.3.0/24", "fd00:33::/64"],
     "wireguard": {"listenPort": 51821, "persistentKeepalive": null}}
  ]
}`)))(t)
	limits := Limits{
		Size:  Medium,
		Nodes: 1_000, PodCIDRs: 10_000, PodCIDRsPerNode: 64, Services: 2_000, PortsPerService: 100, ClusterIPs: 1_000,
		Exports: 1_000, EndpointSlices: 10_000, Endpoints: 100_000, EndpointsPerService: 10_000,
		SetMembers: 100_000, SetIPs: 200_000,
		IPsPerSet:        200_000,
		MebibytesPerKind: 64, KibibytesPerSecond: 1024, ChangesPerSecond: 1_000, StreamsPerMinute: 30,
	}
	less := limits
	less.Nodes = 7
	want := &Broker{
		Cluster:      "c1",
		Features:     Features{Encryption, Services, Policy},
		Encryption:   Strict,
		LocalSubnets: []string{"10.1.0.0/16", "fd00:1::/48"},
		Remotes: []Remote{
			{
				Name: "c2", PodSubnets: []string{"10.2.0.0/16"}, NodeSubnets: []string{"172.18.2.0/24"}, ServicePrefix: "two",
				WireGuard: WireGuard{ListenPort: defaultListenPort, MTU: 1380, AddressFamily: IPv4, ProbePort: new(uint16(0)),
					PersistentKeepalive: Duration{Duration: 25 * time.Second}},
				Encryption:   Strict,
				Limits:       less,
				PodPrefixes:  []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
				NodePrefixes: []netip.Prefix{netip.MustParsePrefix("172.18.2.0/24")},
			},
			{
				Name: "c3", PodSubnets: []string{"10.3.0.0/16", "fd00:3::/48"},
				NodeSubnets: []string{"172.18.3.0/24", "fd00:33::/64"}, ServicePrefix: "c3",
				WireGuard:    WireGuard{ListenPort: 51821, ProbePort: new(uint16(7774))},
				Encryption:   Strict,
				Limits:       limits,
				PodPrefixes:  []netip.Prefix{netip.MustParsePrefix("10.3.0.0/16"), netip.MustParsePrefix("fd00:3::/48")},
				NodePrefixes: []netip.Prefix{netip.MustParsePrefix("172.18.3.0/24"), netip.MustParsePrefix("fd00:33::/64")},
			},
		},
		WireGuard:       DevicePorts{"7775-8030", 7775, 8030},
		NodeEndpoints:   []EndpointKind{InternalIP},
		MirrorNamespace: "semaphore",
		LabelDomains:    []string{"semaphore.uw.systems"},
		Sets:            Sets{MaxSize: 1_000, ManagedBy: "semaphore-policy"},
		Services:        Mirrors{Labels: LabelKeys{"app.kubernetes.io/*"}},
		Slices:          Slices{MaxEndpoints: 100},
		GlobalServices: GlobalServices{
			Limits: OwnLimits{2_000, 10_000, 100_000, 10_000}, SilentAfter: Duration{Duration: 30 * time.Second},
			Settle: Duration{Duration: 30 * time.Second},
		},
		ManageIPPools: true, ManageCoreDNS: true,
		AllowedIPs: AutoAllowedIPs,
		MCS: BrokerMCS{DenyNamespaces: []string{"kube-*", "calico-*", "tigera-operator"},
			EndpointSlices: AllImportSlices, Settle: Duration{Duration: 1500 * time.Millisecond}},
		Brake:  Brake{Percent: 50, AtLeast: 20, Hold: Duration{Duration: time.Hour}},
		Agents: Agents{"semaphore", "semaphore-agent", "semaphore-broker.c1"},
		TLS:    TLS{"/etc/semaphore/tls/tls.crt", "/etc/semaphore/tls/tls.key", "/etc/semaphore/bundles", ""},
		Kube:   Kube{QPS: 1000},
		LeaderElection: LeaderElection{Enabled: true, Lease: "semaphore-broker-leader",
			Duration: Duration{Duration: 15 * time.Second}},
		LocalPrefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")},
	}
	want.Listen.Federation, want.Listen.Peering, want.Listen.HTTP = ":8443", ":8444", ":8080"
	want.Listen.DebugSocket = "/run/semaphore/broker.sock"
	want.Listen.Services = []string{"semaphore-broker", "semaphore-broker-federation"}
	if !reflect.DeepEqual(&c.Broker, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	if r, ok := c.Remote("c3"); !ok || r != &c.Remotes[1] {
		t.Errorf("Remote(c3) = %v, %v", r, ok)
	}
	if r, ok := c.Remote("c1"); ok || r != nil {
		t.Errorf("Remote(c1) = %v, %v", r, ok)
	}
}

// TestR23RemotesShareTheAddressesOfSets (R23): the addresses of all remotes' sets fit into one ipset, however many
// remotes there are.
func TestR23RemotesShareTheAddressesOfSets(t *testing.T) {
	var file strings.Builder
	file.WriteString("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nfeatures: [policy]\nremotes:\n")
	for i := range 100 {
		fmt.Fprintf(&file, "- {name: r%d, podSubnets: [10.%d.0.0/16]}\n", i, 100+i)
	}
	for _, r := range testkit.Value(Parse[described]([]byte(file.String())))(t).Remotes {
		if r.Limits.SetIPs != 10_000 || r.Limits.SetMembers != 100_000 {
			t.Fatalf("limits of %s: %+v", r.Name, r.Limits)
		}
	}
}

// TestSizes: a size has the limits that docs/configuration.md has in its column, for one remote; those that are given
// stand.
func TestSizes(t *testing.T) {
	data := testkit.Value(os.ReadFile("../../docs/configuration.md"))(t)
	rows := regexp.MustCompile("(?m)^\\| `spec[.]limits[.](\\w+)` \\| [^|]+ \\| `(\\d+)` \\| `(\\d+)` \\| `(\\d+)` \\|").
		FindAllStringSubmatch(string(data), -1)
	for i, size := range []Size{Small, Medium, Large} {
		want := map[string]int{}
		for _, row := range rows {
			want[row[1]] = testkit.Value(strconv.Atoi(row[2+i]))(t)
		}
		l, ok := LimitsOf(size, 1)
		text := testkit.Value(json.Marshal(l))(t)
		got := map[string]int{}
		testkit.Must(t, json.Unmarshal(text, &got))
		if !ok || l.Size != size || !maps.Equal(got, want) {
			t.Errorf("%s has %v, documented is %v", size, got, want)
		}
		if l, _ := LimitsOf(size, 1_000); l.SetIPs != 1_000 || l.IPsPerSet != 1_000 {
			t.Errorf("%s: %d addresses in sets of each of 1,000 remotes", size, l.SetIPs)
		}
	}
	c, err := Parse[described]([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nfeatures: [policy]\nremotes:\n" +
		"- {name: c2, podSubnets: [10.2.0.0/16], size: large, limits: {nodes: 7}}\n"))
	testkit.Must(t, err)
	want, _ := LimitsOf(Large, 1)
	want.Nodes = 7
	if got := c.Remotes[0].Limits; got != want {
		t.Errorf("large with 7 nodes has %+v, want %+v", got, want)
	}
}

func TestLoadWorkloadAPI(t *testing.T) {
	c := testkit.Value(Load[Exporter](write(t,
		"cluster: c1\ntls: {workloadAPI: 'unix:///run/spire/agent.sock'}\n")))(t)
	if want := (TLS{WorkloadAPI: "unix:///run/spire/agent.sock"}); c.TLS != want {
		t.Errorf("got %+v; want no file beside it", c.TLS)
	}
}

func TestLoadAgent(t *testing.T) {
	c := testkit.Value(Load[Agent](write(t, "cluster: c1\nbackend: userspace\n")))(t)
	want := &Agent{Cluster: "c1", SubnetsFile: "/etc/semaphore/subnets/broker.yaml",
		WGKeyPath: "/var/lib/semaphore-wireguard", StateFile: "/var/lib/semaphore-wireguard/agent.state",
		Backend: "userspace", GuardInbound: true, RouteSource: "auto", PeerMetrics: "all"}
	want.Routing.Table, want.Routing.RulePriority = 7394, 94
	want.Broker.Address = "semaphore-broker.semaphore.svc:8444"
	want.Broker.BundleFile = "/etc/semaphore/bundles/c1.pem"
	want.Broker.TokenFile = "/var/run/secrets/semaphore/token"
	want.Listen.HTTP, want.Listen.DebugSocket, want.Listen.Probe = ":7773", "/run/semaphore/agent.sock", ":7774"
	want.AllowedPrefixes, want.LocalPrefixes, want.PeerMetricsPrefixes = []netip.Prefix{}, []netip.Prefix{},
		[]netip.Prefix{}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// Without the file, the operator must configure both.
func TestWithoutSubnetsFile(t *testing.T) {
	for text, word := range map[string]string{
		"subnetsFile: none": "localSubnets",
		"subnetsFile: none\nlocalSubnets: [10.1.0.0/16]":                                "allowedSubnets",
		"subnetsFile: none\nallowedSubnets: [10.2.0.0/16]":                              "localSubnets",
		"subnetsFile: broker.yaml":                                                      "subnetsFile",
		"subnetsFile: none\nlocalSubnets: [10.1.0.0/16]\nallowedSubnets: [10.2.0.0/16]": "",
	} {
		_, err := Parse[Agent]([]byte("cluster: c1\n" + text))
		if word == "" && err != nil || word != "" && (err == nil || !strings.Contains(err.Error(), word+":")) {
			t.Errorf("%s: error %v; want it to name %q", text, err, word)
		}
	}
}

func TestLoadAgentsSubnets(t *testing.T) {
	c := testkit.Value(Load[Agent](write(t,
		"cluster: c1\nallowedSubnets: [10.0.0.0/8, 'fd02::/48']\nlocalSubnets: [10.1.0.0/16]\n")))(t)
	if len(c.AllowedPrefixes) != 2 || c.AllowedPrefixes[1] != netip.MustParsePrefix("fd02::/48") ||
		len(c.LocalPrefixes) != 1 {
		t.Errorf("%v, %v", c.AllowedPrefixes, c.LocalPrefixes)
	}
	refuses[Agent](t, "cluster: c1\n", map[string]string{"allowedSubnets: [10.0.0.1/8]": "allowedSubnets",
		"localSubnets: [x]": "localSubnets",
		"allowedSubnets: [10.1.2.0/24]\nlocalSubnets: [10.1.0.0/16]": "allowedSubnets"})
}

func TestLoadAgentsRouting(t *testing.T) {
	for key, values := range map[string][]string{"table": {"255", "254", "0", "2147483648"},
		"rulePriority": {"0", "32766", "-1"}} {
		for _, value := range values {
			refuses[Agent](t, "cluster: c1\n", map[string]string{"routing: {" + key + ": " + value + "}": "routing." + key})
		}
	}
	if c, err := Load[Agent](write(t, "cluster: c1\nrouting: {table: 256, rulePriority: 32765}\n")); err != nil ||
		c.Routing.Table != 256 || c.Routing.RulePriority != 32765 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	path := write(t, "cluster: C1\n")
	if _, err := Load[Agent](path); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "cluster:") {
		t.Errorf("error %v; want the file and the field", err)
	}
	if _, err := Load[Agent](path + ".not"); err == nil || !strings.Contains(err.Error(), path+".not") {
		t.Errorf("error %v; want the file", err)
	}
}

// refuses expects an error that has the text for each end of a file.
func refuses[T any, P interface {
	*T
	validator
}](t *testing.T, begin string, wants map[string]string) {
	t.Helper()
	for text, want := range wants {
		if _, err := Parse[T, P]([]byte(begin + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, and not %q", text, err, want)
		}
	}
}

// bad is an invalid file. Each of wants begins a line of the error, with the field and the reason.
type bad struct {
	name, file string
	wants      []string
}

func TestBadExporter(t *testing.T) {
	const brokers = "localBroker: {address: 'b:1'}\n"
	const good = "cluster: c1\n" + brokers
	testBad[Exporter](t, []bad{
		{"empty file", "", []string{`cluster: "" is no cluster name`}},
		{"null", "null", []string{"cluster:"}},
		{"comment only", "# nothing\n", []string{"cluster:"}},
		{"no map", "- cluster: c1\n", []string{"found array at the top of the file, want keys with values"}},
		{"no YAML", "cluster: [c1\n", []string{"yaml: line "}},
		{"several documents", good + "---\n" + good, []string{"the file holds several YAML documents"}},
		{"several documents, end marker", good + "...\n---\ncluster: c2\n",
			[]string{"the file holds several YAML documents"}},
		{"unknown key", good + "clusters: c1\n", []string{`unknown field "clusters"`}},
		{"unknown keys below", good + "listen: {htpp: ':1', debag: ':2'}\n",
			[]string{`unknown field "listen.htpp"`, `unknown field "listen.debag"`}},
		{"unknown key below", "cluster: c1\nlocalBroker: {adress: 'b:1'}\n", []string{`unknown field "localBroker.adress"`}},
		{"key in other case", brokers + "Cluster: c1\n", []string{`unknown field "Cluster"`, "cluster:"}},
		{"key twice", "cluster: c1\ncluster: c2\n" + brokers,
			[]string{"yaml: unmarshal errors:", `  line 2: key "cluster" already set in map`}},
		{"number for text", "cluster: 1\n" + brokers,
			[]string{"cluster: found number, want text (in quotes, where it looks like something else)"}},
		{"yes for text", "cluster: yes\n" + brokers, []string{"cluster: found bool, want text"}},
		{"list for text", "cluster: [c1]\n" + brokers, []string{"cluster: found array, want text"}},
		{"text for list", "cluster: c1\npodSubnets: c2\n", []string{"podSubnets: found string, want a list"}},
		{"text for keys", good + "kube: fast\n", []string{"kube: found string, want keys with values"}},
		{"text for number", good + "kube: {qps: fast}\n", []string{"kube.qps: found string, want a number"}},
		{"upper case", "cluster: C1\n" + brokers, []string{`cluster: "C1" is no cluster name`}},
		{"two dots", "cluster: c..1\n" + brokers, []string{`cluster: "c..1" is no cluster name`}},
		{"slash", "cluster: ../c1\n" + brokers, []string{`cluster: "../c1" is no cluster name`}},
		{"dash first", "cluster: -c\n" + brokers, []string{`cluster: "-c" is no cluster name`}},
		{"dash last", "cluster: c-\n" + brokers, []string{`cluster: "c-" is no cluster name`}},
		{"newline", "cluster: \"c1\\n\"\n" + brokers, []string{`cluster: "c1\n" is no cluster name`}},
		{"64 letters", "cluster: " + strings.Repeat("c", 64) + "\n" + brokers, []string{`cluster: "cccc`}},
		{"unknown feature", good + "features: [services, wireguard]\n",
			[]string{`features[1]: "wireguard" is no feature; use encryption, services, policy`}},
		{"no features", good + "features: []\n", []string{"features: none"}},
		{"no broker: RemoteClusters name the others", "cluster: c1\n", nil},
		{"no range of ports", "cluster: c1\nwireguard: {portRange: '7775'}\n",
			[]string{`wireguard.portRange: "7775": use the first and the last UDP port`}},
		{"no URI of a Workload API", good + "tls: {workloadAPI: /run/spire/agent.sock}\n",
			[]string{`tls.workloadAPI: "/run/spire/agent.sock": use the URI of a unix socket`}},
		{"Workload API over a network", good + "tls: {workloadAPI: 'tcp://127.0.0.1:8081'}\n",
			[]string{`tls.workloadAPI: "tcp://127.0.0.1:8081"`}},
		{"Workload API and files", good +
			"tls: {workloadAPI: 'unix:///run/spire/agent.sock', certFile: /a, keyFile: /b, bundleDir: /c}\n", []string{
			`tls.certFile: "/a" is given, and tls.workloadAPI too`, `tls.keyFile: "/b" is given, and tls.workloadAPI too`,
			`tls.bundleDir: "/c" is given, and tls.workloadAPI too`}},
		{"own broker", good, nil},
		{"own broker without services", good + "features: [encryption, policy]\n",
			[]string{"localBroker.address: the broker of this cluster itself receives global services only"}},
		{"broker of another cluster", "cluster: c1\nlocalBroker: {cluster: c2, address: 'b:1'}\n",
			[]string{`localBroker.cluster: "c2" is another cluster: make a RemoteCluster for it`}},
		{"broker of another cluster without an address",
			"cluster: c1\nlocalBroker: {cluster: c2}\nkube: {kubeConfigPath: /etc/k}\n",
			[]string{`localBroker.address: "": use host:port`}},
		{"broker without a host", "cluster: c1\nlocalBroker: {address: ':8443'}\n", []string{"localBroker.address:"}},
		{"broker without a port", "cluster: c1\nlocalBroker: {address: b}\n", []string{"localBroker.address:"}},
		{"broker at port 0", "cluster: c1\nlocalBroker: {address: 'b:0'}\n", []string{`localBroker.address: port "0"`}},
		{"broker at port 65536", "cluster: c1\nlocalBroker: {address: 'b:65536'}\n",
			[]string{`localBroker.address: port "65536"`}},
		{"broker at a URL", "cluster: c1\nlocalBroker: {address: 'https://b:8443'}\n", []string{"localBroker.address:"}},
		{"mirror selector", good + "mirrorSelector: 'a in (b'\n", []string{"mirrorSelector:"}},
		{"global selector", good + "globalSelector: '=='\n", []string{"globalSelector:"}},
		{"label domain with a path", good + "labelDomains: [a.example.org/b]\n",
			[]string{`labelDomains[0]: "a.example.org/b" is no DNS name`}},
		{"label domain with an empty label", good + "labelDomains: [a..b]\n",
			[]string{`labelDomains[0]: "a..b" is no DNS name`}},
		{"label domain too long", good + "labelDomains: [" + strings.Repeat("a.", 126) + "aa]\n",
			[]string{"labelDomains[0]:"}},
		{"listen without a port", good + "listen: {http: localhost}\n", []string{"listen.http:"}},
		{"listen at a name of a port", good + "listen: {http: ':http'}\n", []string{`listen.http: port "http"`}},
		{"listen at a negative port", good + "listen: {debug: ':-1'}\n", []string{`listen.debug: port "-1"`}},
		{"QPS below 0", good + "kube: {qps: -1}\n", []string{"kube.qps: -1"}},
		{"QPS beyond all", good + "kube: {qps: 1e38}\n", []string{"kube.qps: 1e+38"}},
		{"everything at once", "cluster: C1\nfeatures: [x]\nlocalBroker: {cluster: C2, address: b}\nlabelDomains: " +
			"['-']\nlisten: {http: x}\nkube: {qps: -1}\nnonsense: 1\n",
			[]string{"cluster:", "features[0]:", "localBroker.cluster:", "localBroker.address:", "labelDomains[0]:",
				"listen.http:",
				"kube.qps:", `unknown field "nonsense"`}},
	})
}

func TestBadBroker(t *testing.T) {
	nodes := func(more string) string {
		if strings.Contains(more, "nodeSubnets") {
			return more
		}
		return more + ", nodeSubnets: [192.0.2.0/24]"
	}
	remote := func(more string) string {
		return "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]" +
			nodes(more) + "}]\n"
	}
	remotes := func(second string) string {
		return "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: " +
			"[192.0.2.0/24]}, {name: c3, podSubnets: [10.3.0.0/16], wireguard: {listenPort: 51821}" + nodes(second) + "}]\n"
	}
	subnets := func(subnets string) string {
		return "cluster: c1\nlocalSubnets: [10.1.0.0/16, 'fd00:1::/48']\nremotes: [{name: c2, podSubnets: [" + subnets +
			"], nodeSubnets: [192.0.2.0/24]}]\n"
	}
	testBad[described](t, []bad{
		{"empty file", "", []string{"cluster:", "localSubnets: none"}},
		{"remote without anything", "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{}]\n",
			[]string{"remotes[0].name:", "remotes[0].podSubnets: none"}},
		{"nothing wrong with two remotes", remotes(""), nil},
		{"own cluster", "cluster: c2\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`remotes[0].name: "c2" is this cluster itself`}},
		{"same name", "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}, {name: " +
			"c2, podSubnets: [10.3.0.0/16]}]\n",
			[]string{`remotes[1].name: "c2" is listed twice`, `remotes[1].servicePrefix: "c2" is also that of c2`,
				"remotes[1].wireguard.listenPort: 7775 is also that of c2"}},
		{"same prefix", remotes(", servicePrefix: c2"), []string{`remotes[1].servicePrefix: "c2" is also that of c2`}},
		{"prefixes that can collide", remotes(", servicePrefix: c2-eu"),
			[]string{`remotes[1].servicePrefix: "c2-eu" and "c2" of c2: one begins with the other and a "-"`}},
		{"prefix", remote(", servicePrefix: C_2"), []string{`remotes[0].servicePrefix: "C_2" begins the names of Services`}},
		{"name that begins no Service",
			"cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: 2c, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`remotes[0].servicePrefix: "2c" begins the names of Services`}},
		{"same port", "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}, {name: " +
			"c3, podSubnets: [10.3.0.0/16]}]\n", []string{"remotes[1].wireguard.listenPort: 7775 is also that of c2"}},
		{"same port without encryption", "features: [policy]\ncluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: " +
			"c2, podSubnets: [10.2.0.0/16]}, {name: c3, podSubnets: [10.3.0.0/16]}]\n", nil},
		{"port", remote(", wireguard: {listenPort: 65536}"),
			[]string{"remotes.wireguard.listenPort: found number 65536, want a number that fits (uint16)"}},
		{"MTU too small for IPv6", remote(", wireguard: {mtu: 1279}"),
			[]string{"remotes[0].wireguard.mtu: 1279: use 1280 to 65455"}},
		{"MTU too large", remote(", wireguard: {mtu: 65456}"), []string{"remotes[0].wireguard.mtu:"}},
		{"keepalive without a unit", remote(", wireguard: {persistentKeepalive: 25}"),
			[]string{
				`remotes[0].wireguard.persistentKeepalive: 25 is no duration: write it as text with a unit, such as "25s"`,
			}},
		{"a key that would hardly live", remote(", wireguard: {keyMaxAge: 59m}"),
			[]string{"remotes[0].wireguard.keyMaxAge: 59m0s: use 1h0m0s or more, or 0 for never"}},
		{"a key's age below 0", remote(", wireguard: {keyMaxAge: -1h}"), []string{"remotes[0].wireguard.keyMaxAge: -1h0m0s"}},
		{"keepalive of nonsense", remote(", wireguard: {persistentKeepalive: soon}"),
			[]string{`remotes[0].wireguard.persistentKeepalive: "soon" is no duration`}},
		{"keepalive of a list", remote(", wireguard: {persistentKeepalive: [25s]}"),
			[]string{`remotes[0].wireguard.persistentKeepalive: ["25s"] is no duration`}},
		{"keepalive below 0", remote(", wireguard: {persistentKeepalive: -1s}"),
			[]string{"remotes[0].wireguard.persistentKeepalive: -1s: use 0 to 65535 whole seconds"}},
		{"keepalive beyond 16 bits", remote(", wireguard: {persistentKeepalive: 65536s}"),
			[]string{"remotes[0].wireguard.persistentKeepalive:"}},
		{"keepalive that would round to off", remote(", wireguard: {persistentKeepalive: 500ms}"),
			[]string{"remotes[0].wireguard.persistentKeepalive: 500ms"}},
		{"subnet without a mask", subnets("10.2.0.0"), []string{`remotes[0].podSubnets[0]: "10.2.0.0" is no CIDR`}},
		{"subnet with host bits", subnets("10.2.0.1/16"),
			[]string{"remotes[0].podSubnets[0]: 10.2.0.1/16 has bits set outside its mask: write 10.2.0.0/16"}},
		{"subnet with host bits, IPv6", subnets("10.2.0.0/16, 'fd00:2::1/48'"),
			[]string{"remotes[0].podSubnets[1]: fd00:2::1/48 has bits set"}},
		{"subnet of everything", subnets("0.0.0.0/0"), []string{"remotes[0].podSubnets[0]: 0.0.0.0/0 is everything"}},
		{"subnet of everything, IPv6", subnets("'::/0'"), []string{"remotes[0].podSubnets[0]: ::/0 is everything"}},
		{"IPv4 in IPv6", subnets("'::ffff:10.1.0.0/112'"),
			[]string{"remotes[0].podSubnets[0]: ::ffff:10.1.0.0/112 is IPv4 written as IPv6"}},
		{"node subnet", remote(", nodeSubnets: [x]"), []string{`remotes[0].nodeSubnets[0]: "x" is no CIDR`}},
		{"no node subnets", "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`remotes[0].nodeSubnets: none: name the subnets that the nodes of "c2" have their InternalIPs from`}},
		{"no node subnets, and no encryption", "features: [services, policy]\ncluster: c1\nlocalSubnets: " +
			"[10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}]\n", nil},
		{"local subnet", "cluster: c1\nlocalSubnets: [x]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`localSubnets[0]: "x" is no CIDR`}},
		{"local inside remote", subnets("10.0.0.0/8"),
			[]string{"remotes[0].podSubnets: 10.0.0.0/8 overlaps 10.1.0.0/16 (localSubnets[0])"}},
		{"remote inside local, IPv6", subnets("'fd00:1::/64'"),
			[]string{"remotes[0].podSubnets: fd00:1::/64 overlaps fd00:1::/48 (localSubnets[1])"}},
		{"subnets of one remote overlap", subnets("10.2.0.0/16, 10.2.0.0/16"),
			[]string{"remotes[0].podSubnets: 10.2.0.0/16 overlaps 10.2.0.0/16 (remotes[0].podSubnets)"}},
		{"limit below 0", remote(", limits: {nodes: -1}"),
			[]string{"remotes[0].limits.nodes: -1: use a number from 1 to 100000000"}},
		{"no size", remote(", size: huge"), []string{`remotes[0].size: "huge": use small, medium or large`}},
		{"limit beyond all", remote(", limits: {endpoints: 1000000000}"),
			[]string{"remotes[0].limits.endpoints: 1000000000: use"}},
		{"more addresses in sets than Felix can hold", remotes(", limits: {setIPs: 900000}"),
			[]string{"remotes[].limits.setIPs: 1100000 of all remotes together: 1000000 is the most"}},
		{"no local subnets", "cluster: c1\nremotes: [{name: c2, podSubnets: [10.2.0.0/16]}]\n",
			[]string{"localSubnets: none: name the pod, service and node subnets"}},
		{"nodes inside local", remote(", nodeSubnets: [10.1.7.0/24]"),
			[]string{"remotes[0].nodeSubnets: 10.1.7.0/24 is inside of 10.1.0.0/16 (localSubnets[0])"}},
		{"nodes around local", remote(", nodeSubnets: [10.0.0.0/15]"), nil},
		{"nodes among pods", remote(", nodeSubnets: [10.2.7.0/24]"),
			[]string{"remotes[0].nodeSubnets: 10.2.7.0/24 overlaps 10.2.0.0/16 (remotes[0].podSubnets)"}},
		{"nodes among another's pods", remotes(", nodeSubnets: [10.2.0.0/15]"),
			[]string{"remotes[1].nodeSubnets: 10.2.0.0/15 overlaps 10.2.0.0/16 (remotes[0].podSubnets)",
				"remotes[1].nodeSubnets: 10.2.0.0/15 overlaps 10.3.0.0/16 (remotes[1].podSubnets)"}},
		{"prefix of global services", remote(", servicePrefix: gl"),
			[]string{`remotes[0].servicePrefix: "gl" begins the names of global services`}},
		{"prefix like that of global services", remote(", servicePrefix: gl-a"),
			[]string{`remotes[0].servicePrefix: "gl-a" begins`}},
		{"cluster of the name of global services",
			"cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: gl, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`remotes[0].servicePrefix: "gl" begins`}},
		{"cluster of the name of all",
			"cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: global, podSubnets: [10.2.0.0/16]}]\n",
			[]string{`remotes[0].name: "global" stands for all clusters`}},
		{"mirror namespace", remote("") + "mirrorNamespace: a.b\n", []string{`mirrorNamespace: "a.b"`}},
		{"a dashboard for everybody", remote("") + "listen: {dashboard: ':8085'}\n",
			[]string{`listen.dashboard: ":8085" is not on loopback: use 127.0.0.1:8085`}},
		{"a dashboard on a name", remote("") + "listen: {dashboard: 'localhost:8085'}\n", []string{"listen.dashboard:"}},
		{"a dashboard at an address of nodes", remote("") + "listen: {dashboard: '192.0.2.1:8085'}\n",
			[]string{"listen.dashboard:"}},
		{"a dashboard without a port", remote("") + "listen: {dashboard: 127.0.0.1}\n", []string{"listen.dashboard:"}},
		{"listeners", remote("") + "listen: {federation: x, peering: x, http: x}\n",
			[]string{"listen.federation:", "listen.peering:", "listen.http:"}},
	})
}

func TestBadAgent(t *testing.T) {
	testBad[Agent](t, []bad{
		{"Workload API and a file", "cluster: c1\nbroker: {workloadAPI: 'unix:///run/spire/agent.sock', bundleFile: /a}\n",
			[]string{`broker.bundleFile: "/a" is given, and broker.workloadAPI too`}},
		{"no URI of a Workload API", "cluster: c1\nbroker: {workloadAPI: 'unix://run/agent.sock'}\n",
			[]string{`broker.workloadAPI: "unix://run/agent.sock": use the URI`}},
		{"empty file", "", []string{"cluster:"}},
		{"broker", "cluster: c1\nbroker: {address: broker}\n", []string{"broker.address:"}},
		{"key path", "cluster: c1\nwgKeyPath: keys\n", []string{`wgKeyPath: "keys": use an absolute path`}},
		{"peer metrics", "cluster: c1\npeerMetrics: some\n", []string{`peerMetrics: "some": use all or none`}},
		{"backend", "cluster: c1\nbackend: boringtun\n", []string{`backend: "boringtun": use auto, kernel or userspace`}},
		{"listeners", "cluster: c1\nlisten: {http: x, probe: x}\n", []string{"listen.http:", "listen.probe:"}},
		{"source of routes", "cluster: c1\nrouteSource: eth0\n",
			[]string{`routeSource: "eth0": use auto, none or an IP address`}},
		{"stateFile", "cluster: c1\nstateFile: agent.state\n", []string{`stateFile: "agent.state": use an absolute path`}},
		{"adoptFrom", "cluster: c1\nadoptFrom: [semaphore-wireguard, kilo]\n",
			[]string{`adoptFrom[1]: "kilo": the agent adopts devices of semaphore-wireguard only`}},
		{"all at once", "cluster: ''\nbackend: x\nwgKeyPath: x\nbroker: {address: x, x: x}\n",
			[]string{"cluster:", "backend:", "wgKeyPath:", "broker.address:", `unknown field "broker.x"`}},
	})
}

// TestZeroIsNoDefault: a zero or an empty list in a file is a value, and refused where it has no meaning. Only a key
// that is absent, or null, has its default.
func TestZeroIsNoDefault(t *testing.T) {
	tested := checkZeros(t, Parse[Exporter], "cluster: c1\n")
	tested += checkZeros(t, Parse[Broker], "cluster: c1\nlocalSubnets: [10.1.0.0/16]\n")
	if tested += checkZeros(t, Parse[Agent], "cluster: c1\n"); tested < 18 {
		t.Errorf("%d keys have numbers and durations", tested)
	}
	refuses[Exporter](t, "cluster: c1\n", map[string]string{"labelDomains: []": "labelDomains: none"})
	refuses[described](t, brokerOfC1, map[string]string{"labelDomains: []": "labelDomains: none",
		"globalServices: {rules: [{minReady: 0}]}": `globalServices.rules[0].minReady: "0": use a number`})
	c, err := Parse[described]([]byte(brokerOfC1 + "brake: {percent: null, hold: null}\nkube: {qps: null}\n" +
		"globalServices: {limits: {services: null}, rules: [{minReady: null}]}\n"))
	if err != nil || c.Brake != (Brake{50, 20, Duration{Duration: time.Hour}}) || c.Kube.QPS != 1_000 ||
		c.GlobalServices.Limits.Services != 2_000 || c.GlobalServices.Rules[0].MinReady.IntValue() != 1 {
		t.Errorf("with null: %+v, %v", c, err)
	}
}

// checkZeros parses a file with a zero for each number and duration whose default is another: it is refused with the
// field's name, or the value. It returns the number of these keys.
func checkZeros[T any](t *testing.T, parse func([]byte) (*T, error), smallest string) (tested int) {
	t.Helper()
	values := func(text string) (map[string]string, error) {
		c, err := parse([]byte(text))
		out := map[string]string{}
		if err == nil {
			defaultsOf(out, "", reflect.ValueOf(c).Elem())
		}
		return out, err
	}
	for key, text := range testkit.Value(values(smallest))(t) {
		zero := "0"
		if _, err := time.ParseDuration(strings.Trim(text, "`")); err == nil {
			zero = "0s"
		} else if _, err := strconv.ParseFloat(strings.Trim(text, "`"), 64); err != nil {
			continue
		}
		if text == "`0`" || text == "`0s`" {
			continue
		}
		tested++
		file := smallest + strings.ReplaceAll(key, ".", ": {") + ": " + zero + strings.Repeat("}", strings.Count(key, "."))
		if got, err := values(file); err == nil && got[key] != "`"+zero+"`" ||
			err != nil && !strings.HasPrefix(err.Error(), key+": "+zero+": ") {
			t.Errorf("%s: %s becomes %s, with the error %v", key, zero, got[key], err)
		}
	}
	return tested
}

func testBad[T any, P interface {
	*T
	validator
}](t *testing.T, tests []bad) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := Parse[T, P]([]byte(test.file))
			if test.wants == nil {
				if err != nil {
					t.Errorf("refused, though it is good: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("taken: %+v", c)
			}
			if c != nil {
				t.Error("a value beside the error")
			}
			lines := strings.Split(err.Error(), "\n")
			for _, want := range test.wants {
				found := false
				for _, line := range lines {
					found = found || strings.HasPrefix(line, want)
				}
				if !found {
					t.Errorf("no line begins with %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestDurationText(t *testing.T) {
	out, err := yaml.Marshal(WireGuard{PersistentKeepalive: Duration{Duration: 90 * time.Second}})
	if err != nil || !strings.Contains(string(out), "persistentKeepalive: 1m30s") {
		t.Errorf("%s %v", out, err)
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// TestR09SubnetsOfTwoClustersAreApart (R9, F31): overlapping subnets are refused before anything starts, with an error
// that names both.
func TestR09SubnetsOfTwoClustersAreApart(t *testing.T) {
	file := func(local, c2, c3 string) string {
		return "cluster: c1\nlocalSubnets: [" + local + "]\nremotes: [{name: c2, podSubnets: [" + c2 +
			"], nodeSubnets: [192.0.2.0/24]}, {name: c3, podSubnets: [" + c3 +
			"], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 1}}]\n"
	}
	testBad[described](t, []bad{
		{"apart", file("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"), nil},
		{"a remote in ours", file("10.0.0.0/14", "10.2.0.0/16", "10.9.0.0/16"),
			[]string{"remotes[0].podSubnets: 10.2.0.0/16 overlaps 10.0.0.0/14 (localSubnets[0])"}},
		{"two remotes", file("10.1.0.0/16", "10.2.0.0/16", "10.2.128.0/17"),
			[]string{"remotes[1].podSubnets: 10.2.128.0/17 overlaps 10.2.0.0/16 (remotes[0].podSubnets)"}},
		{"two remotes, IPv6", file("10.1.0.0/16", "'fd02::/48'", "'fd02::/32'"),
			[]string{"remotes[1].podSubnets: fd02::/32 overlaps fd02::/48 (remotes[0].podSubnets)"}},
	})
}

// TestBounds: the last port of a range is usable, and the brake acts above its percentage.
func TestBounds(t *testing.T) {
	ports := DevicePorts{First: 7775, Last: 7776}
	if got := ports.FreePort(map[uint16]bool{7775: true}); got != 7776 {
		t.Errorf("the last port is %d", got)
	}
	b := Brake{Percent: 50, AtLeast: 2}
	if b.Brakes(5, 10) || !b.Brakes(6, 10) {
		t.Error("the brake acts at 5 of 10, or not at 6")
	}
}
