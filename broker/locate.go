package broker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// locate reports the state of an object of any remote in this broker: accepted, desired, and written or programmed. It
// decides nothing: it reads earlier decisions, and the apiserver.
func (p *process) locate(ctx context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
	b, err := p.leader()
	if err != nil {
		return nil, err
	}
	l := locating{process: p, b: b, of: replica.KeyOf(req.GetObject())}
	if cluster := req.GetCluster(); cluster != "" {
		for _, key := range p.federation.Accepted(cluster, l.of) {
			l.Add(debug.Place{Hop: debug.HopAccept, Object: key.String(), Cluster: cluster, State: debug.PlaceDone})
		}
		return &l.LocateResponse, nil
	}
	found := p.federation.Locate(l.of)
	for _, f := range found {
		l.accepted(f)
	}
	switch {
	case l.of.Kind == semaphorev1.Kind_KIND_SERVICE && l.b.services != nil:
		if err := l.services(ctx, found); err != nil {
			return nil, err
		}
	case l.of.Kind == semaphorev1.Kind_KIND_NODE && l.b.peering != nil:
		l.nodes(found)
	case l.of.Kind == semaphorev1.Kind_KIND_SET_MEMBER && l.b.sets != nil:
		l.sets()
	}
	return &l.LocateResponse, nil
}

// locating collects one answer.
type locating struct {
	debug.Places
	process *process
	b       *broker
	of      replica.Key
}

// accepted adds the state of the object in one cluster's replica. A cluster without the object gets no line if its
// snapshot is complete.
func (l *locating) accepted(f federation.Located) {
	for _, o := range f.Objects {
		place := debug.Place{Hop: debug.HopAccept, Object: o.Key.String(), Cluster: f.Cluster, State: debug.PlaceDone,
			Confirmed: f.Heard, Detail: fmt.Sprintf("revision %d", o.Revision)}
		switch {
		case o.Refused != nil && o.Object != nil:
			place.State, place.Detail = debug.PlaceFailed, "a part is refused: "+string(o.Refused.Code)+": "+o.Refused.Reason
		case o.Refused != nil:
			place.State, place.Detail = debug.PlaceFailed, string(o.Refused.Code)+": "+o.Refused.Reason
		case o.Object != nil && !o.RetainedSince.IsZero():
			place.State = debug.PlaceWaiting
			place.Detail = fmt.Sprintf("withdrawn, and retained by the brake since %s: semaphorectl release %s",
				o.RetainedSince.UTC().Format(time.TimeOnly+"Z"), f.Cluster)
		case o.Object != nil:
		case !f.Complete:
			place.State, place.Detail = debug.PlaceWaiting, "the cluster has not sent its first snapshot of this kind"
		default:
			continue
		}
		l.Add(place)
	}
}

// services adds the Services that the plan derives from the object, and their state in the apiserver.
func (l *locating) services(ctx context.Context, found []federation.Located) error {
	failing := map[string]string{}
	if l.b.failing != nil {
		failing = l.b.failing()
	}
	planned := false
	for _, d := range l.b.services.Services() {
		if d.Namespace != l.of.Namespace || d.Name != l.of.Name {
			continue
		}
		planned = true
		object := "service " + l.process.cfg.MirrorNamespace + "/" + d.Service
		l.Add(debug.Place{Hop: debug.HopPlan, Object: object, Cluster: sourceOf(d), State: debug.PlaceDone,
			Detail: describe(d)})
		if err := l.written(ctx, d, object, failing[d.Service]); err != nil {
			return err
		}
		if err := l.ownName(ctx, d); err != nil {
			return err
		}
	}
	if planned {
		return nil
	}
	for _, f := range found {
		for _, o := range f.Objects {
			if o.Key == l.of && o.Object != nil {
				l.Add(debug.Place{Hop: debug.HopPlan, Object: o.Key.String(), Cluster: f.Cluster, State: debug.PlaceFailed,
					Detail: "no Service is made of it: see semaphorectl status"})
			}
		}
	}
	return nil
}

// sourceOf returns the cluster of a mirror; empty for a Service of several clusters.
func sourceOf(d services.Described) string {
	if !d.Global && len(d.Clusters) == 1 {
		return d.Clusters[0].Cluster
	}
	return ""
}

