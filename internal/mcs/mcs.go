// Package mcs owns how a cluster serves the Multi-Cluster Services API (KEP-1645, group multicluster.x-k8s.io): in
// which version, and whether an event of a watch can be trusted. It reads and writes ServiceExports and ServiceImports.
//
// While the API's definitions are absent, or are being deleted, its objects are unknown: lists and watches fail, and
// the error names the missing definition. An apiserver that removes a definition deletes the objects first; a watch
// ends at such a deletion without passing it on, so that no reader mistakes the end of the API for the end of an
// export.
//
// Lists and watches ask for the definitions themselves. Reads and writes of single objects use an answer that is not
// older than trusted, so that they cost no further requests; if one of them finds its object or its resource absent,
// the definitions are requested again before the caller gets the error.
//
// The parts decide what exports and imports mean.
package mcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// Versions are those of the API that this package reads, best first. Their schemas are the same.
var Versions = []string{"v1beta1", "v1alpha1"}

// names are those of the CustomResourceDefinitions: the API is served when both are.
var names = []string{mcsv1beta1.ServiceExportFullName, mcsv1beta1.ServiceImportFullName}

// ErrNotServed means that the cluster does not serve the API, or is about to stop.
var ErrNotServed = errors.New("the Multi-Cluster Services API is not served")

// notServed is an ErrNotServed that names the missing definition. Its status is 503, after which readers retry each
// second (kube.RetryWhileAway): the definitions may be applied at any time.
type notServed struct{ missing string }

func missing(format string, args ...any) error { return &notServed{fmt.Sprintf(format, args...)} }

func (e *notServed) Error() string { return ErrNotServed.Error() + ": " + e.missing }

func (e *notServed) Is(target error) bool { return target == ErrNotServed }

// Status implements apierrors.APIStatus.
func (e *notServed) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable,
		Code: http.StatusServiceUnavailable, Message: e.Error()}
}

// timeout of a request that lists nothing.
const timeout = 30 * time.Second

// Client reads and writes objects of the API in the version that a cluster serves.
type Client struct {
	cfg *rest.Config
	// fieldManager is the field manager of writes; empty for that of the user agent.
	fieldManager string
	unversioned  *rest.RESTClient

	served  served
	mu      sync.Mutex
	clients map[string]*rest.RESTClient // by version
}

// New makes a client without a request. It fails if cfg is invalid.
func New(cfg *rest.Config, fieldManager string) (*Client, error) {
	client, err := restClient(cfg, schema.GroupVersion{})
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, fieldManager: fieldManager, unversioned: client, served: served{now: time.Now},
		clients: map[string]*rest.RESTClient{}}, nil
}

// restClient makes a client that decodes the types of the API, because every version of them has the fields of v1beta1.
func restClient(cfg *rest.Config, gv schema.GroupVersion) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // the type of errors
	if gv.Version != "" {
		scheme.AddKnownTypes(gv, &mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExportList{},
			&mcsv1beta1.ServiceImport{}, &mcsv1beta1.ServiceImportList{})
		metav1.AddToGroupVersion(scheme, gv)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &gv, "/apis"
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = kube.RawObjects(serializer.NewCodecFactory(scheme).WithoutConversion())
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", mcsv1beta1.GroupName, err)
	}
	return client, nil
}

