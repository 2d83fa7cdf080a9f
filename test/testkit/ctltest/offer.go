package ctltest

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// Offer makes a Service that is offered to other clusters, and returns its slice, with one endpoint, which is ready.
func Offer(t *testing.T, admin kubernetes.Interface, namespace, name, ip string) *discoveryv1.EndpointSlice {
	t.Helper()
	const offered = "mirror.semaphore.uw.io/mirror-service"
	kubetest.Create(t, admin.CoreV1().Services(namespace), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{offered: "true"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
	return kubetest.Create(t, admin.DiscoveryV1().EndpointSlices(namespace), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-1", // with the labels that Kubernetes copies from the Service
			Labels: map[string]string{discoveryv1.LabelServiceName: name, offered: "true"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	})
}

// Mirrored returns an error unless a mirror is there, and a slice of it has an endpoint.
func Mirrored(ctx context.Context, admin kubernetes.Interface, mirror, ip string) error {
	if _, err := admin.CoreV1().Services("semaphore").Get(ctx, mirror, metav1.GetOptions{}); err != nil {
		return err
	}
	all, err := admin.DiscoveryV1().EndpointSlices("semaphore").List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + mirror})
	if err != nil {
		return err
	}
	var seen []string
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			if e.Addresses[0] == ip {
				return nil
			}
		}
		seen = append(seen, fmt.Sprint(s.Name, s.Endpoints))
	}
	return fmt.Errorf("%s has not the endpoint %s: %q", mirror, ip, seen)
}
