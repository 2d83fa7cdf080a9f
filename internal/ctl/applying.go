package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/ctl/install"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// poll is the interval at which the state that a command waits for is read.
const poll = time.Second

// applier writes objects to one cluster, and reports on progress what it waits for.
type applier struct {
	client   dynamic.Interface
	cluster  *fleet.Cluster
	progress io.Writer
	// force takes over fields that other field managers own.
	force bool
}

func applierOf(c *fleet.Cluster, progress io.Writer) (*applier, error) {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: client for the apiserver: %w", c.Context, err)
	}
	return &applier{client: client, cluster: c, progress: progress}, nil
}

func (a *applier) say(format string, args ...any) {
	fmt.Fprintf(a.progress, "%s: %s\n", a.cluster.Context, cli.Printable(fmt.Sprintf(format, args...)))
}

// of returns the client for objects of a kind.
func (a *applier) of(r install.Ref) dynamic.ResourceInterface {
	resource, _ := meta.UnsafeGuessKindToResource(r.GroupVersionKind)
	if r.Kind == "SecurityContextConstraints" { // which is its plural already
		resource.Resource = "securitycontextconstraints"
	}
	if r.Namespace == "" {
		return a.client.Resource(resource)
	}
	return a.client.Resource(resource).Namespace(r.Namespace)
}

// get returns an object; nil if the object, or its type, does not exist.
func (a *applier) get(ctx context.Context, r install.Ref) (*unstructured.Unstructured, error) {
	found, err := a.of(r).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", a.cluster.Context, r, err)
	}
	return found, nil
}

// The outcomes of applying an object.
const (
	created   = "created"
	changed   = "changed"
	unchanged = "unchanged"
)

// serverSideApply writes an object as semaphorectl's field manager; force takes over fields that others own.
func serverSideApply(ctx context.Context, in dynamic.ResourceInterface, name string, object any,
	force bool) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return in.Patch(ctx, name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: fieldManager, Force: &force})
}

// apply writes one object by server-side apply.
func (a *applier) apply(ctx context.Context, o *unstructured.Unstructured) (outcome string, err error) {
	ref := install.RefOf(o)
	before, err := a.get(ctx, ref)
	if err != nil {
		return "", err
	}
	after, err := serverSideApply(ctx, a.of(ref), ref.Name, o, a.force)
	switch {
	case apierrors.IsConflict(err):
		return "", fmt.Errorf("%s: %s: somebody else has set what semaphorectl would: %w; --force-conflicts takes it over",
			a.cluster.Context, ref, err)
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("%s: %s: the cluster does not serve this kind: %w", a.cluster.Context, ref, err)
	case err != nil:
		return "", fmt.Errorf("%s: %s: %w", a.cluster.Context, ref, err)
	case before == nil:
		return created, nil
	case before.GetResourceVersion() != after.GetResourceVersion():
		return changed, nil
	}
	return unchanged, nil
}

// remove deletes an object and its dependents.
func (a *applier) remove(ctx context.Context, r install.Ref) error {
	foreground := metav1.DeletePropagationForeground
	err := a.of(r).Delete(ctx, r.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: deleting %s: %w", a.cluster.Context, r, err)
	}
	return nil
}

// removeAll deletes objects in their order, and waits until they no longer exist.
func (a *applier) removeAll(ctx context.Context, refs ...install.Ref) error {
	for _, r := range refs {
		if err := a.remove(ctx, r); err != nil {
			return err
		}
	}
	return a.gone(ctx, refs...)
}

func (a *applier) gone(ctx context.Context, refs ...install.Ref) error {
	for _, r := range refs {
		if err := a.until(ctx, r.String()+" to be deleted", func() (string, error) {
			found, err := a.get(ctx, r)
			if err != nil || found == nil {
				return "", err
			}
			return "it is there still", nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// until calls ask until left is empty: left names what it still waits for. It prints left whenever that changes.
func (a *applier) until(ctx context.Context, what string, ask func() (left string, err error)) error {
	said, began := "", time.Now()
	for {
		left, err := ask()
		switch {
		case ctx.Err() != nil && said != "":
			return fmt.Errorf("%s: waited %s for %s: %s", a.cluster.Context, time.Since(began).Round(time.Second), what,
				cli.Printable(said))
		case err != nil:
			return err
		case left == "":
			return nil
		case left != said:
			if time.Since(began) >= poll { // most are done at once
				a.say("waiting for %s: %s", what, left)
			}
			said = left
		}
		if err := kube.Sleep(ctx, poll); err != nil {
			return fmt.Errorf("%s: waited %s for %s: %s", a.cluster.Context, time.Since(began).Round(time.Second), what,
				cli.Printable(said))
		}
	}
}

// ready waits until the pods of an object are ready, as `kubectl rollout status` and `kubectl wait` do.
func (a *applier) ready(ctx context.Context, r install.Ref) error {
	return a.until(ctx, r.String(), func() (string, error) {
		found, err := a.get(ctx, r)
		if err != nil {
			return "", err
		}
		if found == nil {
			return "", fmt.Errorf("%s: %s was deleted", a.cluster.Context, r)
		}
		left, err := install.Unready(found)
		if err != nil || left == "" {
			return "", err
		}
		if why := a.pods(ctx, found); why != "" {
			left += ": " + why
		}
		return left, nil
	})
}

// pods returns why an object's pods do not run, as far as their status shows it.
func (a *applier) pods(ctx context.Context, of *unstructured.Unstructured) string {
	labels, _, _ := unstructured.NestedStringMap(of.Object, "spec", "selector", "matchLabels")
	list, err := a.client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(of.GetNamespace()).List(ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})})
	if err != nil {
		return "" // it explains, and is not needed
	}
	for i := range list.Items {
		var pod corev1.Pod
		if err := fromUnstructured(&list.Items[i], &pod); err != nil {
			continue
		}
		if why := install.Stuck(&pod); why != "" {
			return why
		}
	}
	return ""
}

// served waits until the apiserver serves a definition's objects.
func (a *applier) served(ctx context.Context, definition install.Ref) error {
	return a.until(ctx, definition.String(), func() (string, error) {
		found, err := a.get(ctx, definition)
		if err != nil || found == nil {
			return "it is not there", err
		}
		conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return "", nil
			}
		}
		return "it is not served yet", nil
	})
}

// record returns the record of the cluster's installation; nil for none.
func (a *applier) record(ctx context.Context) (*install.Record, error) {
	found, err := a.get(ctx, install.Ref{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"},
		Namespace: a.cluster.Namespace, Name: install.RecordName})
	if err != nil || found == nil {
		return nil, err
	}
	r, err := install.ParseRecord(found)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.cluster.Context, err)
	}
	return r, nil
}

// keep writes the record, which no other program writes.
func (a *applier) keep(ctx context.Context, r *install.Record) error {
	o, err := r.Object()
	if err != nil {
		return err
	}
	forced := *a
	forced.force = true
	_, err = forced.apply(ctx, o)
	return err
}

// workload names an object with pods of the namespace of the parts.
func (a *applier) workload(kind, name string) install.Ref {
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind}
	if kind == "Job" {
		gvk.Group = "batch"
	}
	return install.Ref{GroupVersionKind: gvk, Namespace: a.cluster.Namespace, Name: name}
}

// errStandsInTheWay is the error of verbs that have printed the reason.
var errStandsInTheWay = errors.New("nothing was written")

// joined returns a text such as "3 created, 2 changed".
func joined(counts map[string]int) string {
	var out []string
	for _, outcome := range []string{created, changed, unchanged} {
		if n := counts[outcome]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	return strings.Join(out, ", ")
}
