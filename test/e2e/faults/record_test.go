package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

// record follows, in one cluster, every change to the kinds that a broker writes and to the objects that it must not
// touch.
type record struct {
	cluster *testbed.Cluster
	stores  map[schema.GroupVersionResource]cache.Store

	mu      sync.Mutex
	changes []change
}

// change is one write that took effect.
type change struct {
	at       time.Time
	resource string
	name     string
	op       string // "create", "update", "delete"
	managed  bool
	detail   string
	object   *unstructured.Unstructured
}

func (c change) String() string {
	who := "somebody else's"
	if c.managed {
		who = "a mirror's"
	}
	return fmt.Sprintf("%s %s %s (%s) %s", c.at.Format("15:04:05.000"), c.op, c.resource+" "+c.name, who, c.detail)
}

// newRecord follows a cluster until ctx ends, with its goroutines in running. It returns when the informers have
// synced.
func newRecord(ctx context.Context, c *testbed.Cluster, running *sync.WaitGroup) (*record, error) {
	r := &record{cluster: c, stores: map[schema.GroupVersionResource]cache.Store{}}
	var synced []cache.InformerSynced
	for resource, namespace := range map[schema.GroupVersionResource]string{
		servicesResource: e2e.Namespace, slicesResource: e2e.Namespace, setsResource: "", poolsResource: "",
		nodesResource: "",
	} {
		informer := dynamicinformer.NewFilteredDynamicInformer(c.Dynamic, resource, namespace, 0, cache.Indexers{},
			nil).Informer()
		// Ignore watch errors: many cases take the apiserver down.
		if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
			return nil, err
		}
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(object any, first bool) {
				if !first {
					r.note(resource, "create", nil, object)
				}
			},
			UpdateFunc: func(before, after any) { r.note(resource, "update", before, after) },
			DeleteFunc: func(object any) { r.note(resource, "delete", object, object) },
		})
		if err != nil {
			return nil, err
		}
		r.stores[resource] = informer.GetStore()
		synced = append(synced, handler.HasSynced)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, ctx.Err()
	}
	return r, nil
}

func (r *record) note(resource schema.GroupVersionResource, op string, before, after any) {
	if tombstone, ok := after.(cache.DeletedFinalStateUnknown); ok {
		after, before = tombstone.Obj, tombstone.Obj
	}
	object := after.(*unstructured.Unstructured)
	// Ignore the slices of the product's own Services, which follow its pods. e2e.CallsReachLeader checks them.
	switch object.GetLabels()["endpointslice.kubernetes.io/managed-by"] {
	case "endpointslice-controller.k8s.io", "semaphore-broker-leader":
		return
	}
	c := change{
		at: time.Now(), resource: resource.Resource, name: object.GetName(), op: op,
		managed: object.GetLabels()[managedLabel] == managedBy, object: object,
	}
	if before, ok := before.(*unstructured.Unstructured); ok && op == "update" {
		if before.GetResourceVersion() == object.GetResourceVersion() {
			return // a relist
		}
		// Ignore a node's status and taints, which kubelet and controllers change.
		if resource == nodesResource && before.GetUID() == object.GetUID() &&
			maps.Equal(before.GetAnnotations(), object.GetAnnotations()) && maps.Equal(before.GetLabels(), object.GetLabels()) {
			return
		}
		if before.GetUID() != object.GetUID() {
			c.op = "replace" // it was deleted and re-created between two lists
		}
		c.detail = fmt.Sprintf("version %s to %s", before.GetResourceVersion(), object.GetResourceVersion())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, c)
}

// mark returns a position in the record.
func (r *record) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.changes)
}

// since returns the changes since a mark. It first waits until the record has caught up with the apiserver.
func (r *record) since(ctx context.Context, mark int) ([]change, error) {
	if err := testbed.WaitFor(ctx, settle, "the record of "+r.cluster.Name+" to catch up", r.caughtUp); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.changes[mark:]), nil
}

func (r *record) caughtUp(ctx context.Context) error {
	for resource, store := range r.stores {
		namespace := ""
		if resource == servicesResource || resource == slicesResource {
			namespace = e2e.Namespace
		}
		list, err := r.cluster.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(store.ListKeys()); n != len(list.Items) {
			return fmt.Errorf("%s: %d known, %d there", resource.Resource, n, len(list.Items))
		}
		for _, item := range list.Items {
			known, ok, err := store.Get(&item)
			if err != nil {
				return err
			}
			if !ok || known.(*unstructured.Unstructured).GetResourceVersion() != item.GetResourceVersion() {
				return fmt.Errorf("%s %s: the record is behind", resource.Resource, item.GetName())
			}
		}
	}
	return nil
}

// outside returns an error for an address in a mirror or set outside the other cluster's pods: checker I4, containment.
func outside(c change, pods netip.Prefix) error {
	if !c.managed || c.op == "delete" {
		return nil
	}
	var addresses []string
	switch c.resource {
	case slicesResource.Resource:
		endpoints, _, err := unstructured.NestedSlice(c.object.Object, "endpoints")
		if err != nil {
			return err
		}
		for _, e := range endpoints {
			e, ok := e.(map[string]any)
			if !ok {
				return errors.New("an endpoint that is no object")
			}
			of, _, err := unstructured.NestedStringSlice(e, "addresses")
			if err != nil {
				return err
			}
			addresses = append(addresses, of...)
		}
	case setsResource.Resource:
		var err error
		if addresses, err = netsOf(c.object.Object); err != nil {
			return err
		}
	}
	for _, a := range addresses {
		a, _, _ = strings.Cut(a, "/")
		ip, err := netip.ParseAddr(a)
		if err != nil || !pods.Contains(ip) {
			return fmt.Errorf("%s %s holds %s, which is outside %s", c.resource, c.name, a, pods)
		}
	}
	return nil
}