// definition has the relevant fields of a CustomResourceDefinition.
type definition struct {
	Metadata struct {
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// served returns the versions that a definition serves, or why there are none.
func (d *definition) served(name string) ([]string, error) {
	if d.Metadata.DeletionTimestamp != nil {
		return nil, missing("CustomResourceDefinition %s is being deleted: apply it again", name)
	}
	if !slices.Contains(d.Status.Conditions, condition{"Established", "True"}) {
		return nil, missing("CustomResourceDefinition %s is not established yet", name)
	}
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served, nil
}

// Version returns the version in which the cluster serves both ServiceExports and ServiceImports. If there is none, the
// error is an ErrNotServed that names the definition to apply.
func (c *Client) Version(ctx context.Context) (string, error) {
	common := Versions
	for _, name := range names {
		served, err := c.servedBy(ctx, name)
		if err != nil {
			return "", err
		}
		common = slices.DeleteFunc(slices.Clone(common), func(v string) bool { return !slices.Contains(served, v) })
		if len(common) == 0 {
			return "", missing("CustomResourceDefinition %s serves %v, and neither v1beta1 nor v1alpha1 with the other "+
				"definition: apply both of one release of sigs.k8s.io/mcs-api", name, served)
		}
	}
	return common[0], nil
}

// servedBy returns the versions that the definition of a resource serves.
func (c *Client) servedBy(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	data, err := kube.Answer(c.unversioned.Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" +
		name).Do(ctx))
	if apierrors.IsNotFound(err) {
		return nil, missing("there is no CustomResourceDefinition %s: apply it", name)
	}
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
	}
	var d definition
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
	}
	return d.served(name)
}

// connect returns a client for the version that is served now, for a list or a watch.
func (c *Client) connect(ctx context.Context) (*rest.RESTClient, error) {
	version, err := c.served.ask(ctx, c.Version)
	if err != nil {
		return nil, err
	}
	return c.in(version)
}

func (c *Client) in(version string) (*rest.RESTClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clients[version] == nil {
		client, err := restClient(c.cfg, schema.GroupVersion{Group: mcsv1beta1.GroupName, Version: version})
		if err != nil {
			return nil, err
		}
		c.clients[version] = client
	}
	return c.clients[version], nil
}

// do sends a request for one object in the version that is served.
func (c *Client) do(ctx context.Context, request func(client *rest.RESTClient, version string) error) error {
	version, err := c.served.recent(ctx, c.Version)
	if err != nil {
		return err
	}
	for {
		client, err := c.in(version)
		if err != nil {
			return err
		}
		err = request(client, version)
		switch {
		case apierrors.IsConflict(err): // of another version of the object; or of one that was applied again
			c.served.forget(version)
			return err
		case !apierrors.IsNotFound(err) && !unserved(err):
			return err
		}
		// Either the object is absent, or its resource.
		now, asked := c.served.ask(ctx, c.Version)
		if asked != nil {
			return asked
		}
		if now == version {
			if unserved(err) {
				return missing("the apiserver does not serve version %s yet: %v", version, err)
			}
			return err
		}
		version = now
	}
}

// unserved reports whether a refusal concerns the resource, and not the object. While a definition ends, and for a
// moment after that, an apiserver forbids to create objects: this is no missing right.
func unserved(err error) bool {
	if apierrors.IsMethodNotSupported(err) ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), "custom resource definition is terminating") {
		return true
	}
	_, generic := apierrors.StatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	return generic
}

// Resource reads and writes objects of one type in all namespaces.
type Resource[T kube.Object] struct {
	client       *Client
	plural, kind string
	list         runtime.Object // an empty one
}

func (c *Client) Exports() Resource[*mcsv1beta1.ServiceExport] {
	return Resource[*mcsv1beta1.ServiceExport]{client: c, plural: mcsv1beta1.ServiceExportPluralName,
		kind: mcsv1beta1.ServiceExportKindName, list: &mcsv1beta1.ServiceExportList{}}
}

func (c *Client) Imports() Resource[*mcsv1beta1.ServiceImport] {
	return Resource[*mcsv1beta1.ServiceImport]{client: c, plural: mcsv1beta1.ServiceImportPluralName,
		kind: mcsv1beta1.ServiceImportKindName, list: &mcsv1beta1.ServiceImportList{}}
}

// Get reads an object. One of which any part cannot be read is an error: a caller that writes it back would remove that
// part, which another wrote.
func (r Resource[T]) Get(ctx context.Context, namespace, name string) (out T, err error) {
	out = kube.Empty[T]()
	err = r.client.do(ctx, func(client *rest.RESTClient, _ string) error {
		data, err := kube.Answer(client.Get().Namespace(namespace).Resource(r.plural).Name(name).Do(ctx))
		if err != nil {
			return err
		}
		var bad *kube.Unreadable
		if out, bad = kube.ReadObject[T](r.kind, data); bad != nil {
			return bad
		}
		return nil
	})
	return out, err
}

