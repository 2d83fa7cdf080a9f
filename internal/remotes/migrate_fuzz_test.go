package remotes

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// FuzzFiles: whatever a file and a command line contain, there is an error, or objects that can be written, and those
// whose name no cluster can have are reported.
func FuzzFiles(f *testing.F) {
	for _, text := range []string{
		"local: {name: c1}\nremotes: [{name: c2, podSubnet: 10.2.0.0/16, wgListenPort: -1}]\n",
		"localCluster: {name: c1}\nremoteClusters: [{name: '', servicePrefix: p}]\n",
		"local: {}\nremotes: [null]\n",
	} {
		f.Add([]byte(text), "-target-cluster-name=c2")
	}
	f.Fuzz(func(t *testing.T, text []byte, flags string) {
		m := NewMigration()
		_, err := m.Add("file", text)
		if err != nil && err.Error() == "" {
			t.Error("an error that says nothing")
		}
		_ = m.AddPolicyFlags(flags)
		objects, _, missing := m.Objects()
		for _, o := range objects {
			if config.ClusterName(o.Name) != nil && len(missing) == 0 {
				t.Errorf("%q is no name of a cluster, and nothing is missing", o.Name)
			}
			written := testkit.Value(json.Marshal(o))(t)
			var again v1alpha1.RemoteCluster
			if err := json.Unmarshal(written, &again); err != nil || utf8.ValidString(o.Name) && again.Name != o.Name {
				t.Errorf("%q is %+v, %v", written, again, err)
			}
		}
	})
}