// describe returns a text about a Service's endpoints.
func describe(d services.Described) string {
	text := "mirror"
	if d.Global {
		text = "of several clusters"
	}
	for _, c := range d.Clusters {
		text += fmt.Sprintf("; %s: %d of %d endpoints ready", c.Cluster, c.Ready, c.Endpoints)
		switch {
		case c.Gone:
			text += ", the cluster is gone"
		case !c.InUse:
			text += ", not in use"
		}
		if c.Drained > 0 {
			text += fmt.Sprintf(", %d drained", c.Drained)
		}
	}
	return text
}

// written adds the state of a Service in the apiserver: whether it and its slices exist, and when the broker last wrote
// them.
func (l *locating) written(ctx context.Context, d services.Described, object, failing string) error {
	place := debug.Place{Hop: debug.HopWrite, Object: object, Cluster: sourceOf(d)}
	namespace := l.process.cfg.MirrorNamespace
	service, err := l.process.client.CoreV1().Services(namespace).Get(ctx, d.Service, metav1.GetOptions{})
	switch {
	case failing != "":
		place.State, place.Detail = debug.PlaceFailed, failing
		l.Add(place)
		return nil
	case apierrors.IsNotFound(err):
		place.State = debug.PlaceWaiting
		place.Detail = "the apiserver does not have it yet" + l.delay(writes.Service, d.Service)
		l.Add(place)
		return nil
	case err != nil:
		return status.Errorf(codes.Unavailable, "%s: %v", object, err)
	}
	list, err := l.process.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + d.Service})
	if err != nil {
		return status.Errorf(codes.Unavailable, "slices of %s: %v", object, err)
	}
	planned, endpoints, at, delays := 0, 0, writtenAt(service), l.delay(writes.Service, d.Service)
	for _, c := range d.Clusters {
		planned += c.Endpoints
	}
	for i := range list.Items {
		for _, e := range list.Items[i].Endpoints {
			endpoints += len(e.Addresses)
		}
		if t := writtenAt(&list.Items[i]); t.After(at) {
			at = t
		}
		delays = cmp.Or(delays, l.delay(writes.EndpointSlice, list.Items[i].Name))
	}
	place.State, place.Confirmed = debug.PlaceDone, at
	place.Detail = fmt.Sprintf("IP %s; slices: %d, endpoints: %d%s", strings.Join(service.Spec.ClusterIPs, ", "),
		len(list.Items), endpoints, delays)
	if delays != "" || endpoints == 0 && planned > 0 {
		place.State = debug.PlaceWaiting
	}
	l.Add(place)
	return nil
}

// ownName adds where the own name of a Service of this cluster leads, and the slices that lead it there.
func (l *locating) ownName(ctx context.Context, d services.Described) error {
	if d.Own == nil {
		return nil
	}
	object := "service " + d.Namespace + "/" + d.Name
	l.Add(debug.Place{Hop: debug.HopPlan, Object: object, State: debug.PlaceDone, Detail: d.Own.String()})
	list, err := l.process.client.DiscoveryV1().EndpointSlices(d.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: writes.OwnedOwnSlices + "," + discoveryv1.LabelServiceName + "=" + d.Name})
	if err != nil {
		return status.Errorf(codes.Unavailable, "slices of %s: %v", object, err)
	}
	if len(d.Own.Clusters)+len(list.Items) == 0 {
		return nil
	}
	place := debug.Place{Hop: debug.HopWrite, Object: object, State: debug.PlaceDone}
	there, endpoints, delays := map[string]bool{}, 0, ""
	for i := range list.Items {
		s := &list.Items[i]
		there[s.Labels[naming.LabelSourceCluster]], endpoints = true, endpoints+len(s.Endpoints)
		if t := writtenAt(s); t.After(place.Confirmed) {
			place.Confirmed = t
		}
		delays = cmp.Or(delays, l.delay(writes.OwnSlice, d.Namespace+"/"+s.Name))
	}
	for _, cluster := range d.Own.Clusters {
		if !there[cluster] {
			delays += "; those of " + cluster + " are not written yet"
		}
	}
	place.Detail = fmt.Sprintf("slices of other clusters: %d, endpoints: %d%s", len(list.Items), endpoints, delays)
	if delays != "" {
		place.State = debug.PlaceWaiting
	}
	l.Add(place)
	return nil
}

