package exporter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// locate says where an object is in this exporter: read, exported, and acknowledged by each broker. It decides nothing:
// it reads decisions.
func (e *exporter) locate(_ context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
	if err := e.elector.Standby(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "%v: ask the exporter that leads", err)
	}
	of, out := req.GetObject(), &debug.Places{}
	if there := e.locateSource(of, out); !there && e.watcher.Synced() != nil {
		return &out.LocateResponse, nil // not read yet: nothing can be said
	}
	for _, l := range e.catalog.Locate(of.GetKind(), of.GetNamespace(), of.GetName()) {
		if l.Key.Kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE && of.GetKind() != l.Key.Kind && l.Revision == 0 {
			continue // a slice of a Service that is not exported says no more than the Service
		}
		e.locateExport(l, out)
	}
	return &out.LocateResponse, nil
}

// locateSource adds the object as the exporter has read it, and reports whether it is there.
func (e *exporter) locateSource(of *semaphorev1.ObjectKey, out *debug.Places) (there bool) {
	key := catalog.Key{Kind: of.GetKind(), Namespace: of.GetNamespace(), Name: of.GetName()}
	place := debug.Place{Hop: debug.HopSource, Object: key.String(), Cluster: e.cfg.Cluster, State: debug.PlaceAbsent,
		Detail: "the cluster has no such object, or none that the exporter reads (by label)"}
	if err := e.watcher.Synced(); err != nil {
		place.State, place.Detail = debug.PlaceWaiting, err.Error()
	}
	o := e.watcher.Known(of.GetKind(), of.GetNamespace(), of.GetName())
	if o != nil {
		place.State, place.Detail = debug.PlaceDone, "resourceVersion "+o.GetResourceVersion()
	}
	out.Add(place)
	return o != nil
}

// locateExport adds its exported form, and how far each stream is with it.
func (e *exporter) locateExport(l catalog.Located, out *debug.Places) {
	place := debug.Place{Hop: debug.HopExport, Object: l.Key.String(), Observed: l.ObservedAt, State: debug.PlaceAbsent}
	why := strings.Join(l.Problems, "; ")
	switch {
	case l.Exported:
		place.State, place.Detail = debug.PlaceDone, fmt.Sprintf("to %s, revision %d", l.To, l.Revision)
		if why != "" {
			place.Detail += "; " + why
		}
	case why != "":
		place.State, place.Detail = debug.PlaceFailed, why
	case l.Revision > 0:
		place.Detail = fmt.Sprintf("withdrawn from %s, revision %d", l.To, l.Revision)
	default:
		place.Detail = "not exported: no label, export or rule asks for it"
	}
	out.Add(place)
	if l.Revision == 0 {
		return
	}
	for _, p := range e.all() {
		cluster := p.Broker().Cluster
		if !l.To.Has(cluster) || !slices.Contains(e.catalog.Rules().KindsFor(cluster), l.Key.Kind) {
			continue
		}
		state, detail, heard := p.Locate(l.Key, l.Revision)
		out.Add(debug.Place{Hop: debug.HopStream, Object: l.Key.String(), Cluster: cluster, State: state, Detail: detail,
			Observed: l.ObservedAt, Confirmed: heard})
	}
}
