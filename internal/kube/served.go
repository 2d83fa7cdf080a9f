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

// servedWithin is the timeout of discovery, if the configuration has none.
const servedWithin = 32 * time.Second

// Served is a client for discovery (https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api).
// client-go's own one links every type of Kubernetes, which semaphorectl does not need.
type Served struct{ client *rest.RESTClient }

// NewServed returns the client; it sends no request yet, and fails if cfg is invalid.
func NewServed(cfg *rest.Config) (*Served, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.Timeout == 0 {
		cfg.Timeout = servedWithin
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // the format of errors
	cfg.GroupVersion, cfg.NegotiatedSerializer = &schema.GroupVersion{},
		serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.UnversionedRESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for discovery: %w", err)
	}
	return &Served{client}, nil
}

// Resources returns those of a group and version other than the core group's; the error is a NotFound if it is not
// served.
func (s *Served) Resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	var list metav1.APIResourceList
	err := s.get(ctx, "/apis/"+gv.String(), &list)
	return list.APIResources, err
}

// Groups returns all but the core group. It fails if the request does, or the answer is no list of groups.
func (s *Served) Groups(ctx context.Context) ([]metav1.APIGroup, error) {
	var list metav1.APIGroupList
	err := s.get(ctx, "/apis", &list)
	return list.Groups, err
}

func (s *Served) get(ctx context.Context, path string, into any) error {
	data, err := Answer(s.client.Get().AbsPath(path).Do(ctx))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
