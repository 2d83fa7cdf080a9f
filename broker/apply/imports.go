package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// MCS waits until the cluster serves the Multi-Cluster Services API.
type MCS struct {
	client *mcs.Client
	// problem is why the API is not served, and about how the About API contradicts the cluster's name.
	problem, about *kube.Problem
	// aboutEvery is the time between two reads of the About API, whose value rarely changes.
	aboutEvery time.Duration
}

// CompareID compares the cluster's ID in the About API with its name in the configuration, until ctx ends, whose error
// it returns: other implementations and people use that ID. A cluster without an ID is valid.
func (m *MCS) CompareID(ctx context.Context, cluster string) error {
	for {
		id, err := m.client.ClusterID(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text := ""
		switch {
		case err != nil:
			text = "the ID of the cluster is not known: " + err.Error()
		case id != "" && id != cluster && id != naming.ClusterLabel(cluster):
			text = fmt.Sprintf("the ClusterProperty %s is %q, and this cluster is %q here: its ServiceImports and names in "+
				"clusterset.local say %q", mcs.ClusterIDProperty, id, cluster, naming.ClusterLabel(cluster))
		}
		m.about.Set(text)
		if err := kube.Sleep(ctx, m.aboutEvery); err != nil {
			return err
		}
	}
}

// AboutProblem returns how the About API contradicts the cluster's name; empty if it does not.
func (m *MCS) AboutProblem() string { return m.about.Text() }

func NewMCS(client *mcs.Client, log *slog.Logger) *MCS {
	return &MCS{client: client, problem: kube.NewProblem(log), about: kube.NewProblem(log), aboutEvery: time.Minute}
}

// Problem returns why the API is not served; empty while it is, and before the first request.
func (m *MCS) Problem() string { return m.problem.Text() }

// connect returns once the API is served, or with the context's error.
func (m *MCS) connect(ctx context.Context) error {
	for {
		_, err := m.client.Version(ctx)
		switch {
		case err == nil:
			m.problem.Set("")
			return nil
		case ctx.Err() == nil:
			m.problem.Set("no ServiceImports are written: " + err.Error())
		}
		if err := kube.Sleep(ctx, askAgainAfter); err != nil {
			return err
		}
	}
}

func (m *MCS) asked(err error) {
	switch {
	case err == nil:
		m.problem.Set("")
	case errors.Is(err, mcs.ErrNotServed):
		m.problem.Set("ServiceImports are no longer written: " + err.Error())
	}
}

// ServiceImports returns the writer of those of all namespaces, for which the cluster must serve the API. Their names
// are NAMESPACE/NAME.
func ServiceImports(api *MCS, desired writes.Desired[*mcsv1beta1.ServiceImport],
	options Options) *Objects[*mcsv1beta1.ServiceImport] {
	imports, lacks, unread := api.client.Imports(), &dropped{}, &kube.Unread{}
	return newObjects(kind[*mcsv1beta1.ServiceImport]{
		Kind: writes.Kind[*mcsv1beta1.ServiceImport]{
			Name:  writes.ServiceImport,
			Paced: true,
			Merge: mergeImport,
			Equal: func(a, b *mcsv1beta1.ServiceImport) bool {
				return equality.Semantic.DeepEqual(lacks.without(a), lacks.without(b))
			},
			// The addresses are those of its Service, which is gone by then and whose addresses another one may get.
			Empty: func(have *mcsv1beta1.ServiceImport) *mcsv1beta1.ServiceImport {
				out := have.DeepCopy()
				out.Spec.IPs, out.Status.Clusters = nil, nil
				return out
			},
		},
		example:    imports.Example(),
		everywhere: true,
		unread:     unread,
		connect: func(ctx context.Context) (connection[*mcsv1beta1.ServiceImport], error) {
			if err := api.connect(ctx); err != nil {
				return connection[*mcsv1beta1.ServiceImport]{}, err
			}
			return connection[*mcsv1beta1.ServiceImport]{
				client: importClient{imports, api.asked, lacks},
				listWatch: kube.Asking(imports.Follow(writes.Owned, unread),
					func(_ context.Context, _ string, request func() error) { api.asked(request()) }),
				unserved: func() {},
			}, nil
		},
	}, desired, options)
}

// mergeImport keeps labels, annotations and conditions of others.
func mergeImport(have, want *mcsv1beta1.ServiceImport) *mcsv1beta1.ServiceImport {
	out := have.DeepCopy()
	for _, key := range strings.Split(have.Annotations[naming.AnnotationCopiedAnnotations], ",") {
		delete(out.Annotations, key)
	}
	delete(out.Annotations, naming.AnnotationCopiedAnnotations)
	dropCopied(&out.ObjectMeta)
	mergeMeta(&out.ObjectMeta, &want.ObjectMeta)
	out.Spec = want.Spec
	out.Status.Clusters, out.Status.EndpointSliceObjects = want.Status.Clusters, want.Status.EndpointSliceObjects
	for _, c := range want.Status.Conditions {
		c.ObservedGeneration = 0 // the broker writes the spec itself
		meta.SetStatusCondition(&out.Status.Conditions, c)
	}
	return out
}

// importClient writes an object and its status, which are two requests.
type importClient struct {
	api mcs.Resource[*mcsv1beta1.ServiceImport]
	// asked receives each answer.
	asked func(error)
	lacks *dropped
}

func (c importClient) wrap(o *mcsv1beta1.ServiceImport, err error) (*mcsv1beta1.ServiceImport, error) {
	c.asked(err)
	return wrap(o, err)
}

func (c importClient) Get(ctx context.Context, like *mcsv1beta1.ServiceImport) (*mcsv1beta1.ServiceImport, error) {
	return c.wrap(c.api.Get(ctx, like.Namespace, like.Name))
}

func (c importClient) Create(ctx context.Context, o *mcsv1beta1.ServiceImport) (*mcsv1beta1.ServiceImport, error) {
	return c.write(ctx, o, c.api.Create)
}

func (c importClient) Update(ctx context.Context, o *mcsv1beta1.ServiceImport) (*mcsv1beta1.ServiceImport, error) {
	return c.write(ctx, o, c.api.Update)
}

func (c importClient) write(ctx context.Context, want *mcsv1beta1.ServiceImport, send func(context.Context,
	*mcsv1beta1.ServiceImport) (*mcsv1beta1.ServiceImport, error)) (*mcsv1beta1.ServiceImport, error) {
	now, err := send(ctx, want)
	if err != nil {
		return c.wrap(now, err)
	}
	c.lacks.spec(&want.Spec, &now.Spec)
	next := now.DeepCopy()
	next.Status = *want.Status.DeepCopy()
	for i := range next.Status.Conditions {
		if next.Status.Conditions[i].LastTransitionTime.IsZero() {
			next.Status.Conditions[i].LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
		}
	}
	if equality.Semantic.DeepEqual(next.Status, now.Status) {
		return c.wrap(now, nil)
	}
	out, err := c.api.UpdateStatus(ctx, next)
	if err == nil {
		c.lacks.status(&next.Status, &out.Status)
	}
	return c.wrap(out, err)
}

func (c importClient) Delete(ctx context.Context, o *mcsv1beta1.ServiceImport) error {
	err := c.api.Delete(ctx, o.Namespace, o.Name, writes.DeletePreconditions(o))
	c.asked(err)
	return err
}
