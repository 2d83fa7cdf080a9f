package exporter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxExports bounds the objects of a preview's answer in bytes.
const maxExports = 3 << 20

// preview computes what would be exported if objects were applied: a second catalog receives everything that the first
// one has, the objects, and the remotes that would be in effect. It costs as much as a change of the export rules.
func (e *exporter) preview(_ context.Context, req *semaphorev1.PreviewRequest) (*semaphorev1.PreviewResponse, error) {
	if err := e.elector.Standby(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "%v: ask the exporter that leads", err)
	}
	if err := e.watcher.Synced(); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !e.previewing.TryLock() {
		return nil, status.Error(codes.ResourceExhausted, "another preview is being made")
	}
	defer e.previewing.Unlock()
	out := &debug.Changes{}
	f := e.following.Load()
	var current remotes.Objects
	if f != nil {
		current, _ = f.follower.Objects()
	}
	objects, names, rest, err := remotes.Propose(current, req.GetObjects(), time.Now())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if len(names) > 0 && f == nil {
		return nil, status.Error(codes.InvalidArgument, "this exporter has its brokers in its file, and follows no "+
			"RemoteCluster")
	}
	next := catalog.New(e.catalog.Rules())
	var offers map[string][]catalog.OfferRule
	if f != nil {
		offers = f.previewRemotes(next, objects, names, out)
	}
	counts := newMatches(names, offers)
	e.watcher.Each(func(o metav1.Object, put func(*catalog.Catalog)) {
		put(next)
		counts.add(next, o)
	})
	for _, d := range rest {
		if err := e.propose(next, d); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	counts.say(out)
	e.sayExports(next, rest, out)
	difference(e.catalog, next, out)
	e.noteEndpoints(next, rest, out)
	out.Problems(debug.Refuse, "", e.catalog.Findings(), next.Findings())
	if req.GetTo() != "" {
		exportsTo(next, req.GetTo(), out)
	}
	return &out.PreviewResponse, nil
}

// previewRemotes sets the remotes that would be in effect in a catalog, and returns their rules.
func (f *following) previewRemotes(next *catalog.Catalog, objects remotes.Objects, names []string,
	out *debug.Changes) map[string][]catalog.OfferRule {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	d := remotes.Decide(f.own(), before, objects, nil)
	for _, name := range names {
		if v := d.Verdicts[name]; !v.Accepted() {
			out.Add(debug.Reject, "RemoteCluster "+name, name, v.Reason, v.Message)
		}
	}
	exports := map[string]*v1alpha1.Export{}
	for name, o := range d.InEffect {
		if o.Spec.Broker != nil {
			exports[name] = o.Spec.Export
		}
	}
	offers := rulesOfOffers(d.InEffect, exports)
	next.SetRemotes(f.clusters(exports), offers, time.Now())
	return offers
}

// propose puts an object that is not applied yet into a catalog.
func (e *exporter) propose(next *catalog.Catalog, d remotes.Document) error {
	switch d.APIVersion + " " + d.Kind {
	case "v1 Service":
		var s corev1.Service
		if err := json.Unmarshal([]byte(d.Text), &s); err != nil {
			return fmt.Errorf("a Service: %w", err)
		}
		next.PutService(&s, time.Now())
	case "v1 Pod":
		var p corev1.Pod
		if err := json.Unmarshal([]byte(d.Text), &p); err != nil {
			return fmt.Errorf("a Pod: %w", err)
		}
		next.PutPod(&p, time.Now())
	case exportKind(mcsv1beta1.GroupVersion.Version), exportKind("v1alpha1"):
		var x mcsv1beta1.ServiceExport // those of v1alpha1 have the same fields
		if err := json.Unmarshal([]byte(d.Text), &x); err != nil {
			return fmt.Errorf("a ServiceExport: %w", err)
		}
		if !next.Rules().MultiCluster {
			return fmt.Errorf("ServiceExport %s/%s: this exporter reads none: set mcs.enabled in its configuration",
				x.Namespace, x.Name)
		}
		next.PutExport(&x, time.Now())
	default:
		return fmt.Errorf("%s %s: preview knows RemoteClusters, Services, Pods and ServiceExports", d.APIVersion, d.Kind)
	}
	return nil
}

// exportKind is the apiVersion and the kind of a ServiceExport.
func exportKind(version string) string {
	return mcsv1beta1.GroupName + "/" + version + " ServiceExport"
}

// sayExports says of the proposed ServiceExports what their conditions Valid and Ready will say.
func (e *exporter) sayExports(next *catalog.Catalog, proposed []remotes.Document, out *debug.Changes) {
	type export struct{ namespace, name string }
	asked := map[export]bool{}
	for _, d := range proposed {
		var o metav1.PartialObjectMetadata
		if d.Kind == "ServiceExport" && json.Unmarshal([]byte(d.Text), &o) == nil {
			asked[export{o.Namespace, o.Name}] = true
		}
	}
	if len(asked) == 0 {
		return
	}
	for _, x := range next.ServiceExports() {
		if !asked[export{x.Namespace, x.Name}] {
			continue
		}
		object := "serviceexport " + x.Namespace + "/" + x.Name
		switch {
		case x.Reason != "":
			out.Add(debug.Reject, object, "", "", "Valid would be False, "+string(x.Valid)+": "+x.Reason)
		case x.Offer == nil || len(x.Offer.To) == 0:
			why := "Ready would be False, Failed: the Service is exported to no cluster"
			if x.Offer != nil && x.Offer.Reason != "" {
				why += ": " + x.Offer.Reason
			}
			out.Add(debug.Reject, object, "", "", why)
		default:
			out.Add(debug.Accept, object, "", "", "would export its Service to "+strings.Join(x.Offer.To, ", "))
		}
	}
}

