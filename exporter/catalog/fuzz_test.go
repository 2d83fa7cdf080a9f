package catalog

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// FuzzCatalogAnnotations writes anything into the annotations that the catalog reads. However it does, there is no
// panic, nobody sees what the text does not name in full, and whatever is not understood is reported.
func FuzzCatalogAnnotations(f *testing.F) {
	f.Add("c2,c3", publicKey(2), "192.0.2.1:51820", "10.1.1.0/24")
	f.Add("none", "", "", "")
	f.Add(" c2 ,c9", "AAAA", "[2001:db8::1%eth0]:1", "::ffff:10.0.0.0/100")
	f.Add("c2,,c3", publicKey(0)+"\n", "host:1", "0.0.0.0/0")
	f.Add("*", "é", "192.0.2.1:0", "10.1.1.0/33")
	f.Add(",c2,", "\xff", "\xff", "\xff")
	f.Fuzz(func(t *testing.T, exportTo, key, endpoint, cidr string) {
		c := withRules(t, nil)
		now := time.Unix(1, 0)
		annotations := exportToAnnotation(exportTo)
		c.PutPod(newPod("web", "front", func(p *corev1.Pod) { p.Annotations = annotations }), now)
		c.PutService(newService("echo", mirrorLabels, func(s *corev1.Service) { s.Annotations = annotations }), now)
		c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), now)
		c.PutNode(newNode("n1", []string{cidr, "10.1.1.0/24"}, map[string]string{
			naming.PubKeyAnnotation("c2"): key, naming.EndpointAnnotation("c2"): endpoint,
		}), now)
		c.PutNode(newNode("n2", []string{cidr}, nil), now)
		seen := 0
		for _, cluster := range c.clusters {
			got := sees(c, cluster)
			if len(got) != 0 && len(got) != 3 {
				t.Fatalf("%s sees %q: what has one annotation is not for the same clusters", cluster, got)
			}
			if len(got) > 0 {
				seen++
				if !strings.Contains(exportTo, cluster) {
					t.Fatalf("%q lets %s see %q", exportTo, cluster, got)
				}
			}
		}
		if seen == 0 && strings.TrimSpace(exportTo) != "none" && c.CountProblems()[finding.InvalidExportTo] != 2 {
			t.Fatalf("nobody sees anything for %q, and problems are %q", exportTo, finding.Texts(c.Findings()))
		}
		n1, _ := c.Journal().Get(nodeKey("c2", "n1"))
		if end := n1.Object.GetNode().GetWireguard(); end != nil && len(end.GetPublicKey()) != 32 {
			t.Fatalf("%q is a key: %v", key, end)
		}
		c.DeletePod("shop", "web", now)
		c.DeleteSlice("shop", "echo-1", now)
		c.DeleteService("shop", "echo", now)
		c.DeleteNode("n1", now)
		c.DeleteNode("n2", now)
		if p := finding.Texts(c.Findings()); c.Journal().Len() != 0 || len(p) != 0 || !c.prefixes.Empty() {
			t.Fatalf("all is gone, and left are %d objects, problems %q, prefixes %+v", c.Journal().Len(), p, c.prefixes)
		}
	})
}
