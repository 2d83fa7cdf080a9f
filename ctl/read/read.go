package read

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

// Within bounds the answer of an apiserver.
const Within = 10 * time.Second

// New returns a client of a cluster.
func New(cfg *rest.Config) (dynamic.Interface, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for the apiserver: %w", err)
	}
	return client, nil
}

// Get returns one object; nil without an error if it, or its type, does not exist.
func Get[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, namespace,
	name string) (*T, error) {
	found, err := client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, Into(found, out)
}

// List returns all objects of a type; of all namespaces where none is named. Beside an error it returns those objects
// that can be read.
func List[T any](ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource,
	namespace string, options metav1.ListOptions) (out []T, err error) {
	found, err := client.Resource(resource).Namespace(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	for i := range found.Items {
		var one T
		if bad := Into(&found.Items[i], &one); bad != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", resource.Resource, found.Items[i].GetName(), bad))
			continue
		}
		out = append(out, one)
	}
	return out, err
}

// ConfigMap returns the data of a ConfigMap.
func ConfigMap(ctx context.Context, client dynamic.Interface, namespace, name string) (map[string]string, error) {
	found, err := client.Resource(ConfigMapsGVR).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	data, _, err := unstructured.NestedStringMap(found.Object, "data")
	return data, err
}

// Object converts a value to what is written.
func Object(typed any) (*unstructured.Unstructured, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return &unstructured.Unstructured{Object: object}, err
}

// Into converts what was read to a value.
func Into(from *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into)
}
