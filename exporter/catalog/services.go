package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// PutService updates a Service. Its slices have the same audience.
func (c *Catalog) PutService(s *corev1.Service, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := (name{s.Namespace, s.Name}); c.rules.MultiCluster {
		if c.services[at] == nil && c.exports[at] != nil {
			c.offersVersion++ // its ServiceExport has a Service
		}
		c.services[at] = s
	}
	c.putService(s, now)
}

func (c *Catalog) putService(s *corev1.Service, now time.Time) {
	key, at := serviceKey(s.Namespace, s.Name), name{s.Namespace, s.Name}
	service, problem, ignored := c.rules.projectService(s, c.exports[at])
	c.setProblem(key, finding.UnsupportedServiceType, problem)
	c.setProblem(key, finding.InvalidServiceSetting, ignored)
	if service == nil {
		if problem == "" {
			c.setOffer(key, nil)
		} else {
			c.setOffer(key, &offered{uid: s.UID})
		}
		c.setProblem(key, finding.InvalidExportTo, "")
		c.withdrawService(key, now)
		return
	}
	to, problem := c.audience(config.Services, s.Namespace, s.Labels, s.Annotations)
	var by []string // by which values of the annotation nobody receives it
	if value, ok := s.Annotations[naming.AnnotationExportTo]; ok {
		by = append(by, fmt.Sprintf("%.100q", value))
	}
	wrong := problem // with the annotation that names last who receives it
	// A ServiceExport crosses with its Service as one object.
	if export := c.exports[at]; to != Nobody && export != nil {
		if to, wrong = c.narrowed(to, export.Annotations); to == Nobody {
			by = append(by, fmt.Sprintf("%.100q of its ServiceExport", export.Annotations[naming.AnnotationExportTo]))
		}
		problem = cmp.Or(wrong, problem)
	}
	c.setProblem(key, finding.InvalidExportTo, problem)
	offers := &offered{uid: s.UID}
	if to == Nobody && wrong == "" {
		ruled, _ := c.audience(config.Services, s.Namespace, s.Labels, nil)
		offers.withheld = withheld(ruled, by)
	}
	c.setOffer(key, offers)
	if service.GetGlobal() || service.GetMultiCluster() != nil {
		// The broker of the own cluster merges its Services too, whatever export rules and the annotation say.
		to = c.clusters.union(to, c.own)
	}
	if to == Nobody {
		c.withdrawService(key, now)
		return
	}
	old, had := c.journal.Get(key)
	narrower := had && c.clusters.subtract(old.To, to) != Nobody
	if narrower {
		// A cluster that loses the Service loses its slices first.
		c.putSlices(key, to, now)
	}
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Service{Service: service}}, to, now)
	if !narrower {
		// Slices that arrived before their Service. put does not touch slices that are exported already.
		c.putSlices(key, to, now)
	}
}

// putSlices puts the slices of a Service for an audience, in an order that does not vary.
func (c *Catalog) putSlices(service Key, to Audience, now time.Time) {
	all := c.slices[name{service.Namespace, service.Name}]
	for _, slice := range slices.Sorted(maps.Keys(all)) {
		c.putSlice(all[slice], to, now)
	}
}

func (c *Catalog) DeleteService(namespace, serviceName string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serviceKey(namespace, serviceName)
	c.forgetProblems(key)
	c.setOffer(key, nil)
	delete(c.services, name{namespace, serviceName})
	c.offersVersion++ // its ServiceExport, if there is one, exports nothing
	c.withdrawService(key, now)
}

// withdrawService withdraws the slices before their Service: no receiver has a slice without its Service.
func (c *Catalog) withdrawService(key Key, now time.Time) {
	c.putSlices(key, Nobody, now)
	c.withdraw(key, now)
}

func (c *Catalog) PutSlice(s *discoveryv1.EndpointSlice, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	service := c.rememberSlice(name{s.Namespace, s.Name}, s)
	// The audience is empty while the Service is not exported. The slice may have belonged to another Service before.
	of, _ := c.journal.Get(serviceKey(service.namespace, service.name))
	c.putSlice(s, of.To, now)
}

// putSlice exports a slice to an audience, if it is looked at.
func (c *Catalog) putSlice(s *discoveryv1.EndpointSlice, to Audience, now time.Time) {
	if !c.selects(s) {
		c.withdrawSlice(s.Namespace, s.Name, now)
		return
	}
	key := sliceKey(s.Namespace, s.Name)
	slice, located, outside := projectSlice(s, c.rules.PodSubnets)
	c.setProblem(key, finding.IPOutsideOwnPodSubnets, outside)
	c.setLocation(key, located)
	if slice == nil {
		c.withdraw(key, now)
		return
	}
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: slice}}, to,
		now)
}

func (c *Catalog) DeleteSlice(namespace, sliceName string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rememberSlice(name{namespace, sliceName}, nil)
	c.withdrawSlice(namespace, sliceName, now)
}

func (c *Catalog) withdrawSlice(namespace, sliceName string, now time.Time) {
	key := sliceKey(namespace, sliceName)
	c.forgetProblems(key)
	c.setLocation(key, nil)
	c.withdraw(key, now)
}

func serviceKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: namespace, Name: name}
}

func sliceKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: namespace, Name: name}
}
