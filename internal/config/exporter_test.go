package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestPodSubnetsOfAnExporter(t *testing.T) {
	c := testkit.Value(Parse[Exporter]([]byte("cluster: c1\npodSubnets: [10.1.0.0/16, 'fd00:1::/48']\n")))(t)
	if len(c.PodPrefixes) != 2 || c.PodPrefixes[1] != netip.MustParsePrefix("fd00:1::/48") {
		t.Errorf("pod subnets are %s", c.PodPrefixes)
	}
	refuses[Exporter](t, "cluster: c1\n", map[string]string{
		"podSubnets: [10.1.0.0/16, 10.2.0.1/16]": "podSubnets[1]: 10.2.0.1/16 has bits set outside its mask",
		"podSubnets: 10.1.0.0/16":                "podSubnets",
		"restores: -1":                           "restores: -1: use the number of times",
	})
}

// An exporter that reads another cluster has the broker of the cluster in which it runs, and follows nothing.
func TestLocalBroker(t *testing.T) {
	for text, foreign := range map[string]bool{
		"":                              false,
		"localBroker: {address: 'b:1'}": false,
		"localBroker: {cluster: c1, address: 'b:1'}":                                 false,
		"localBroker: {cluster: c2, address: 'b:1'}\nkube: {kubeConfigPath: /etc/k}": true,
	} {
		c, err := Parse[Exporter]([]byte("cluster: c1\n" + text))
		if err != nil || c.Foreign() != foreign {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	}
}

func TestAllowedIPs(t *testing.T) {
	for text, want := range map[string]AllowedIPs{"": AutoAllowedIPs, "allowedIPs: auto": AutoAllowedIPs,
		"allowedIPs: nodePodCIDRs": NodePodCIDRs, "allowedIPs: calicoBlocks": CalicoBlocks} {
		if c, err := Parse[Exporter]([]byte("cluster: c1\n" + text)); err != nil || c.AllowedIPs != want {
			t.Errorf("%q: %v, %v, and not %s", text, c, err, want)
		}
	}
	refuses[Exporter](t, "cluster: c1\n", map[string]string{
		"allowedIPs: CalicoBlocks": `allowedIPs: "CalicoBlocks": use auto; nodePodCIDRs; or calicoBlocks`})
}

func TestRemoteAPI(t *testing.T) {
	const reached = "kube: {remoteAPIURL: 'https://c2.example.org:6443', remoteSATokenPath: /var/run/c2/token"
	hash := "sha256:" + strings.Repeat("0a", 32)
	for _, good := range []string{"}", ", remoteCAPath: /var/run/c2/ca.crt}",
		", remoteCAURL: 'https://c2.example.org/ca'}",
		", remoteCAURL: 'http://c2.example.org/ca', remoteCAHash: '" + hash + "'}"} {
		if _, err := Parse[Exporter]([]byte("cluster: c1\n" + reached + good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	refuses[Exporter](t, "cluster: c1\n", map[string]string{
		reached + ", remoteCAURL: 'http://c2.example.org/ca'}": "kube.remoteCAURL: \"http://c2.example.org/ca\": use a " +
			"URL that begins with https://",
		reached + ", remoteCAHash: '" + hash +
			"'}": "kube.remoteCAHash: it is the hash of what remoteCAURL has",
		reached + ", remoteCAURL: 'https://x', remoteCAHash: abc}": "kube.remoteCAHash: \"abc\": use sha256: and 64 hex " +
			"digits",
		reached + ", remoteCAPath: /ca, remoteCAURL: 'https://x'}": "kube.remoteCAPath: remoteCAURL or remoteCAHash is given",
		"kube: {remoteCAPath: /ca}":                                "kube.remoteCAPath: it is used with remoteAPIURL only",
		reached + ", kubeConfigPath: /k}":                          "kube.kubeConfigPath: remoteAPIURL is given too",
		"kube: {remoteAPIURL: 'http://c2'}": "kube.remoteAPIURL: \"http://c2\": use a URL that " +
			"begins with https://",
		"kube: {remoteAPIURL: 'https://c2'}": "kube.remoteSATokenPath: none",
		"kube: {remoteSATokenPath: /t}":      "kube.remoteSATokenPath: it is used with remoteAPIURL only",
		"mcs: {enabled: true}\n" + reached + "}": "mcs.enabled: kube.remoteAPIURL reads another cluster, in which this " +
			"exporter writes no conditions",
	})
}
