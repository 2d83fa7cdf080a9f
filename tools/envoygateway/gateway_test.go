// Package semaphore shows what the broker writes to the translator of Envoy Gateway.
package semaphore

import (
	"io"
	"slices"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/internal/gatewayapi"
	"github.com/envoyproxy/gateway/internal/gatewayapi/resource"
	"github.com/envoyproxy/gateway/internal/ir"
	"github.com/envoyproxy/gateway/internal/logging"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kube-semaphore/semaphore/test/testkit/mirrored"
)

// members are the endpoints of the only route's only backend.
func members(t *testing.T, s mirrored.Service) []*ir.DestinationEndpoint {
	t.Helper()
	in := resource.NewResources()
	in.GatewayClass = &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "class"},
		Spec: gwapiv1.GatewayClassSpec{ControllerName: egv1a1.GatewayControllerName}}
	meta := metav1.ObjectMeta{Namespace: s.Service.Namespace, Name: "gateway"}
	from := &gwapiv1.RouteNamespaces{From: ptr.To(gwapiv1.NamespacesFromSame)}
	in.Gateways = []*gwapiv1.Gateway{{ObjectMeta: meta, Spec: gwapiv1.GatewaySpec{GatewayClassName: "class",
		Listeners: []gwapiv1.Listener{{Name: "http", Port: 80, Protocol: gwapiv1.HTTPProtocolType,
			AllowedRoutes: &gwapiv1.AllowedRoutes{Namespaces: from}}}}}}
	backend := gwapiv1.BackendObjectReference{Group: ptr.To(gwapiv1.Group("")), Kind: ptr.To(gwapiv1.Kind("Service")),
		Name: gwapiv1.ObjectName(s.Service.Name), Port: ptr.To(gwapiv1.PortNumber(mirrored.Port))}
	parent := gwapiv1.ParentReference{Group: ptr.To(gwapiv1.Group(gwapiv1.GroupName)),
		Kind: ptr.To(gwapiv1.Kind("Gateway")), Name: "gateway"}
	prefix := &gwapiv1.HTTPPathMatch{Type: ptr.To(gwapiv1.PathMatchPathPrefix), Value: ptr.To("/")}
	rule := gwapiv1.HTTPRouteRule{Matches: []gwapiv1.HTTPRouteMatch{{Path: prefix}}, BackendRefs: []gwapiv1.HTTPBackendRef{
		{BackendRef: gwapiv1.BackendRef{BackendObjectReference: backend, Weight: ptr.To[int32](1)}}}}
	in.HTTPRoutes = []*gwapiv1.HTTPRoute{{ObjectMeta: meta, Spec: gwapiv1.HTTPRouteSpec{
		CommonRouteSpec: gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{parent}},
		Rules:           []gwapiv1.HTTPRouteRule{rule}}}}
	in.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: s.Service.Namespace}}}
	in.Services = []*corev1.Service{s.Service}
	in.EndpointSlices = s.Slices
	in.Secrets = []*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "envoy"}}} // of Envoy's own connections
	translator := &gatewayapi.Translator{GatewayControllerName: egv1a1.GatewayControllerName, GatewayClassName: "class",
		Logger: logging.DefaultLogger(io.Discard, egv1a1.LogLevelError)}
	result, err := translator.Translate(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	var all []*ir.DestinationEndpoint
	for _, x := range result.XdsIR {
		for _, l := range x.HTTP {
			for _, r := range l.Routes {
				for _, d := range r.Destination.Settings {
					all = append(all, d.Endpoints...)
				}
			}
		}
	}
	return all
}

// TestEndpoints: the members that do not drain are the ready endpoints in use; new requests go to them alone. One that
// is ready while it terminates (publishNotReadyAddresses) drains for Envoy Gateway.
func TestEndpoints(t *testing.T) {
	for _, s := range append(mirrored.Services(t, corev1.ProtocolTCP), mirrored.OwnNames(t, corev1.ProtocolTCP)...) {
		want := s.Ready()
		for _, e := range s.Endpoints {
			if e.Terminating {
				want = slices.DeleteFunc(want, func(a string) bool { return a == e.Address })
			}
		}
		var got []string
		all := members(t, s)
		for _, m := range all {
			if m.Port != mirrored.TargetPort {
				t.Errorf("%s: %s has the port %d", s.Name, m.Host, m.Port)
			}
			if !m.Draining {
				got = append(got, m.Host)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: requests go to %q, not to %q", s.Name, got, want)
		}
		if len(all) < len(s.Endpoints) {
			t.Errorf("%s: %d members, of %d endpoints", s.Name, len(all), len(s.Endpoints))
		}
	}
}
