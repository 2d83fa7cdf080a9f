package catalog

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// PutService takes a Service as it is now. Its slices are for whom it is for.
func (c *Catalog) PutService(s *corev1.Service, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serviceKey(s.Namespace, s.Name)
	service, problem, unheeded := c.rules.projectService(s)
	c.problem(key, NotOffered, problem)
	c.problem(key, ServiceSettings, unheeded)
	if service == nil {
		if problem == "" {
			c.offer(key, nil)
		} else {
			c.offer(key, &offered{uid: s.UID})
		}
		c.problem(key, ExportTo, "")
		c.withdrawService(key, now)
		return
	}
	to, problem := c.audience(config.Services, s.Namespace, s.Labels, s.Annotations)
	c.problem(key, ExportTo, problem)
	offers := &offered{uid: s.UID}
	if to == Nobody && problem == "" {
		ruled, _ := c.audience(config.Services, s.Namespace, s.Labels, nil)
		offers.withheld = c.withheld(ruled, s.Annotations)
	}
	c.offer(key, offers)
	if service.GetGlobal() {
		// Nothing leaves the cluster by it, so nothing that keeps it from others concerns it.
		to = c.all.either(to, c.home)
	}
	if to == Nobody {
		c.withdrawService(key, now)
		return
	}
	old, had := c.journal.Get(key)
	narrower := had && c.all.without(old.To, to) != Nobody
	if narrower {
		// Who loses the Service loses its slices first.
		c.putSlices(key, to, now)
	}
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Service{Service: service}}, to, now)
	if !narrower {
		// Those that came before their Service. Slices that are exported already are not touched by put.
		c.putSlices(key, to, now)
	}
}

func (c *Catalog) putSlices(service Key, to Audience, now time.Time) {
	for _, slice := range c.slicesOf(name{service.Namespace, service.Name}) {
		c.put(sliceKey(slice.GetKey()), slice, to, now)
	}
}

// DeleteService takes a Service's end.
func (c *Catalog) DeleteService(namespace, name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serviceKey(namespace, name)
	c.forgetProblems(key)
	c.offer(key, nil)
	c.withdrawService(key, now)
}

// withdrawService takes the slices before their Service: nowhere is a slice without one.
func (c *Catalog) withdrawService(key Key, now time.Time) {
	c.putSlices(key, Nobody, now)
	c.problem(key, Unsendable, "")
	c.withdraw(key, now)
}

// PutSlice takes an EndpointSlice as it is now.
func (c *Catalog) PutSlice(s *discoveryv1.EndpointSlice, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := name{s.Namespace, s.Name}
	service := name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
	key := sliceKey(&semaphorev1.ObjectKey{Namespace: s.Namespace, Name: s.Name})
	if old, ok := c.serviceOf[at]; ok && old != service {
		c.forgetSlice(at)
	}
	slice, located, outside := projectSlice(s, c.rules.PodSubnets)
	c.problem(key, OutsidePodSubnets, outside)
	c.locate(key, located)
	if slice == nil {
		c.forgetSlice(at)
		c.problem(key, Unsendable, "")
		c.withdraw(key, now)
		return
	}
	c.serviceOf[at] = service
	if c.slices[service] == nil {
		c.slices[service] = map[string]*semaphorev1.Object{}
	}
	object := &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: slice}}
	c.slices[service][s.Name] = object
	// For nobody while its Service is not exported; it may have been another Service's until now.
	of, _ := c.journal.Get(serviceKey(service.namespace, service.name))
	c.put(key, object, of.To, now)
}

// DeleteSlice takes an EndpointSlice's end.
func (c *Catalog) DeleteSlice(namespace, sliceName string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sliceKey(&semaphorev1.ObjectKey{Namespace: namespace, Name: sliceName})
	c.forgetSlice(name{namespace, sliceName})
	c.forgetProblems(key)
	c.locate(key, nil)
	c.withdraw(key, now)
}

// slicesOf are the slices of a Service in the order of their names: what is told, and when, depends on what
// happened alone.
func (c *Catalog) slicesOf(service name) []*semaphorev1.Object {
	all := c.slices[service]
	out := make([]*semaphorev1.Object, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[key])
	}
	return out
}

// forgetSlice takes a slice out of its Service's.
func (c *Catalog) forgetSlice(at name) {
	service, ok := c.serviceOf[at]
	if !ok {
		return
	}
	delete(c.serviceOf, at)
	delete(c.slices[service], at.name)
	if len(c.slices[service]) == 0 {
		delete(c.slices, service)
	}
}

func serviceKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: namespace, Name: name}
}

func sliceKey(k *semaphorev1.ObjectKey) Key {
	return Key{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: k.GetNamespace(), Name: k.GetName()}
}
