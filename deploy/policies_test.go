package deploy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestNetworkPolicies checks that each port of the broker and exporter pods is admitted by a policy that selects them,
// under the port's name: ports for other clusters and agents from anywhere, probes and metrics from the cluster's own
// pods.
func TestNetworkPolicies(t *testing.T) {
	objects := build(t, overlay(t, "resources: [DEPLOY/example/c1]\ncomponents: [DEPLOY/features/network-policies]\n"))
	for _, part := range []string{"broker", "exporter"} {
		template := find[*appsv1.Deployment](t, objects, "semaphore-"+part).Spec.Template
		var open, own []string
		for _, o := range objects {
			p, ok := o.(*networkingv1.NetworkPolicy)
			if !ok {
				continue
			}
			selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			must(t, err)
			if !selector.Matches(labels.Set(template.Labels)) {
				continue
			}
			if p.Namespace != "semaphore" ||
				!slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
				t.Errorf("%s: the policy is in %s, for %v", part, p.Namespace, p.Spec.PolicyTypes)
			}
			for _, rule := range p.Spec.Ingress {
				for _, port := range rule.Ports {
					if len(rule.From) == 0 {
						open = append(open, port.Port.StrVal)
					} else {
						own = append(own, port.Port.StrVal)
					}
				}
				for _, from := range rule.From {
					if from.IPBlock != nil || from.PodSelector != nil || from.NamespaceSelector == nil ||
						from.NamespaceSelector.Size() != 0 {
						t.Errorf("%s: from %v", part, from)
					}
				}
			}
		}
		var others []string
		for _, p := range template.Spec.Containers[0].Ports {
			if p.Name != "http" {
				others = append(others, p.Name)
			}
		}
		equal(t, part+": ports for everybody", strings.Join(open, " "), strings.Join(others, " "))
		equal(t, part+": ports for the own pods", strings.Join(own, " "), "http")
	}
}

// TestImageByDigest checks that an overlay can pin the image by digest, in one place for all parts and their removal.
func TestImageByDigest(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for dir, component := range map[string]string{"example/c1": "components: [DEPLOY/features/userspace-wireguard]\n",
		"example/c1-cleanup": ""} {
		pods := 0
		for _, pod := range templates(build(t, overlay(t, fmt.Sprintf(`
resources: [DEPLOY/%s]
%simages:
  - {name: ghcr.io/kube-semaphore/semaphore, newName: registry.example.org/semaphore, digest: %q}
`, dir, component, digest)))) {
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				pods++
				equal(t, dir+": image of "+c.Name, c.Image, "registry.example.org/semaphore@"+digest)
			}
		}
		if pods < 2 {
			t.Errorf("%s has %d containers", dir, pods)
		}
	}
}
