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
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/choice"
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
	case l.of.Kind == semaphorev1.Kind_KIND_NODE && l.b.Peering != nil:
		l.nodes(found)
	case l.of.Kind == semaphorev1.Kind_KIND_SET_MEMBER && l.b.sets != nil:
		l.sets()
	}
	return &l.LocateResponse, nil
}

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

// services adds the Services that the plan derives from the object, and their state in the apiserver, and those that
// exist of it and are not derived from it any longer.
func (l *locating) services(ctx context.Context, found []federation.Located) error {
	all := slices.DeleteFunc(l.b.services.Services(), func(d services.Described) bool {
		return d.Namespace != l.of.Namespace || d.Name != l.of.Name
	})
	planned := len(all)
	all = append(all, l.others(all)...)
	written, err := l.slices(ctx, all)
	if err != nil {
		return err
	}
	failing := l.b.failing()
	for i, d := range all {
		object := "service " + l.process.cfg.MirrorNamespace + "/" + d.Service
		if i < planned {
			l.Add(debug.Place{Hop: debug.HopPlan, Object: object, Cluster: sourceOf(d), State: debug.PlaceDone,
				Detail: describe(d)})
		} else if len(written[d.Service]) == 0 && !l.b.services.ServiceExists(d.Service) {
			continue
		}
		if err := l.written(ctx, d, i < planned, written[d.Service], failing[d.Service]); err != nil {
			return err
		}
		if err := l.ownName(ctx, d); err != nil {
			return err
		}
	}
	if planned > 0 {
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

// others returns the Services with the other names that the broker may have given to some that it made of the object.
func (l *locating) others(planned []services.Described) (out []services.Described) {
	add := func(name string, global bool, clusters ...services.DescribedCluster) {
		is := func(d services.Described) bool { return d.Service == name }
		if len(validation.IsValidLabelValue(name)) == 0 && !slices.ContainsFunc(planned, is) {
			out = append(out, services.Described{Service: name, Namespace: l.of.Namespace, Name: l.of.Name, Global: global,
				Clusters: clusters})
		}
	}
	add(naming.Global(l.of.Namespace, l.of.Name), true)
	add(naming.Import(l.of.Namespace, l.of.Name), true)
	for _, r := range l.b.cfg.Load().Remotes {
		add(naming.Mirror(r.ServicePrefix, l.of.Namespace, l.of.Name), false, services.DescribedCluster{Cluster: r.Name})
	}
	return out
}

// slices returns the EndpointSlices that exist of some Services, by the name of the Service.
func (l *locating) slices(ctx context.Context, all []services.Described) (of map[string][]discoveryv1.EndpointSlice,
	err error) {
	var names []string
	for _, d := range all {
		names = append(names, d.Service)
	}
	if len(names) == 0 {
		return nil, nil // the object's name is none
	}
	list, err := l.process.client.DiscoveryV1().EndpointSlices(l.process.cfg.MirrorNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + " in (" + strings.Join(names, ",") + ")"})
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "slices of %s: %v", l.of, err)
	}
	of = map[string][]discoveryv1.EndpointSlice{}
	for _, s := range list.Items {
		name := s.Labels[discoveryv1.LabelServiceName]
		of[name] = append(of[name], s)
	}
	return of, nil
}

// sourceOf returns the cluster of a mirror; empty for a Service of several clusters.
func sourceOf(d services.Described) string {
	if !d.Global && len(d.Clusters) == 1 {
		return d.Clusters[0].Cluster
	}
	return ""
}

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

