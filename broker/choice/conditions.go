package choice

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds the conditions of endpoints: which endpoints are in use, how the others look to readers of the
// slices, and how a later broker knows them again. docs/contracts.md names the readers.

// NotInUse returns the conditions of an endpoint that is not in use: neither ready nor serving. kube-proxy leaves UDP
// flows on an endpoint that serves, it falls back on one that serves while it terminates, and gateways take one that
// serves for a member. terminating stays as it is, and each condition is set: a missing serving counts as true.
func NotInUse(c discoveryv1.EndpointConditions) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false),
		Terminating: ptr.To(ptr.Deref(c.Terminating, false))}
}

// ExportedConditions returns the conditions of an endpoint in use, from those of its source. Each is set, because
// readers disagree about a missing one: kube-proxy takes a missing serving for true, Traefik and kube-router a missing
// ready for false, and ingress-nginx reads ready without asking whether it is there. A ready endpoint serves, and one
// that is not ready serves only while it terminates: Kubernetes has no other combination.
func ExportedConditions(e *semaphorev1.Endpoint) discoveryv1.EndpointConditions {
	ready, terminating := e.Ready == nil || *e.Ready, e.GetTerminating()
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: ptr.To(ready || terminating && e.GetServing()),
		Terminating: &terminating}
}

// UnusedIn returns the addresses of the endpoints of an existing slice that are ready at their source and not in use.
// The slice's conditions do not tell them from endpoints that are not ready.
func UnusedIn(o *discoveryv1.EndpointSlice) map[string]bool {
	out := map[string]bool{}
	if text := o.Annotations[naming.AnnotationUnusedEndpoints]; text != "" {
		for _, address := range strings.Split(text, ",") {
			out[address] = true
		}
	}
	return out
}

// AsExported returns an endpoint of an existing slice as its cluster exports it: ExportedConditions makes the existing
// conditions of it again. unused is the result of UnusedIn.
func AsExported(e *discoveryv1.Endpoint, unused map[string]bool) *semaphorev1.Endpoint {
	return &semaphorev1.Endpoint{Addresses: e.Addresses, Hostname: ptr.Deref(e.Hostname, ""),
		Ready:       ptr.To(ptr.Deref(e.Conditions.Ready, true) || unused[e.Addresses[0]]),
		Serving:     ptr.To(ptr.Deref(e.Conditions.Serving, true)),
		Terminating: e.Conditions.Terminating}
}
