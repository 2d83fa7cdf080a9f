package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Within bounds the answers of an apiserver about one thing.
const Within = 10 * time.Second

// Objects is a cluster whose objects are read, with the caller's rights, as values of their types: the one way for all
// verbs. An error names the cluster and the object, because an unknown object is not an absent one.
type Objects struct {
	// Name is its name in errors; empty for the only one.
	Name   string
	Client dynamic.Interface
	Config *rest.Config
}

// New returns the objects of a cluster, with its name for errors. It fails if no client can be made of cfg.
func New(name string, cfg *rest.Config) (*Objects, error) {
	c := &Objects{Name: name, Config: cfg}
	var err error
	c.Client, err = dynamic.NewForConfig(cfg)
	return c, c.unread("client for the apiserver", err)
}

// unread adds its object to an error; nil stays nil.
func (c *Objects) unread(what string, err error) error {
	if err != nil && c.Name != "" {
		what = c.Name + ": " + what
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Get returns one object; nil without an error if it, or its type, does not exist.
func Get[T any](ctx context.Context, c *Objects, resource schema.GroupVersionResource, namespace,
	name string) (*T, error) {
	found, err := c.Client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	out := new(T)
	if err == nil {
		err = Into(found, out)
	}
	if err != nil {
		if namespace != "" {
			name = namespace + "/" + name
		}
		return nil, c.unread(resource.Resource+" "+name, err)
	}
	return out, nil
}

// List returns all objects of a type; of all namespaces where none is named. It fails if the apiserver does not list
// them, and for objects that cannot be read, beside the others.
func List[T any](ctx context.Context, c *Objects, resource schema.GroupVersionResource, namespace string,
	options metav1.ListOptions) (out []T, err error) {
	found, err := c.Client.Resource(resource).Namespace(namespace).List(ctx, options)
	if err != nil {
		what := resource.Resource
		if namespace != "" {
			what += " of " + namespace
		}
		return nil, c.unread(what, err)
	}
	for i := range found.Items {
		var one T
		if bad := Into(&found.Items[i], &one); bad != nil {
			err = errors.Join(err, c.unread(resource.Resource+" "+found.Items[i].GetName(), bad))
			continue
		}
		out = append(out, one)
	}
	return out, err
}

// First lists the objects of the first of several types that the cluster serves, as one type in several groups or
// versions; nil without an error if it serves none.
func (c *Objects) First(ctx context.Context, of []schema.GroupVersionResource, namespace string,
	options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	for _, resource := range of {
		list, err := c.Client.Resource(resource).Namespace(namespace).List(ctx, options)
		if !apierrors.IsNotFound(err) {
			return list, c.unread(resource.Resource, err)
		}
	}
	return nil, nil
}

// Object converts a value to an object to write. It fails if JSON cannot hold it.
func Object(typed any) (*unstructured.Unstructured, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return &unstructured.Unstructured{Object: object}, err
}

// Into converts a read object to a value. It fails for a field of another type.
func Into(from *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into)
}