// delay returns why the write of an object is delayed; empty if it is not.
func (l *locating) delay(kind writes.ObjectKind, name string) string {
	for _, loop := range l.b.loops {
		if w, ok := loop.writer.(interface{ Delay(name string) string }); ok && loop.kind == kind {
			if why := w.Delay(name); why != "" {
				return fmt.Sprintf("; %s %s: %s", kind, name, why)
			}
		}
	}
	return ""
}

// writtenAt returns when the broker last wrote an object, or when the object was created if that is not recorded.
func writtenAt(o metav1.Object) time.Time {
	at := o.GetCreationTimestamp().Time
	for _, f := range o.GetManagedFields() {
		if f.Manager == writes.FieldManager && f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

// nodes adds the peers that agents receive, and the number of agents that have programmed each.
func (l *locating) nodes(found []federation.Located) {
	for _, f := range found {
		object, s := "peer "+f.Cluster+"/"+l.of.Name, l.b.peering.Locate(f.Cluster, l.of.Name)
		held := slices.ContainsFunc(f.Objects, func(o replica.Located) bool { return o.Object != nil })
		place := debug.Place{Hop: debug.HopPlan, Object: object, Cluster: f.Cluster, Observed: s.ObservedAt}
		switch {
		case s.Peer != nil:
			place.State = debug.PlaceDone
			place.Detail = fmt.Sprintf("endpoint %s, allowed IPs %s, revision %d", s.Peer.GetWireguard().GetAddress(),
				strings.Join(s.Peer.GetAllowedIps(), " "), s.Revision)
		case held:
			place.State, place.Detail = debug.PlaceFailed, "no peer is made of it: see semaphorectl status"
		case s.Revision > 0:
			place.State, place.Detail = debug.PlaceAbsent, fmt.Sprintf("removed, revision %d", s.Revision)
		default:
			continue
		}
		l.Add(place)
		if s.Revision == 0 {
			continue
		}
		place = debug.Place{Hop: debug.HopAgents, Object: object, Cluster: f.Cluster, State: debug.PlaceDone,
			Observed: s.ObservedAt, Detail: fmt.Sprintf("%d of %d attached agents have programmed it", s.Applied, s.Attached)}
		if s.Applied < s.Attached {
			place.State = debug.PlaceWaiting
			place.Detail += ", not " + strings.Join(s.Waiting, ", ")
		}
		l.Add(place)
	}
}

// sets adds the sets that a pod is in, and whether their objects have its addresses.
func (l *locating) sets() {
	of := &semaphorev1.ListSetsRequest{Namespace: l.of.Namespace, Pod: l.of.Name}
	for _, s := range l.b.sets.Sets(of, netip.Addr{}) {
		var ips []string
		for _, pod := range s.GetPods() {
			if pod.GetName() == l.of.Name {
				ips = append(ips, pod.GetIps()...)
			}
		}
		set := "set " + s.GetNamespace() + "/" + s.GetName()
		l.Add(debug.Place{Hop: debug.HopPlan, Object: set, Cluster: s.GetCluster(), State: debug.PlaceDone,
			Detail: "IPs " + strings.Join(ips, " ")})
		place := debug.Place{Hop: debug.HopWrite, Object: set, Cluster: s.GetCluster(), State: debug.PlaceDone}
		var objects []string
		for _, o := range s.GetObjects() {
			kind, name := writes.GlobalNetworkSet, o.GetName()
			if o.GetNamespace() != "" {
				kind, name = writes.NetworkSet, o.GetNamespace()+"/"+name
			}
			delay := l.delay(kind, name)
			if delay != "" {
				place.State = debug.PlaceWaiting
			}
			objects = append(objects, fmt.Sprintf("%s %s has %d of %d addresses%s", kind, name, o.GetPresent(), o.GetDesired(),
				delay))
		}
		place.Detail = strings.Join(objects, "; ")
		switch {
		case s.GetProblem() != "":
			place.State, place.Detail = debug.PlaceFailed, s.GetProblem()
		case slices.ContainsFunc(ips, func(ip string) bool { return slices.Contains(s.GetMissing(), ip) }):
			place.State = debug.PlaceWaiting
		}
		l.Add(place)
	}
}
