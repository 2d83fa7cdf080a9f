package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file holds the exports by ServiceExports (KEP-1645). A Service and its slices have no label of an export, so
// the catalog is given all of a cluster, and remembers those that it does not export.

// ServiceExport is a ServiceExport of the own cluster, with the exported form of its Service.
type ServiceExport struct {
	Namespace, Name string
	UID             types.UID
	Generation      int64
	// Valid is the reason of the condition Valid: mcsv1beta1.ServiceExportReasonValid if it is true. Reason says why it
	// is not.
	Valid  mcsv1beta1.ServiceExportConditionReason
	Reason string
	// Offer is the Service; nil if there is none, or one that cannot be exported.
	Offer *Offer
}

func (c *Catalog) PutExport(e *mcsv1beta1.ServiceExport, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := name{e.Namespace, e.Name}
	if e.DeletionTimestamp != nil {
		e = nil
	}
	c.setExport(at, e, now)
}

func (c *Catalog) DeleteExport(namespace, exportName string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setExport(name{namespace, exportName}, nil, now)
}

func (c *Catalog) setExport(at name, e *mcsv1beta1.ServiceExport, now time.Time) {
	c.offersVersion++
	if e == nil {
		delete(c.exports, at)
	} else {
		c.exports[at] = e
	}
	if s := c.services[at]; s != nil {
		c.putService(s, now)
	} else {
		c.putSlices(serviceKey(at.namespace, at.name), Nobody, now)
	}
}

// rememberSlice remembers a slice, nil if it was deleted, and returns its Service. It remembers those that are not
// exported, too: those that Kubernetes does not make have the labels of their author, and not of their Service.
func (c *Catalog) rememberSlice(at name, s *discoveryv1.EndpointSlice) (service name) {
	if old, ok := c.serviceOf[at]; ok {
		delete(c.slices[old], at.name)
		if len(c.slices[old]) == 0 {
			delete(c.slices, old)
		}
		delete(c.serviceOf, at)
	}
	if s == nil || s.Labels[discoveryv1.LabelServiceName] == "" {
		return service
	}
	service = name{at.namespace, s.Labels[discoveryv1.LabelServiceName]}
	if c.slices[service] == nil {
		c.slices[service] = map[string]*discoveryv1.EndpointSlice{}
	}
	c.slices[service][at.name] = s
	c.serviceOf[at] = service
	return service
}

// selects reports whether an EndpointSlice is looked at: its Service is offered. The EndpointSlice controller copies
// the labels that offer a Service to its slices, so that a slice can come before its Service.
func (c *Catalog) selects(s *discoveryv1.EndpointSlice) bool {
	set, service := labels.Set(s.Labels), name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
	return c.rules.Mirror.Matches(set) || c.rules.Global.Matches(set) ||
		c.offers[service] != nil || c.exports[service] != nil
}

// multiClusterExport returns the exported form of a ServiceExport. ignored lists the omitted parts.
func multiClusterExport(s *corev1.Service, e *mcsv1beta1.ServiceExport) (out *semaphorev1.MultiClusterExport,
	ignored []string) {
	out = &semaphorev1.MultiClusterExport{InternalTrafficPolicy: string(value(s.Spec.InternalTrafficPolicy))}
	pairs := func(field string, from map[string]string, add func(key, value string)) {
		size, reserved := 0, []string(nil)
		keys := slices.Sorted(maps.Keys(from))
		for _, key := range keys {
			size += len(key) + len(from[key])
		}
		if len(from) > naming.MaxExported || size > naming.MaxExportedBytes {
			ignored = append(ignored,
				fmt.Sprintf("spec.%s of its ServiceExport has %d entries of %d bytes and is not exported: "+
					"use up to %d entries of %d bytes", field, len(from), size, naming.MaxExported, naming.MaxExportedBytes))
			return
		}
		for _, key := range keys {
			if naming.Reserved(key) {
				reserved = append(reserved, key)
				continue
			}
			add(key, from[key])
		}
		if len(reserved) > 0 {
			ignored = append(ignored, fmt.Sprintf("spec.%s of its ServiceExport: %.200s is reserved and not exported: use keys "+
				"that neither Kubernetes nor a deployment tool acts on", field, strings.Join(reserved, ", ")))
		}
	}
	pairs("exportedLabels", e.Spec.ExportedLabels, func(key, value string) {
		out.Labels = append(out.Labels, &semaphorev1.Label{Key: key, Value: value})
	})
	pairs("exportedAnnotations", e.Spec.ExportedAnnotations, func(key, value string) {
		out.Annotations = append(out.Annotations, &semaphorev1.Annotation{Key: key, Value: value})
	})
	return out, ignored
}

func (c *Catalog) ServiceExports() []ServiceExport {
	offers := map[name]*Offer{}
	for _, o := range c.Offers() {
		offers[name{o.Namespace, o.Name}] = &o
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]ServiceExport, 0, len(c.exports))
	for at, e := range c.exports {
		x := ServiceExport{Namespace: at.namespace, Name: at.name, UID: e.UID, Generation: e.Generation,
			Valid: mcsv1beta1.ServiceExportReasonValid}
		switch s := c.services[at]; {
		case s == nil:
			x.Valid, x.Reason = mcsv1beta1.ServiceExportReasonNoService,
				fmt.Sprintf("there is no Service %s in namespace %s", at.name, at.namespace)
		case s.Spec.Type == corev1.ServiceTypeExternalName:
			x.Valid, x.Reason = mcsv1beta1.ServiceExportReasonInvalidServiceType,
				"a Service of type ExternalName has no endpoints to export: export the Service that it names"
		case isImported(s.Labels):
			x.Valid, x.Reason = mcsv1beta1.ServiceExportReasonInvalidServiceType,
				"the Service is one of another cluster: export it there"
		default:
			x.Offer = offers[at]
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b ServiceExport) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// TrimExport removes all fields of a ServiceExport that the catalog does not read.
func TrimExport(e *mcsv1beta1.ServiceExport) {
	e.ObjectMeta = metav1.ObjectMeta{
		Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion, Generation: e.Generation,
		DeletionTimestamp: e.DeletionTimestamp, Annotations: Kept(e.Annotations, IsExportTo),
	}
	e.Status = mcsv1beta1.ServiceExportStatus{}
}
