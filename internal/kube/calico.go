package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// The groups in which clusters serve Calico's types: that of the Calico API server (or of native v3 CRDs), and that of
// the CRDs in which Calico itself stores its data. The types for sets and pools are the same in both.
var (
	calicoV3  = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
	calicoCRD = schema.GroupVersion{Group: "crd.projectcalico.org", Version: "v1"}
)

// ErrNoCalico is the error if a cluster serves Calico's types in neither group.
var ErrNoCalico = errors.New("the cluster serves GlobalNetworkSets in neither projectcalico.org/v3 nor " +
	"crd.projectcalico.org/v1: is Calico installed?")

// CalicoClient reads and writes Calico's types in the group that the cluster serves.
type CalicoClient struct {
	GroupVersion schema.GroupVersion
	rest         rest.Interface
	parameters   runtime.ParameterCodec
	// FieldManager is the field manager of writes, for managedFields. If empty, the apiserver derives it from the user
	// agent.
	FieldManager string
}

// calicoMetadata is the annotation in which the Calico API server stores an object's labels and annotations in the CRDs
// (libcalico-go, ConvertCalicoResourceToK8sResource). The stored object itself has none, so label selectors do not find
// it. Calico's own parts read the annotation.
const calicoMetadata = "projectcalico.org/metadata"

// CopyCalicoMetadata copies the labels and annotations that Calico stores in calicoMetadata to the object itself, and
// reports whether it had them only there. An object that is written in this form means the same to Calico.
func CopyCalicoMetadata(object metav1.Object) bool {
	stored, ok := object.GetAnnotations()[calicoMetadata]
	if !ok {
		return false
	}
	var meta metav1.ObjectMeta
	if err := json.Unmarshal([]byte(stored), &meta); err != nil {
		return false // another, unknown program wrote it
	}
	delete(meta.Annotations, calicoMetadata) // Calico would read it in place of the copy here
	object.SetLabels(meta.Labels)
	object.SetAnnotations(meta.Annotations)
	return true
}

// Calico discovers which group the cluster serves, and returns a client for it. The error is ErrNoCalico if it serves
// neither.
func Calico(cfg *rest.Config) (*CalicoClient, error) {
	gv, err := calicoGroup(context.Background(), cfg, "globalnetworksets", ErrNoCalico)
	if err != nil {
		return nil, err
	}
	return CalicoIn(cfg, gv)
}

// HidesMetadata reports whether the Calico API server may have written the objects that this client reads in stored
// form; see CopyCalicoMetadata.
func (c *CalicoClient) HidesMetadata() bool { return c.GroupVersion == calicoCRD }

// CalicoIn returns the client for a group that the cluster is known to serve, without discovery. It fails if cfg is
// invalid.
func CalicoIn(cfg *rest.Config, gv schema.GroupVersion) (*CalicoClient, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv,
		&calicov3.GlobalNetworkSet{}, &calicov3.GlobalNetworkSetList{},
		&calicov3.NetworkSet{}, &calicov3.NetworkSetList{},
		&calicov3.IPPool{}, &calicov3.IPPoolList{},
		&calicov3.IPReservation{}, &calicov3.IPReservationList{},
		&BlockAffinity{}, &BlockAffinityList{}, &IPAMBlock{})
	metav1.AddToGroupVersion(scheme, gv)
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = &gv
	cfg.APIPath = "/apis"
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = RawObjects(serializer.NewCodecFactory(scheme).WithoutConversion())
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", gv, err)
	}
	return &CalicoClient{GroupVersion: gv, rest: client, parameters: runtime.NewParameterCodec(scheme)}, nil
}

func (c *CalicoClient) GlobalNetworkSets() CalicoResource[*calicov3.GlobalNetworkSet] {
	return CalicoResource[*calicov3.GlobalNetworkSet]{client: c, resource: "globalnetworksets", kind: "GlobalNetworkSet",
		list: &calicov3.GlobalNetworkSetList{}}
}

