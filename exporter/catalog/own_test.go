package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The own cluster's broker receives global services and their slices, whichever others may see them, and nothing else.
func TestTheOwnClusterSeesGlobalServicesOnly(t *testing.T) {
	for name, test := range map[string]struct {
		rules    []offering
		labels   map[string]string
		exportTo string
		service  string // clusters that see the Service and its slice
		pod      string
	}{
		"a mirror":         {labels: mirrorLabels, service: "c2 c3", pod: "c2 c3"},
		"a global service": {labels: globalLabels, service: "c1 c2 c3", pod: "c2 c3"},
		"both":             {labels: bothLabels, service: "c1 c2 c3", pod: "c2 c3"},
		"neither":          {labels: map[string]string{}, pod: "c2 c3"},
		"a rule keeps it from one": {labels: globalLabels, rules: []offering{{clusters: []string{"c3"}}},
			service: "c1 c3", pod: "c3"},
		"a rule keeps it from all":         {labels: globalLabels, rules: []offering{{}}, service: "c1"},
		"the annotation keeps it from one": {labels: globalLabels, exportTo: "c2", service: "c1 c2", pod: "c2"},
		"the annotation keeps it from all": {labels: globalLabels, exportTo: "none", service: "c1"},
		"the annotation names the own one": {labels: globalLabels, exportTo: "c1,c2", service: "c1 c2", pod: "c2"},
		"a mirror for the own one":         {labels: mirrorLabels, exportTo: "c1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := offer(withRules(t, func(r *Rules) { r.Own, r.Clusters = "c1", []string{"c3", "c1", "c2"} }), test.rules)
			now := time.Now()
			annotate := func(m map[string]string) map[string]string {
				if test.exportTo == "" {
					return m
				}
				return exportToAnnotation(test.exportTo)
			}
			c.PutService(newService("echo", test.labels, func(s *corev1.Service) { s.Annotations = annotate(s.Annotations) }),
				now)
			c.PutSlice(newSlice("echo-1", "echo", "10.1.1.1"), now)
			c.PutPod(newPod("web", "front", func(p *corev1.Pod) { p.Annotations = annotate(p.Annotations) }), now)
			c.PutNode(newNode("n1", []string{"10.1.1.0/24"}, nil), now)
			var services, slicesSeen, pods, nodes []string
			all, _ := c.Journal().Snapshot()
			for _, cluster := range c.clusters {
				for _, e := range all {
					if !e.Value.To.Has(cluster) {
						continue
					}
					switch e.Key.Kind {
					case semaphorev1.Kind_KIND_SERVICE:
						services = append(services, cluster)
					case semaphorev1.Kind_KIND_ENDPOINT_SLICE:
						slicesSeen = append(slicesSeen, cluster)
					case semaphorev1.Kind_KIND_SET_MEMBER:
						pods = append(pods, cluster)
					case semaphorev1.Kind_KIND_NODE:
						nodes = append(nodes, cluster)
					}
				}
			}
			for what, got := range map[string][2]string{
				"the Service": {strings.Join(services, " "), test.service},
				"its slice":   {strings.Join(slicesSeen, " "), test.service},
				"the pod":     {strings.Join(pods, " "), test.pod}, "the node": {strings.Join(nodes, " "), "c2 c3"},
			} {
				if got[0] != got[1] {
					t.Errorf("%s is seen by %q, not %q", what, got[0], got[1])
				}
			}
			if p := finding.Texts(c.Findings()); len(p) > 0 {
				t.Errorf("problems: %q", p)
			}
			// No longer global, and gone: the own cluster is sent that.
			head := c.Journal().Head()
			c.PutService(newService("echo", mirrorLabels), now)
			if e, ok := c.Journal().Last(serviceKey("shop", "echo")); ok && strings.Contains(test.service, "c1") &&
				ChangeFor(e, "c1", head) != Delete {
				t.Error("the own cluster does not receive that the service is no longer global")
			}
			c.DeleteNode("n1", now)
			if n := c.Objects("c2", semaphorev1.Kind_KIND_NODE); n != 0 {
				t.Errorf("%d nodes are left", n)
			}
		})
	}
}

func TestKindsForTheOwnCluster(t *testing.T) {
	services := []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}
	rules := Rules{Own: "c1", Features: config.Features{config.Encryption, config.Services, config.Policy}}
	if got := rules.KindsFor("c1"); !slices.Equal(got, services) {
		t.Errorf("the own cluster receives %v", got)
	}
	if got := rules.KindsFor("c2"); len(got) != 4 {
		t.Errorf("another cluster receives %v", got)
	}
}
