package remotes

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func specs(t *testing.T, m *Migration) string {
	t.Helper()
	var out strings.Builder
	objects, _, missing := m.Objects()
	for _, o := range objects {
		out.Write(testkit.Value(yaml.Marshal(map[string]v1alpha1.RemoteClusterSpec{o.Name: o.Spec}))(t))
	}
	for _, line := range missing {
		out.WriteString("missing " + line + "\n")
	}
	return strings.TrimSpace(out.String())
}

func TestMigration(t *testing.T) {
	for name, test := range map[string]struct {
		files  []string
		policy string
		want   string
	}{
		"the originals": {files: []string{
			`{"local": {"name": "c1"}, "remotes": [{"name": "c2", "podSubnet": "10.2.0.0/16", "remoteAPIURL": "https://x", ` +
				`"resyncPeriod": "10s"}]}`,
			`{"global": {}, "localCluster": {"name": "c1"}, "remoteClusters": [{"name": "c2", "servicePrefix": "aws"}]}`,
		}, policy: "-target-cluster-name=c2 -remote-api-url https://x", want: `
c2:
  podSubnets:
  - 10.2.0.0/16
  servicePrefix: aws
  wireguard:
    listenPort: 51820
    mtu: 1420
    persistentKeepalive: 25s
    probePort: 0
missing c2: spec.nodeSubnets: the subnets of its nodes' InternalIPs (--node-subnets)
missing c2: spec.trustBundle: its root certificates (--bundles)`},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMigration()
			for _, file := range test.files {
				testkit.Value(m.Add("file", []byte(file)))(t)
			}
			if test.policy != "" {
				testkit.Must(t, m.AddPolicyFlags(test.policy))
			}
			if got := specs(t, m); got != strings.TrimSpace(test.want) {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
	if _, err := NewMigration().Add("x", []byte("a: b")); err == nil ||
		!strings.Contains(err.Error(), "x: it is no file of semaphore-wireguard") {
		t.Errorf("another file: %v", err)
	}
}
