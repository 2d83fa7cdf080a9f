package choice

import (
	"testing"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// FuzzDrainRequest: a request that passes the checks can be kept as text and read again as the same drain.
func FuzzDrainRequest(f *testing.F) {
	for _, req := range []*semaphorev1.DrainRequest{
		{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, By: "ada"},
		{Target: &semaphorev1.DrainTarget{Cluster: "c2", Node: "n1"}, Prefixes: []string{"10.2.1.0/24", "fd02::/64"}},
		{Target: &semaphorev1.DrainTarget{Namespace: "shop", Service: "echo"}},
	} {
		data := testkit.Value(proto.Marshal(req))(f)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req := &semaphorev1.DrainRequest{}
		if proto.Unmarshal(data, req) != nil {
			return
		}
		to := req.GetTarget()
		d := Drain{Target: Target{Cluster: to.GetCluster(), Namespace: to.GetNamespace(), Service: to.GetService(),
			Node: to.GetNode()}}
		if d.Validate() != nil {
			return
		}
		for _, s := range req.GetPrefixes() {
			if prefix, err := ParsePrefix(s); err == nil && d.Node != "" {
				d.Prefixes = append(d.Prefixes, prefix)
			}
		}
		if d.Node != "" && len(d.Prefixes) == 0 {
			return // refused: the subnets of the node are not known
		}
		if again, err := Parse(d.Text()); err != nil || again.Target != d.Target || len(again.Prefixes) != len(d.Prefixes) {
			t.Errorf("%v is kept as %q, which is read as %v, %v", d, d.Text(), again, err)
		}
	})
}
