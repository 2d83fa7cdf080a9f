package ctl

import (
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/pki"
)

const fleetFile = `image: registry.example/semaphore:v1.2.3
clusters:
  - name: c1
    podSubnets: [10.1.0.0/16]
    serviceSubnets: [10.101.0.0/16]
    nodeSubnets: [192.0.2.8/29]
    nodePort: 30843
    broker: 192.0.2.9:30843
  - name: c2
    podSubnets: [10.2.0.0/16]
    serviceSubnets: [10.102.0.0/16]
    nodeSubnets: [192.0.2.16/28]
    expose: LoadBalancer
    broker: broker.c2.example:8443
    clusterDomain: example.org
    trustBundle: |
BUNDLE
  - name: c3
    cni: other
    podSubnets: [10.3.0.0/16]
    serviceSubnets: [10.103.0.0/16]
    nodeSubnets: [192.0.2.32/28]
    broker: 192.0.2.33:30843
`

// TestRender: one file results in the objects of each cluster, with the same bytes each time. An error names the field.
func TestRender(t *testing.T) {
	t.Chdir(t.TempDir())
	a, err := pki.NewAuthority("c2", time.Hour, time.Now())
	must(t, err)
	cert, _, err := a.PEM()
	must(t, err)
	text := strings.ReplaceAll(fleetFile, "BUNDLE\n", "      "+strings.ReplaceAll(strings.TrimSpace(string(cert)), "\n",
		"\n      ")+"\n")
	render := func(text string) (string, int, error) {
		t.Helper()
		must(t, os.WriteFile("fleet.yaml", []byte(text), 0o644))
		return run(t, "render", "-f", "fleet.yaml", "-o", "out")
	}
	out, code, err := render(text)
	if code != 0 {
		t.Fatalf("exit code %d, %v", code, err)
	}
	golden(t, "render", out)
	again, _, err := render(text)
	must(t, err)
	golden(t, "render-again", again)
	names, err := os.ReadFile("out/c2/coredns.server")
	must(t, err)
	for _, want := range []string{"cluster.c1 {", "cluster.c3 {", "cluster.global {", "kubernetes example.org {"} {
		if !strings.Contains(string(names), want) {
			t.Errorf("the server blocks of c2 have no %q", want)
		}
	}
	remotes, err := os.ReadFile("out/c1/remoteclusters.yaml")
	must(t, err)
	var known []string
	for one := range strings.SplitSeq(string(remotes), "\n---\n") {
		var r v1alpha1.RemoteCluster
		must(t, yaml.UnmarshalStrict([]byte(one), &r))
		known = append(known, r.Name+" at "+r.Spec.Broker.Address)
		if (r.Name == "c2") != (strings.TrimSpace(r.Spec.TrustBundle) == strings.TrimSpace(string(cert))) {
			t.Errorf("%s has the bundle %q", r.Name, r.Spec.TrustBundle)
		}
	}
	if got := strings.Join(known, ", "); got != "c2 at broker.c2.example:8443, c3 at 192.0.2.33:30843" {
		t.Errorf("c1 knows %s", got)
	}
	manifests, err := os.ReadFile("out/c1/manifests.yaml")
	must(t, err)
	for _, want := range []string{"image: registry.example/semaphore:v1.2.3", "nodePort: 30843", "manageIPPools: true"} {
		if !strings.Contains(string(manifests), want) {
			t.Errorf("the manifests of c1 have no %q", want)
		}
	}
	if manifests, err = os.ReadFile("out/c3/manifests.yaml"); err != nil ||
		strings.Contains(string(manifests), "manageIPPools") {
		t.Errorf("c3 has no Calico, and its manifests have pools: %v", err)
	}

	for change, want := range map[string]string{
		"name: c2=>name: c1":                                   `clusters[1].name: "c1" is also that of clusters[0]`,
		"podSubnets: [10.2.0.0/16]=>podSubnet: []":             `unknown field "clusters[1].podSubnet"`,
		"podSubnets: [10.2.0.0/16]=>podSubnets: []":            "clusters[1].podSubnets: none",
		"podSubnets: [10.2.0.0/16]=>podSubnets: [10.2]":        "10.2",
		"podSubnets: [10.2.0.0/16]=>podSubnets: [10.1.0.0/20]": "links[0]: c1 and c2: subnets: 10.1.0.0/16",
		"broker: 192.0.2.9:30843=>broker: 192.0.2.9":           "clusters[0].broker: \"192.0.2.9\": use HOST:PORT",
		"    broker: 192.0.2.9:30843\n=>":                      "clusters[0].broker: missing: c1 and c2 are linked",
		"expose: LoadBalancer=>expose: public":                 `clusters[1].expose: "public"`,
		"cni: other=>cni: flannel":                             `clusters[2].cni: "flannel"`,
		"clusters:=>links: [[c1, c9]]\nclusters:":              `links[0][1]: "c9" is none of the clusters`,
		"cni: other=>features: [policy]\n    cni: other":       "clusters[2]: c3: feature policy",
		"-----BEGIN CERTIFICATE-----=>-----BEGIN NOTHING-----": "clusters[1].trustBundle",
	} {
		old, with, _ := strings.Cut(change, "=>")
		if _, code, err := render(strings.Replace(text, old, with, 1)); code != 1 || err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v; want %q", change, code, err, want)
		}
	}
}

// TestRenderDNS: the rendered server blocks resolve names of mirrors, also of clusters with dots in their names, and
// imports if the cluster has them, as those of link --dns do.
func TestRenderDNS(t *testing.T) {
	text := strings.NewReplacer("    trustBundle: |\nBUNDLE\n", "", "name: c2", "name: eu-1.example.com",
		"    broker: 192.0.2.9:30843\n", "    broker: 192.0.2.9:30843\n    components: [mcs]\n").Replace(fleetFile)
	fleet, err := install.ParseFleet([]byte(text))
	must(t, err)
	files, err := render(fleet)
	must(t, err)
	got := string(files["c1/coredns.server"])
	for _, want := range []string{"cluster.eu-1.example.com {",
		" " + naming.ClusterLabel("eu-1.example.com") + "-{2}-73736d-{1}.semaphore.", "clusterset.local {"} {
		if !strings.Contains(got, want) {
			t.Errorf("the server blocks of c1 have no %q:\n%s", want, got)
		}
	}
	if strings.Contains(string(files["c3/coredns.server"]), "clusterset.local") {
		t.Error("c3 has no imports, and answers for them")
	}
}
