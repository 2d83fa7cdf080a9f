// Package traefik shows what the broker writes to Traefik's own providers: of Ingresses and of its IngressRoutes.
package traefik

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/log"
	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/provider/kubernetes/crd"
	"github.com/traefik/traefik/v3/pkg/provider/kubernetes/crd/traefikio/v1alpha1"
	"github.com/traefik/traefik/v3/pkg/provider/kubernetes/ingress"
	"github.com/traefik/traefik/v3/pkg/safe"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/test/testkit/mirrored"
)

func init() { log.Logger = zerolog.New(io.Discard) }

// apiserver answers lists of these objects, by resource, and watches in which nothing happens.
func apiserver(t *testing.T, objects map[string]any) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Has("sendInitialEvents"): // a client that is refused lists instead
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: 422})
		case query.Has("watch"):
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": "1"},
				"items": objects[path.Base(r.URL.Path)]})
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// provider is one of Traefik's.
type provider interface {
	Provide(configurations chan<- dynamic.Message, pool *safe.Pool) error
}

// configuration is the first with as many services as there are.
func configuration(t *testing.T, p provider, services int) *dynamic.HTTPConfiguration {
	t.Helper()
	configurations, pool := make(chan dynamic.Message, 100), safe.NewPool(t.Context())
	t.Cleanup(pool.Stop)
	if err := p.Provide(configurations, pool); err != nil {
		t.Fatal(err)
	}
	last := 0
	for late := time.After(30 * time.Second); ; {
		select {
		case m := <-configurations:
			if last = len(m.Configuration.HTTP.Services); last == services {
				return m.Configuration.HTTP
			}
		case <-late:
			t.Fatalf("Traefik has %d services, not %d", last, services)
		}
	}
}

// name and host are those of the n-th Service here: all states are in one cluster.
func name(n int) string { return fmt.Sprint("state-", n) }
func host(n int) string { return fmt.Sprintf("s%d.example", n) }

// TestServers: the servers that take new sessions are the ready endpoints in use. One that terminates is fenced, and of
// one that is not in use nothing is left.
func TestServers(t *testing.T) {
	services := append(mirrored.Services(t, corev1.ProtocolTCP), ownNames(t)...)
	var all []*corev1.Service
	var endpoints []*discoveryv1.EndpointSlice
	var rules []netv1.IngressRule
	var routes []v1alpha1.Route
	for i, s := range services {
		s.Service.Name = name(i)
		all = append(all, s.Service)
		for _, slice := range s.Slices {
			slice.Name, slice.Labels[discoveryv1.LabelServiceName] = name(i)+"-"+slice.Name, name(i)
			endpoints = append(endpoints, slice)
		}
		rules = append(rules, netv1.IngressRule{Host: host(i), IngressRuleValue: netv1.IngressRuleValue{
			HTTP: &netv1.HTTPIngressRuleValue{Paths: []netv1.HTTPIngressPath{{PathType: ptr.To(netv1.PathTypePrefix), Path: "/",
				Backend: netv1.IngressBackend{Service: &netv1.IngressServiceBackend{Name: name(i),
					Port: netv1.ServiceBackendPort{Number: mirrored.Port}}}}}}}})
		routes = append(routes, v1alpha1.Route{Kind: "Rule", Match: "Host(`" + host(i) + "`)",
			Services: []v1alpha1.Service{{LoadBalancerSpec: v1alpha1.LoadBalancerSpec{Name: name(i),
				Port: intstr.FromInt32(mirrored.Port)}}}})
	}
	meta := metav1.ObjectMeta{Namespace: all[0].Namespace, Name: "web"}
	server := apiserver(t, map[string]any{"services": all, "endpointslices": endpoints,
		"ingresses":     []netv1.Ingress{{ObjectMeta: meta, Spec: netv1.IngressSpec{Rules: rules}}},
		"ingressroutes": []v1alpha1.IngressRoute{{ObjectMeta: meta, Spec: v1alpha1.IngressRouteSpec{Routes: routes}}}})
	for kind, p := range map[string]provider{
		"Ingress":      &ingress.Provider{Endpoint: server, AllowEmptyServices: true},
		"IngressRoute": &crd.Provider{Endpoint: server, AllowEmptyServices: true},
	} {
		t.Run(kind, func(t *testing.T) {
			of := configuration(t, p, len(services))
			for i, s := range services {
				check(t, s, servers(t, of, host(i)))
			}
		})
	}
}

// ownNames are in the namespace of the others here: an Ingress leads to Services of its own namespace.
func ownNames(t *testing.T) []mirrored.Service {
	t.Helper()
	namespace := mirrored.Services(t, corev1.ProtocolTCP)[0].Service.Namespace
	all := mirrored.OwnNames(t, corev1.ProtocolTCP)
	for _, s := range all {
		s.Service.Namespace = namespace
		for _, slice := range s.Slices {
			slice.Namespace = namespace
		}
	}
	return all
}

// servers are those of the service to which the router of a host leads.
func servers(t *testing.T, of *dynamic.HTTPConfiguration, host string) []dynamic.Server {
	t.Helper()
	for _, r := range of.Routers {
		if strings.Contains(r.Rule, host) {
			return of.Services[r.Service].LoadBalancer.Servers
		}
	}
	t.Fatalf("no router for %s", host)
	return nil
}

func check(t *testing.T, s mirrored.Service, servers []dynamic.Server) {
	t.Helper()
	want := s.Ready()
	ending := map[string]bool{}
	for _, e := range s.Endpoints {
		if ending[e.Address] = e.Terminating; e.Terminating {
			want = slices.DeleteFunc(want, func(a string) bool { return a == e.Address })
		}
	}
	var open []string
	for _, server := range servers {
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(u.Host)
		switch address := at.Addr().String(); {
		case at.Port() != mirrored.TargetPort:
			t.Errorf("%s: the server %s", s.Name, at)
		case !server.Fenced:
			open = append(open, address)
		case !s.InUse || !ending[address]:
			t.Errorf("%s: %s is fenced", s.Name, address)
		}
	}
	slices.Sort(open)
	if !slices.Equal(open, want) {
		t.Errorf("%s: the servers are %q, not %q", s.Name, open, want)
	}
}
