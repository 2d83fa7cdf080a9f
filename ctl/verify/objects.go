package verify

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Objects that verify creates in each cluster. All of it is in one namespace, and is deleted with it.
const (
	// labelVerify marks namespaces and pods of verify, so that the remains of an interrupted verify are found.
	labelVerify = "semaphore.uw.io/verify"
	// The pods. client is in a set of its name, stranger in none.
	verifyClient, verifyStranger, verifyServer = "client", "stranger", "server"
	verifyContainer                            = "verify"
	verifyPolicy                               = "verify"
	// verifyService is offered as a mirror; global services have the number of their cluster.
	verifyService = "server"
)

// verifyLifetime is how long pods run that are not removed.
const verifyLifetime = 30 * time.Minute

func verifyGlobalService(cluster int) string { return fmt.Sprintf("global-%d", cluster+1) }

// verifyNamespace has pods that the strictest of the Pod Security Standards admits
// (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
func verifyNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			labelVerify: "", "app.kubernetes.io/part-of": "semaphore",
			"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
		}},
	}
}

// verifyPod is one of the three pods, all of them servers; questions are asked by exec. On several nodes they are
// spread.
func verifyPod(namespace, name, image string, labelDomains []string) *corev1.Pod {
	labels := map[string]string{labelVerify: name}
	if name == verifyClient {
		for _, domain := range labelDomains {
			labels[domain+"/name"] = verifyClient
		}
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure, TerminationGracePeriodSeconds: ptr.To[int64](0),
			ActiveDeadlineSeconds:        ptr.To(int64(verifyLifetime / time.Second)),
			AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100,
					PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname,
						LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
							{Key: labelVerify, Operator: metav1.LabelSelectorOpExists}}}}}}}},
			Containers: []corev1.Container{{
				Name: verifyContainer, Image: image, Command: []string{"semaphorectl", "probe", "serve"},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: Port}},
				Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
					ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}

// simpleSelector matches a selector that one label fulfils.
var simpleSelector = regexp.MustCompile(`^[A-Za-z0-9./_-]+=[A-Za-z0-9._-]+$`)

// verifyServiceObject selects the server's pod, and has the label of the selector by which it is offered, or of the
// usual one.
func verifyServiceObject(namespace, name, selector, usual string) *corev1.Service {
	if !simpleSelector.MatchString(selector) {
		selector = usual
	}
	key, value, _ := strings.Cut(selector, "=")
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{key: value}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{labelVerify: verifyServer},
			Ports: []corev1.ServicePort{{Name: "http", Port: Port}}},
	}
}

// verifyPolicyObject admits to the server only the pods of the set client of other clusters. The Calico API server
// prefixes the stored name with the tier; in the CRDs the caller must.
func verifyPolicyObject(calico schema.GroupVersion, namespace string,
	labelDomains, clusters []string) *unstructured.Unstructured {
	name := verifyPolicy
	if strings.HasPrefix(calico.Group, "crd.") {
		name = "default." + name
	}
	quoted := make([]string, 0, len(clusters))
	for _, c := range slices.Sorted(slices.Values(clusters)) {
		quoted = append(quoted, "'"+c+"'")
	}
	var rules []any
	for _, d := range labelDomains {
		rules = append(rules, map[string]any{
			"action": "Allow", "protocol": "TCP",
			"source": map[string]any{"namespaceSelector": "global()", "selector": fmt.Sprintf(
				"%s/name == '%s' && %s/namespace == '%s' && %s/cluster in {%s}", d, verifyClient, d, namespace, d,
				strings.Join(quoted, ", "))},
			"destination": map[string]any{"ports": []any{int64(Port)}},
		})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": calico.String(), "kind": "NetworkPolicy",
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec": map[string]any{"order": int64(100), "selector": fmt.Sprintf("%s == '%s'", labelVerify, verifyServer),
			"types": []any{"Ingress"}, "ingress": rules},
	}}
}