// written adds the state of a Service in the apiserver: whether it and its slices exist, when the broker last wrote
// them, and what delays the first of the writes that wait.
func (l *locating) written(ctx context.Context, d services.Described, planned bool,
	existing []discoveryv1.EndpointSlice, failing string) error {
	namespace, left := l.process.cfg.MirrorNamespace, ""
	place := debug.Place{Hop: debug.HopWrite, Object: "service " + namespace + "/" + d.Service, Cluster: sourceOf(d)}
	service, err := l.process.client.CoreV1().Services(namespace).Get(ctx, d.Service, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return status.Errorf(codes.Unavailable, "%s: %v", place.Object, err)
	}
	if !planned {
		left = "; no cluster is known to offer it, and it is not deleted yet"
	}
	is, delays := "IP "+strings.Join(service.Spec.ClusterIPs, ", "), l.delay(writes.Service, d.Service)
	switch {
	case failing != "":
		place.State, place.Detail = debug.PlaceFailed, failing+left+delays
		l.Add(place)
		return nil
	case err != nil && planned:
		place.State, place.Detail = debug.PlaceWaiting, "the apiserver does not have it yet"+delays
		l.Add(place)
		return nil
	case err != nil:
		is = "the Service is gone"
	}
	wanted, endpoints, at, names := 0, 0, writtenAt(service), l.b.services.SlicesOf(d.Service)
	for _, c := range d.Clusters {
		wanted += c.Endpoints
	}
	for i := range existing {
		for _, e := range existing[i].Endpoints {
			endpoints += len(e.Addresses)
		}
		if t := writtenAt(&existing[i]); t.After(at) {
			at = t
		}
		names = append(names, existing[i].Name)
	}
	delays = cmp.Or(delays, l.delay(writes.EndpointSlice, names...))
	if d.Service == naming.Import(d.Namespace, d.Name) {
		delays = cmp.Or(delays, l.delay(writes.ServiceImport, d.Namespace+"/"+d.Name),
			l.delay(writes.ImportSlice, in(d.Namespace, names)...))
	}
	place.State, place.Confirmed = debug.PlaceDone, at
	place.Detail = fmt.Sprintf("%s; slices: %d, endpoints: %d%s%s", is, len(existing), endpoints, left, delays)
	if delays+left != "" || endpoints == 0 && wanted > 0 {
		place.State = debug.PlaceWaiting
	}
	l.Add(place)
	return nil
}

// in returns the names of objects in a namespace, NAMESPACE/NAME.
func in(namespace string, names []string) (out []string) {
	for _, name := range names {
		out = append(out, namespace+"/"+name)
	}
	return out
}

// ownName adds where the own name of a Service of this cluster leads, and the slices that lead it there.
func (l *locating) ownName(ctx context.Context, d services.Described) error {
	if !l.process.cfg.GlobalServices.OwnNames || d.Service != naming.Global(d.Namespace, d.Name) {
		return nil
	}
	object, own := "service "+d.Namespace+"/"+d.Name, choice.OwnName{}
	if d.Own != nil {
		own = *d.Own
		l.Add(debug.Place{Hop: debug.HopPlan, Object: object, State: debug.PlaceDone, Detail: own.String()})
	}
	list, err := l.process.client.DiscoveryV1().EndpointSlices(d.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: writes.OwnedOwnSlices + "," + discoveryv1.LabelServiceName + "=" + d.Name})
	if err != nil {
		return status.Errorf(codes.Unavailable, "slices of %s: %v", object, err)
	}
	if len(own.Clusters)+len(list.Items) == 0 {
		return nil
	}
	place := debug.Place{Hop: debug.HopWrite, Object: object, State: debug.PlaceDone}
	there, endpoints, names := map[string]bool{}, 0, l.b.services.SlicesOf(d.Service)
	for i := range list.Items {
		s := &list.Items[i]
		there[s.Labels[naming.LabelSourceCluster]], endpoints = true, endpoints+len(s.Endpoints)
		if t := writtenAt(s); t.After(place.Confirmed) {
			place.Confirmed = t
		}
		names = append(names, s.Name)
	}
	delays := l.delay(writes.OwnSlice, in(d.Namespace, names)...)
	for _, cluster := range own.Clusters {
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

// delay returns why a write is delayed, the first of some names; empty if none is.
func (l *locating) delay(kind writes.ObjectKind, names ...string) string {
	for _, loop := range l.b.loops {
		w, ok := loop.writer.(interface{ Delay(name string) string })
		for i := 0; ok && loop.kind == kind && i < len(names); i++ {
			if why := w.Delay(names[i]); why != "" {
				return fmt.Sprintf("; %s %s: %s", kind, names[i], why)
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
		object, s := "peer "+f.Cluster+"/"+l.of.Name, l.b.Peering.Locate(f.Cluster, l.of.Name)
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
