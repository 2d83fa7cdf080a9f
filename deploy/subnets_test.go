package deploy_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/bounds"
)

// withoutAgents is an overlay without agents, with the subnets of its broker.
const withoutAgents = `
resources: [DEPLOY/crds, DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker]
components: [DEPLOY/features/services, DEPLOY/features/mcs]
configMapGenerator:
  - name: semaphore-subnets
    namespace: semaphore
    behavior: merge
    literals:
      - |-
        broker.yaml=localSubnets: [10.1.0.0/16, 192.0.2.0/24]
        globalServices: {podSubnets: [10.1.0.0/16]}
      - localSubnets=10.1.0.0/16,192.0.2.0/24
      - podSubnets=10.1.0.0/16
`

// withOwnNames adds features/own-names to an overlay.
func withOwnNames(overlay string) string {
	return strings.Replace(overlay, "DEPLOY/features/mcs", "DEPLOY/features/mcs, DEPLOY/features/own-names", 1)
}

// TestPoliciesFindSubnets checks that in any namespace, with and without agents, each admission policy with parameters
// finds the ConfigMap with the own subnets.
func TestPoliciesFindSubnets(t *testing.T) {
	for name, text := range map[string]string{
		"as shipped": "resources: [DEPLOY/example/c1]\ncomponents: [DEPLOY/features/mcs, DEPLOY/features/own-names]\n",
		"in a namespace": "namespace: federation\nresources: [DEPLOY/example/c1]\n" +
			"components: [DEPLOY/features/mcs, DEPLOY/features/own-names]\n",
		"with a namePrefix": "namePrefix: other-\nresources: [DEPLOY/example/c1]\n" +
			"components: [DEPLOY/features/mcs, DEPLOY/features/own-names]\n",
		"without agents":                           withoutAgents,
		"without agents, in a namespace":           "namespace: federation\n" + withoutAgents,
		"without agents, with own names":           withOwnNames(withoutAgents),
		"without agents, in a namespace of a base": "namespace: federation\nresources: [DEPLOY/broker]\n",
	} {
		objects := build(t, overlay(t, text))
		var subnets []*corev1.ConfigMap
		found := map[string]bool{}
		for _, o := range objects {
			if c, ok := o.(*corev1.ConfigMap); ok && c.Labels["semaphore.uw.io/subnets"] == "true" {
				subnets = append(subnets, c)
			}
		}
		if len(subnets) != 1 {
			t.Errorf("%s: %d ConfigMaps have subnets", name, len(subnets))
			continue
		}
		for _, o := range objects {
			b, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
			if !ok || b.Spec.ParamRef == nil {
				continue
			}
			found[b.Spec.PolicyName] = true
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.ParamRef.Selector)
			if err != nil || b.Spec.ParamRef.Namespace != subnets[0].Namespace ||
				!selector.Matches(labels.Set(subnets[0].Labels)) {
				t.Errorf("%s: %s looks for %s in namespace %q, and they are in %q: %v", name, b.Name, selector,
					b.Spec.ParamRef.Namespace, subnets[0].Namespace, err)
			}
		}
		if want := 3 + strings.Count(text, "own-names"); len(found) != want {
			t.Errorf("%s: the policies with parameters are %v, and not %d", name, found, want)
		}
		if name == "without agents" {
			if s := subnetsOfAgents(subnets[0].Data["broker.yaml"], "c1"); len(s.Problems) > 0 {
				t.Errorf("%s: %v", name, s.Problems)
			}
		}
	}
}

// subnetsOfAgents is what agents read of the broker's file, where there are no RemoteClusters yet.
func subnetsOfAgents(file, cluster string) *bounds.Subnets {
	return bounds.LoadSubnets(func(path string) ([]byte, error) {
		if filepath.Base(path) == bounds.RemotesFile {
			return nil, fs.ErrNotExist
		}
		return []byte(file), nil
	}, "broker.yaml", cluster, nil)
}
