package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// servedWithin is how long an apiserver may take to say what it serves, where the configuration has no timeout.
const servedWithin = 32 * time.Second

// Served asks an apiserver what it serves (https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api).
// client-go's own client for that has every type of Kubernetes in it, which semaphorectl needs for nothing.
type Served struct{ client *rest.RESTClient }

// NewServed makes the client; it asks nothing yet.
func NewServed(cfg *rest.Config) (*Served, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.Timeout == 0 {
		cfg.Timeout = servedWithin
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // what errors are told in
	cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{}, serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for discovery: %w", err)
	}
	return &Served{client}, nil
}

// Resources are those of a group and version other than Kubernetes' oldest; the error is a NotFound where it is not served.
func (s *Served) Resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	var list metav1.APIResourceList
	err := s.get(ctx, "/apis/"+gv.String(), &list)
	return list.APIResources, err
}

// Groups are all but Kubernetes' oldest.
func (s *Served) Groups(ctx context.Context) ([]metav1.APIGroup, error) {
	var list metav1.APIGroupList
	err := s.get(ctx, "/apis", &list)
	return list.Groups, err
}

func (s *Served) get(ctx context.Context, path string, into any) error {
	data, err := s.client.Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
