package coredns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// kubeadm is kubeadm's Corefile, as found in a cluster.
const kubeadm = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`

func printed(t *testing.T, blocks ...Block) string {
	t.Helper()
	var b strings.Builder
	testkit.Must(t, Print(&b, blocks, false))
	return b.String()
}

func TestBlocksOfABroker(t *testing.T) {
	c := testkit.Value(described.Broker([]byte(`
cluster: c1
localSubnets: [10.1.0.0/16]
mirrorNamespace: mirrors
remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]},
  {name: c3, servicePrefix: three, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12],
   wireguard: {listenPort: 51821}}]
`)))(t)
	got := fmt.Sprint(Blocks(c, "cluster.local"))
	if want := "[{c2 c2 mirrors cluster.local} {c3 three mirrors cluster.local} " +
		"{global gl mirrors cluster.local}]"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// TestClusterSet: names of imported Services are resolved from ServiceImports, by semaphore's block or the cluster's
// own one, or by rewrites.
func TestClusterSet(t *testing.T) {
	c2, set := Block{"c2", "c2", "semaphore", "cluster.local"}, ClusterSet("semaphore", "cluster.local")
	var knowing strings.Builder
	testkit.Must(t, Print(&knowing, []Block{c2, set}, true))
	if got := knowing.String(); got != printed(t, c2)+Multicluster {
		t.Errorf("printed is\n%s", got)
	}
	rewrites := printed(t, set)
	for _, line := range []string{"clusterset.local {", "name regex ^([^.]+)\\.([^.]+)\\.svc\\.clusterset\\.local\\.?$ " +
		"mcs-{2}-73736d-{1}.semaphore.svc.cluster.local", "{2}.{1}.svc.clusterset.local"} {
		if !strings.Contains(rewrites, line) {
			t.Errorf("the rewrites lack %q:\n%s", line, rewrites)
		}
	}
	inMain := strings.Replace(kubeadm, "kubernetes cluster.local", "kubernetes cluster.local clusterset.local", 1)
	for name, test := range map[string]struct {
		corefile string
		faults   int
	}{
		"as printed": {kubeadm + knowing.String(), 0},
		"rewrites":   {kubeadm + printed(t, c2) + rewrites, 0},
		"in the cluster's own block": {strings.Replace(inMain, "ttl 30", "multicluster clusterset.local.", 1) +
			printed(t, c2), 0},
		"without the option": {inMain + printed(t, c2), 1},
		"another domain": {strings.Replace(kubeadm, "ttl 30", "multicluster clusterset.local", 1) +
			printed(t, c2), 1},
		"neither":                    {kubeadm + printed(t, c2), 1},
		"rewrites of another broker": {kubeadm + printed(t, c2, ClusterSet("other", "cluster.local")), 1},
	} {
		if got := Compare(test.corefile, []Block{c2, set}); len(got) != test.faults {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for image, want := range map[string][2]bool{
		"registry.k8s.io/coredns/coredns:v1.12.2":                                     {true, true},
		"coredns/coredns:1.14.7":                                                      {true, true},
		"registry.example:5000/coredns:v1.12.1":                                       {false, true},
		"rancher/mirrored-coredns-coredns:1.11.3@sha256:0123456789abc":                {false, true},
		"602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.12.4-eksbuild.1": {true, true},
		"registry.example:5000/coredns":                                               {false, false},
		"testbed.local/coredns:latest":                                                {false, false},
		"":                                                                            {false, false},
	} {
		if does, known := KnowsImports(image); does != want[0] || known != want[1] {
			t.Errorf("%q: %t, %t", image, does, known)
		}
	}
}

// TestShadows: a block that would answer names of the own cluster or of another block is left out with a message, and
// the others are printed.
func TestShadows(t *testing.T) {
	for _, test := range []struct{ cluster, own, other, want string }{
		{"c2", "cluster.local", "c3", ""},
		{"local", "cluster.local", "c3", "cluster.local"},
		{"example.com", "c1.cluster.example.com", "c3", "c1.cluster.example.com"},
		{"example.com", "cluster.local", "eu.example.com", ""},
		{"c1.example.com", "cluster.example.com", "c3", ""},
		{"svc.cluster.local", "cluster.local", "c3", "cluster.local"},
		{"shop.svc.cluster.local", "cluster.local", "c3", "cluster.local"},
		{"pod.cluster.local", "cluster.local", "c3", "cluster.local"},
		{"b.cluster.local", "cluster.local", "c3", ""}, // no name of the own cluster ends like this
		{"svc.cluster.b", "cluster.local", "b", "cluster.b"},
		{"eu.svc.cluster.b", "cluster.local", "b", "cluster.b"},
		{"eu.cluster.b", "cluster.local", "b", ""},
		{"b", "cluster.local", "svc.cluster.b", ""}, // the other is left out
		{"svc.cluster.global", "cluster.local", "c3", "cluster.global"},
		{"svc.clusterset.local", "cluster.local", "c3", "clusterset.local"},
	} {
		b := Block{test.cluster, naming.ClusterLabel(test.cluster), "semaphore", test.own}
		other := Block{test.other, naming.ClusterLabel(test.other), "semaphore", test.own}
		all := []Block{b, other, Global("semaphore", test.own), ClusterSet("semaphore", test.own)}
		if got := b.shadows(all); got != test.want {
			t.Errorf("%s, in %s beside %s: shadows %q, not %q", test.cluster, test.own, test.other, got, test.want)
		}
		served, left := Served([]Block{b, Global("semaphore", test.own), other, ClusterSet("semaphore", test.own)})
		for _, knowsImports := range []bool{false, true} {
			var out strings.Builder
			testkit.Must(t, Print(&out, all, knowsImports))
			if faults := Compare(out.String(), served); len(faults) > 0 || len(served)+len(left) != len(all) {
				t.Errorf("%s: %d and %d of %d; missing %+v in\n%s", test.cluster, len(served), len(left), len(all), faults, &out)
			}
			if shadows := test.want != ""; servers(out.String())[b.Zone()] != nil == shadows ||
				strings.Contains(out.String(), "# no block for "+b.Zone()+": it would answer names of "+test.want+",") != shadows {
				t.Errorf("%s: printed is\n%s", test.cluster, &out)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	c2, global := Block{"c2", "c2", "semaphore", "cluster.local"}, Global("semaphore", "cluster.local")
	both := printed(t, c2, global)
	inPlace := func(old, new string) string {
		out := strings.Replace(kubeadm+both, old, new, 1)
		if out == kubeadm+both {
			t.Fatalf("%q is not there", old)
		}
		return out
	}
	for name, test := range map[string]struct {
		corefile string
		want     string // "" for no message
	}{
		"as printed":              {kubeadm + both, ""},
		"in another order":        {printed(t, global) + kubeadm + printed(t, c2), ""},
		"no Corefile":             {"", "cluster.c2 missing; cluster.global missing"},
		"as a cluster comes":      {kubeadm, "cluster.c2 missing; cluster.global missing"},
		"one of two":              {kubeadm + printed(t, c2), "cluster.global missing"},
		"tabs":                    {strings.ReplaceAll(kubeadm+both, "    ", "\t"), ""},
		"another port":            {inPlace("cluster.c2 {", "cluster.c2.:5353 {"), ""},
		"a scheme and capitals":   {inPlace("cluster.c2 {", "dns://Cluster.C2:53 {"), ""},
		"one block for several":   {inPlace("cluster.c2 {", "cluster.c2, cluster.two {"), ""},
		"keys on lines":           {inPlace("cluster.c2 {", "cluster.c2,\ncluster.two {"), ""},
		"another cache and a log": {inPlace("cache 5", "cache 60\n    log # all of it"), ""},
		"reverse lookups too": {inPlace("kubernetes cluster.local {\n        pods",
			"kubernetes cluster.local. 10.in-addr.arpa {\n        pods"), ""},
		"commented out": {kubeadm + "#" + strings.ReplaceAll(printed(t, c2), "\n", "\n#") + "\n" +
			printed(t, global), "cluster.c2 missing"},
		"another's rules": {kubeadm + printed(t, Block{"c2", "c2", "sys-semaphore", "cluster.local"}, global),
			"cluster.c2 lacks: name regex ^(_[^.]+)\\.(_[^.]+)\\.([^.]+)\\.([^.]+)\\.svc\\.cluster\\.c2\\.?$ " +
				"{1}.{2}.c2-{4}-73736d-{3}.semaphore.svc.cluster.local"},
		"another prefix": {kubeadm + printed(t, Block{"c2", "two", "semaphore", "cluster.local"}, global),
			"cluster.c2 lacks: name regex"},
		"no answer is put back": {inPlace("answer name ^c2-", "# answer name ^c2-"), "cluster.c2 lacks: answer name ^c2-"},
		"a domain of another name": {inPlace("kubernetes cluster.local {\n        pods",
			"kubernetes other.local {\n        pods"), "cluster.c2 lacks: kubernetes cluster.local"},
		"the rules of another": {kubeadm + "cluster.c2 {\n forward . 10.0.0.1\n}\n" +
			strings.Replace(printed(t, c2), "cluster.c2 {", "cluster.other {", 1) + printed(t, global), "cluster.c2 lacks"},
		"a block that never ends":  {"cluster.c2 {\n rewrite stop {\n", "cluster.c2 lacks"},
		"ends without a beginning": {"}\n}\n" + kubeadm + both, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range Compare(test.corefile, []Block{c2, global}) {
				if f.Missing {
					got = append(got, f.Block.Zone()+" missing")
				} else {
					got = append(got, f.Block.Zone()+" lacks: "+f.Line)
				}
			}
			said := strings.Join(got, "; ")
			if said != test.want && (test.want == "" || !strings.HasPrefix(said, test.want)) {
				t.Errorf("%q, not %q, of\n%s", said, test.want, test.corefile)
			}
		})
	}
}