// matches counts what the rules of remotes select: an object counts for the first rule that matches it.
type matches struct {
	names []string
	rules map[string][]catalog.OfferRule
	// services and pods by remote and rule.
	services, pods map[string][]int
}

func newMatches(names []string, offers map[string][]catalog.OfferRule) *matches {
	m := &matches{names: names, rules: offers, services: map[string][]int{}, pods: map[string][]int{}}
	for _, name := range names {
		m.services[name], m.pods[name] = make([]int, len(offers[name])), make([]int, len(offers[name]))
	}
	return m
}

func (m *matches) add(next *catalog.Catalog, o metav1.Object) {
	feature, counts := config.Services, m.services
	switch o.(type) {
	case *corev1.Service:
	case *corev1.Pod:
		feature, counts = config.Policy, m.pods
	default:
		return
	}
	for _, name := range m.names {
		if i := next.MatchOf(name, feature, o.GetNamespace(), labels.Set(o.GetLabels())); i >= 0 {
			counts[name][i]++
		}
	}
}

func (m *matches) say(out *debug.Changes) {
	for _, name := range m.names {
		for i, r := range m.rules[name] {
			action := v1alpha1.Withhold
			if r.Offers {
				action = v1alpha1.Offer
			}
			out.Add(debug.Select, fmt.Sprintf("spec.export.rules[%d] (%s)", i, action), name, "",
				fmt.Sprintf("is the first that matches %d Services and %d pods that are exported somewhere or could be",
					m.services[name][i], m.pods[name][i]))
		}
	}
}

// difference adds the differences of two catalogs for each remote: Services and pods of sets by name, the other kinds
// by their number.
func difference(was, now *catalog.Catalog, out *debug.Changes) {
	type entries = map[catalog.Key]*catalog.Entry
	of := func(c *catalog.Catalog) entries {
		all := entries{}
		snapshot, _ := c.Journal().Snapshot()
		for _, entry := range snapshot {
			all[entry.Key] = entry
		}
		return all
	}
	before, after := of(was), of(now)
	var keys []catalog.Key
	for key := range before {
		keys = append(keys, key)
	}
	for key := range after {
		if before[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b catalog.Key) int { return strings.Compare(a.String(), b.String()) })
	clusters := slices.Concat(was.Clusters(), now.Clusters())
	slices.Sort(clusters)
	for _, cluster := range slices.Compact(clusters) {
		if cluster == now.Rules().Own {
			continue
		}
		counts := map[semaphorev1.Kind]map[semaphorev1.PreviewAction]int{}
		for _, key := range keys {
			b, a := before[key], after[key]
			had := b != nil && b.Value.To.Has(cluster) && slices.Contains(was.Clusters(), cluster)
			has := a != nil && a.Value.To.Has(cluster) && slices.Contains(now.Clusters(), cluster)
			action := debug.Changed
			switch {
			case has && !had:
				action = debug.Export
			case had && !has:
				action = debug.Withdraw
			case !had || a.Value.Digest == b.Value.Digest:
				continue
			}
			switch key.Kind {
			case semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_SET_MEMBER:
				out.Add(action, key.String(), cluster, "", "")
			default:
				if counts[key.Kind] == nil {
					counts[key.Kind] = map[semaphorev1.PreviewAction]int{}
				}
				counts[key.Kind][action]++
			}
		}
		for _, kind := range semaphorev1.Kinds {
			for _, action := range []semaphorev1.PreviewAction{debug.Export, debug.Changed, debug.Withdraw} {
				if n := counts[kind][action]; n > 0 {
					out.Add(action, fmt.Sprintf("%d objects of kind %s", n, semaphorev1.KindName(kind)), cluster, "", "")
				}
			}
		}
	}
}

// exportsTo adds what a catalog exports to a cluster: nothing for a cluster without a broker, not even an empty list.
// If the objects are too large it adds only their number: a part of them would read as if the rest were withdrawn.
func exportsTo(c *catalog.Catalog, cluster string, out *debug.Changes) {
	if !slices.Contains(c.Clusters(), cluster) {
		return
	}
	exports, size := &semaphorev1.PreviewExports{}, 0
	snapshot, _ := c.Journal().Snapshot()
	for _, entry := range snapshot {
		if entry.Value.To.Has(cluster) {
			exports.Objects = append(exports.Objects, entry.Value.Object)
			size += proto.Size(entry.Value.Object)
		}
	}
	if size > maxExports {
		out.MoreExports = uint32(len(exports.Objects))
		return
	}
	out.Exports = exports
}

// noteEndpoints names the proposed Services whose endpoints are unknown: the watch selects EndpointSlices by their
// labels, which Kubernetes copies from the Service once it has them.
func (e *exporter) noteEndpoints(next *catalog.Catalog, proposed []remotes.Document, out *debug.Changes) {
	type service struct{ namespace, name string }
	known := map[service]bool{}
	snapshot, _ := next.Journal().Snapshot()
	for _, entry := range snapshot {
		if slice := entry.Value.Object.GetEndpointSlice(); slice != nil {
			known[service{entry.Key.Namespace, slice.GetService()}] = true
		}
	}
	for _, d := range proposed {
		var o metav1.PartialObjectMetadata
		if d.Kind != "Service" || json.Unmarshal([]byte(d.Text), &o) != nil {
			continue
		}
		key := catalog.Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: o.Namespace, Name: o.Name}
		_, was := e.catalog.Journal().Get(key)
		if _, is := next.Journal().Get(key); is && !was && !known[service{o.Namespace, o.Name}] {
			out.Add(debug.Note, key.String(), "", "", "its endpoints are not known before it is applied, and are missing here")
		}
	}
}