func (r Resource[T]) separate(unread *kube.Unread) kube.Separate[T] {
	return kube.Separate[T]{Kind: r.kind, List: r.list, Unread: unread}
}

// Create creates an object, without its status. It fails with ErrNotServed without the API.
func (r Resource[T]) Create(ctx context.Context, object T) (T, error) {
	return r.write(ctx, object, func(client *rest.RESTClient) *rest.Request {
		return client.Post().Namespace(object.GetNamespace()).Resource(r.plural)
	})
}

// Update replaces an object, without its status. It fails with a conflict unless its resourceVersion is that of the
// newest one, and with ErrNotServed without the API.
func (r Resource[T]) Update(ctx context.Context, object T) (T, error) {
	return r.write(ctx, object, func(client *rest.RESTClient) *rest.Request {
		return client.Put().Namespace(object.GetNamespace()).Resource(r.plural).Name(object.GetName())
	})
}

// UpdateStatus replaces the status of an object. It fails like Update.
func (r Resource[T]) UpdateStatus(ctx context.Context, object T) (T, error) {
	return r.write(ctx, object, func(client *rest.RESTClient) *rest.Request {
		return client.Put().Namespace(object.GetNamespace()).Resource(r.plural).Name(object.GetName()).SubResource("status")
	})
}

func (r Resource[T]) write(ctx context.Context, object T, request func(*rest.RESTClient) *rest.Request) (T, error) {
	body, out := object.DeepCopyObject().(T), kube.Empty[T]()
	err := r.client.do(ctx, func(client *rest.RESTClient, version string) (err error) {
		body.GetObjectKind().SetGroupVersionKind(
			schema.GroupVersionKind{Group: mcsv1beta1.GroupName, Version: version, Kind: r.kind})
		q := request(client).Body(body)
		if r.client.fieldManager != "" {
			q.Param("fieldManager", r.client.fieldManager)
		}
		out, err = r.separate(nil).ReadOne(q.Do(ctx))
		return err
	})
	return out, err
}

// Delete removes an object. It fails if there is none, options do not fit it, or the API is not served.
func (r Resource[T]) Delete(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return r.client.do(ctx, func(client *rest.RESTClient, _ string) error {
		return client.Delete().Namespace(namespace).Resource(r.plural).Name(name).Body(&options).Do(ctx).Error()
	})
}

// Follow lists and watches the objects that a label selector selects, of all namespaces. It lists before it watches
// (kube.ErrListFirst). It reports the objects that cannot be read to unread; without it, such an object is the error of
// a list.
func (r Resource[T]) Follow(selector string, unread *kube.Unread) *cache.ListWatch {
	parameters := metav1.ParameterCodec
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			client, err := r.client.connect(ctx)
			if err != nil {
				return nil, err
			}
			options.LabelSelector = selector
			list, err := r.separate(unread).Read(
				client.Get().Resource(r.plural).VersionedParams(&options, parameters).Do(ctx), options)
			if err != nil {
				return nil, err
			}
			// A definition that is deleted from now on had all its objects when they were listed.
			if _, err := r.client.served.ask(ctx, r.client.Version); err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil {
				return nil, kube.ErrListFirst
			}
			client, err := r.client.connect(ctx)
			if err != nil {
				return nil, err
			}
			options.LabelSelector, options.Watch = selector, true
			events, err := r.separate(unread).Watch(ctx,
				client.Get().Resource(r.plural).VersionedParams(&options, parameters), options)
			if err != nil {
				return nil, err
			}
			return newBelieved(ctx, events, func(ctx context.Context) error {
				_, err := r.client.served.ask(ctx, r.client.Version)
				return err
			}), nil
		},
	}
}

// Example returns an empty object of the type, for informers.
func (r Resource[T]) Example() T { return kube.Empty[T]() }