// NetworkSets returns the client for NetworkSets in one namespace; "" lists those of all namespaces.
func (c *CalicoClient) NetworkSets(namespace string) CalicoResource[*calicov3.NetworkSet] {
	return CalicoResource[*calicov3.NetworkSet]{client: c, resource: "networksets", kind: "NetworkSet",
		list: &calicov3.NetworkSetList{}, namespace: namespace}
}

func (c *CalicoClient) IPPools() CalicoResource[*calicov3.IPPool] {
	return CalicoResource[*calicov3.IPPool]{client: c, resource: "ippools", kind: "IPPool", list: &calicov3.IPPoolList{}}
}

func (c *CalicoClient) IPReservations() CalicoResource[*calicov3.IPReservation] {
	return CalicoResource[*calicov3.IPReservation]{client: c, resource: "ipreservations", kind: "IPReservation",
		list: &calicov3.IPReservationList{}}
}

type CalicoObject = Object

type CalicoResource[T CalicoObject] struct {
	client         *CalicoClient
	resource, kind string
	// list is an empty one.
	list runtime.Object
	// namespace is that of the requests; empty for all, and for objects without one.
	namespace string
}

func (r CalicoResource[T]) of(request *rest.Request) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource)
}

// managed adds the field manager to a write.
func (r CalicoResource[T]) managed(request *rest.Request) *rest.Request {
	if r.client.FieldManager != "" {
		request.Param("fieldManager", r.client.FieldManager)
	}
	return r.of(request)
}

// Get reads an object. It fails if the request fails, or the object cannot be read as its type.
func (r CalicoResource[T]) Get(ctx context.Context, name string) (T, error) {
	return r.separate(nil).ReadOne(r.of(r.client.rest.Get()).Name(name).Do(ctx))
}

// Create creates an object, and fails as Get does.
func (r CalicoResource[T]) Create(ctx context.Context, object T) (T, error) {
	return r.separate(nil).ReadOne(r.managed(r.client.rest.Post()).Body(r.typed(object)).Do(ctx))
}

// Update replaces an object, and fails as Get does; with a conflict if object lacks the latest resourceVersion.
func (r CalicoResource[T]) Update(ctx context.Context, object T) (T, error) {
	return r.separate(nil).ReadOne(r.managed(r.client.rest.Put()).Name(object.GetName()).Body(r.typed(object)).Do(ctx))
}

// Delete deletes an object. It fails if that is absent, or has another UID or (unless empty) resourceVersion.
func (r CalicoResource[T]) Delete(ctx context.Context, name string, uid types.UID, resourceVersion string) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if resourceVersion != "" {
		options.Preconditions.ResourceVersion = &resourceVersion
	}
	return r.of(r.client.rest.Delete()).Name(name).Body(options).Do(ctx).Error()
}

// typed sets the kind and version of the group in use, which the JSON encoding needs.
func (r CalicoResource[T]) typed(object T) T {
	out := object.DeepCopyObject().(T)
	out.GetObjectKind().SetGroupVersionKind(r.client.GroupVersion.WithKind(r.kind))
	return out
}

func (r CalicoResource[T]) separate(unread *Unread) Separate[T] {
	return Separate[T]{Kind: r.kind, List: r.list, Unread: unread}
}

// ListWatch lists and watches the objects that match a label selector. A list with an object that cannot be read is an
// error.
func (r CalicoResource[T]) ListWatch(selector string) cache.ListerWatcher {
	return r.Follow(selector, nil)
}

// Follow is ListWatch, and reports the objects that cannot be read to unread.
func (r CalicoResource[T]) Follow(selector string, unread *Unread) *cache.ListWatch {
	get := func(options metav1.ListOptions) *rest.Request {
		options.LabelSelector = selector
		return r.of(r.client.rest.Get()).VersionedParams(&options, r.client.parameters)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return r.separate(unread).Read(get(options).Do(ctx), options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return r.separate(unread).Watch(ctx, get(options), options)
		},
	}
}

// Example returns an empty object of the type, for informers.
func (r CalicoResource[T]) Example() T { return Empty[T]() }
