package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
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

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// ApplyTyped is Apply for an object of one of Kubernetes' types. It fails as Apply does.
func (a *Applier) ApplyTyped(ctx context.Context, typed any) error {
	object, err := fleet.Object(typed)
	if err == nil {
		_, err = a.Apply(ctx, object)
	}
	return err
}

// poll is the interval at which the state that a command waits for is read, and quiet how long it does not say so: most
// is done at once.
const poll, quiet = 300 * time.Millisecond, time.Second

// Applier writes objects to one cluster, and reports on progress the reasons why it waits.
type Applier struct {
	*fleet.Cluster
	progress io.Writer
	// Force takes over fields that other field managers own.
	Force bool
}

func New(c *fleet.Cluster, progress io.Writer) *Applier {
	return &Applier{Cluster: c, progress: progress}
}

func (a *Applier) Say(format string, args ...any) {
	fmt.Fprintf(a.progress, "%s: %s\n", a.Cluster.Context, show.Printable(fmt.Sprintf(format, args...)))
}

// Of returns the client for objects of a kind.
func (a *Applier) Of(r Ref) dynamic.ResourceInterface {
	resource, _ := meta.UnsafeGuessKindToResource(r.GroupVersionKind)
	if r.Kind == "SecurityContextConstraints" { // which is its plural already
		resource.Resource = "securitycontextconstraints"
	}
	return a.Objects.Client.Resource(resource).Namespace(r.Namespace)
}

// Get returns an object; nil, and no error, if the object or its type does not exist. It fails if that is not known.
func (a *Applier) Get(ctx context.Context, r Ref) (*unstructured.Unstructured, error) {
	found, err := a.Of(r).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", a.Cluster.Context, r, err)
	}
	return found, nil
}

// The outcomes of applying an object.
const (
	created   = "created"
	Changed   = "changed"
	unchanged = "unchanged"
)

// ServerSideApply writes an object as semaphorectl's field manager; force takes over fields that others own. It fails
// if the apiserver refuses, or others own a field and force is not set.
func ServerSideApply(ctx context.Context, in dynamic.ResourceInterface, name string, object any, force bool,
	dryRun ...string) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return in.Patch(ctx, name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: FieldManager, Force: &force,
		DryRun: dryRun})
}

// SetData sets keys of a ConfigMap, and removes those that are nil; those of others stay. Without a version it makes
// a ConfigMap that does not exist, unless there is nothing to set. It fails if the apiserver refuses, or has another
// version.
func SetData(ctx context.Context, in dynamic.ResourceInterface, ref Ref, data map[string]any, version string,
	dryRun ...string) error {
	patch := map[string]any{"data": data}
	if version != "" {
		patch["metadata"] = map[string]any{"resourceVersion": version}
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, ref.Name, types.MergePatchType, text,
		metav1.PatchOptions{FieldManager: FieldManager, DryRun: dryRun})
	maps.DeleteFunc(data, func(_ string, value any) bool { return value == nil })
	if !apierrors.IsNotFound(err) || version != "" || len(data) == 0 {
		return err
	}
	_, err = in.Create(ctx, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": ref.Name, "namespace": ref.Namespace}, "data": data}},
		metav1.CreateOptions{FieldManager: FieldManager, DryRun: dryRun})
	return err
}

// Apply writes one object by server-side apply. It fails if others own a field that it sets, unless Force is set, and
// if the cluster does not serve the type.
func (a *Applier) Apply(ctx context.Context, o *unstructured.Unstructured) (outcome string, err error) {
	ref := RefOf(o)
	before, err := a.Get(ctx, ref)
	if err != nil {
		return "", err
	}
	after, err := a.write(ctx, ref, o)
	switch {
	case err != nil:
		return "", err
	case before == nil:
		return created, nil
	case before.GetResourceVersion() != after.GetResourceVersion():
		return Changed, nil
	}
	return unchanged, nil
}

func (a *Applier) write(ctx context.Context, ref Ref, o *unstructured.Unstructured, dryRun ...string) (
	*unstructured.Unstructured, error) {
	after, err := ServerSideApply(ctx, a.Of(ref), ref.Name, o, a.Force, dryRun...)
	switch {
	case apierrors.IsConflict(err):
		err = fmt.Errorf("others own fields that semaphorectl sets: %w; --force-conflicts takes them over", err)
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("the cluster does not serve this kind: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", a.Cluster.Context, ref, err)
	}
	return after, nil
}

// Try writes nothing, and fails where Apply would. It passes an object whose namespace is applied before it, and one of
// which a webhook can only be asked with a write.
func (a *Applier) Try(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := a.write(ctx, RefOf(o), o, metav1.DryRunAll)
	// The text is of apiserver/pkg/admission/plugin/webhook/errors, which gives it no reason of its own.
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) ||
		err != nil && strings.Contains(err.Error(), "does not support dry run") {
		return nil
	}
	return err
}

// ApplyAll writes objects in their order, and waits until those with pods are ready. It fails as Apply and Ready do.
func (a *Applier) ApplyAll(ctx context.Context, all []*unstructured.Unstructured) error {
	for _, o := range all {
		if _, err := a.Apply(ctx, o); err != nil {
			return err
		}
	}
	for _, o := range all {
		if Runs(o.GetKind()) {
			if err := a.Ready(ctx, RefOf(o)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove deletes an object and its dependents. It fails if the apiserver refuses; an object that does not exist is no
// error.
func (a *Applier) Remove(ctx context.Context, r Ref) error {
	foreground := metav1.DeletePropagationForeground
	err := a.Of(r).Delete(ctx, r.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: deleting %s: %w", a.Cluster.Context, r, err)
	}
	return nil
}

// RemoveAll deletes objects in their order, and waits until they no longer exist. It fails at the first that it may not
// delete, and if ctx ends before all are gone.
func (a *Applier) RemoveAll(ctx context.Context, refs ...Ref) error {
	for _, r := range refs {
		if err := a.Remove(ctx, r); err != nil {
			return err
		}
	}
	return a.Gone(ctx, refs...)
}

// Gone waits until objects no longer exist. It fails if one cannot be read, and if ctx ends before.
func (a *Applier) Gone(ctx context.Context, refs ...Ref) error {
	for _, r := range refs {
		if err := a.Until(ctx, r.String()+" to be deleted", func() (string, error) {
			found, err := a.Get(ctx, r)
			if err != nil || found == nil {
				return "", err
			}
			// One of its own is that of the deletion with all dependents, which goes by itself.
			if by := slices.DeleteFunc(found.GetFinalizers(),
				func(f string) bool { return f == metav1.FinalizerDeleteDependents }); len(by) > 0 {
				return "a finalizer keeps it: " + strings.Join(by, ", "), nil
			}
			if why := a.pods(ctx, found); why != "" {
				return why, nil
			}
			return "it is there still", nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// Until calls ask until left is empty: left is the reason to wait. It prints left whenever that changes. It returns the
// first error of ask, and one with the last left if ctx ends before.
func (a *Applier) Until(ctx context.Context, what string, ask func() (left string, err error)) error {
	said, began := "", time.Now()
	for {
		left, err := ask()
		// A client that limits its rate fails before the end, if it could only ask after it.
		late := err != nil && strings.Contains(err.Error(), "would exceed context deadline")
		switch {
		case (late || ctx.Err() != nil) && said != "":
			return fmt.Errorf("%s: waited %s for %s: %s", a.Cluster.Context, time.Since(began).Round(time.Second), what,
				show.Printable(said))
		case err != nil:
			return err
		case left == "":
			return nil
		case left != said:
			if time.Since(began) >= quiet {
				a.Say("waiting for %s: %s", what, left)
			}
			said = left
		}
		_ = kube.Sleep(ctx, poll) // the next look says what is missing once ctx has ended
	}
}

// Ready waits until the pods of an object are ready, as `kubectl rollout status` and `kubectl wait` do. It fails if the
// object is deleted, and if ctx ends before.
func (a *Applier) Ready(ctx context.Context, r Ref) error {
	return a.ReadyUnless(ctx, r, func() error { return nil })
}

// ReadyUnless is Ready, and also fails with an error of never, which is asked as long as pods are not ready.
func (a *Applier) ReadyUnless(ctx context.Context, r Ref, never func() error) error {
	return a.Until(ctx, r.String(), func() (string, error) {
		found, err := a.Get(ctx, r)
		if err != nil {
			return "", err
		}
		if found == nil {
			return "", fmt.Errorf("%s: %s was deleted", a.Cluster.Context, r)
		}
		left, err := Unready(found)
		if err != nil || left == "" {
			return "", err
		}
		if why := a.pods(ctx, found); why != "" {
			left += ": " + why
		}
		return left, never()
	})
}

// pods returns why an object's pods do not run, as far as their status shows it.
func (a *Applier) pods(ctx context.Context, of *unstructured.Unstructured) string {
	labels, _, _ := unstructured.NestedStringMap(of.Object, "spec", "selector", "matchLabels")
	// It explains, and is not needed.
	all, _ := fleet.List[corev1.Pod](ctx, a.Cluster.Objects, fleet.PodsGVR, of.GetNamespace(),
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})})
	looked := 0
	for i := range all {
		if why := Stuck(&all[i]); why != "" {
			return why
		}
		if node := all[i].Spec.NodeName; node != "" && !fleet.IsReady(&all[i]) && looked < maxNodes {
			looked++
			if a.isAway(ctx, node) {
				return fmt.Sprintf("node %s of pod %s is not ready: bring it back, or delete the Node and then the pod with "+
					"--force", node, all[i].Name)
			}
		}
	}
	return ""
}

// maxNodes bounds the nodes that are read for one explanation.
const maxNodes = 4

// isAway reports whether a node exists and is not ready.
func (a *Applier) isAway(ctx context.Context, node string) bool {
	n, err := fleet.Get[corev1.Node](ctx, a.Cluster.Objects, fleet.NodesGVR, "", node)
	return err == nil && n != nil && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Served waits until the apiserver serves a definition's objects, and fails if ctx ends before.
func (a *Applier) Served(ctx context.Context, definition Ref) error {
	return a.Until(ctx, definition.String(), func() (string, error) {
		found, err := a.Get(ctx, definition)
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

// Record returns the record of the cluster's installation; nil for none. It fails for one that it cannot parse.
func (a *Applier) Record(ctx context.Context) (*Record, error) {
	data, err := a.Objects.ConfigMap(ctx, a.Cluster.Namespace, RecordName)
	if err != nil || data == nil {
		return nil, err
	}
	r, err := ParseRecord(data)
	if err != nil {
		return nil, fmt.Errorf("%s: ConfigMap %s: %w", a.Cluster.Context, RecordName, err)
	}
	return r, nil
}

// Keep writes the record, which no other program writes. It fails if the apiserver refuses.
func (a *Applier) Keep(ctx context.Context, r *Record) error {
	o, err := r.Object()
	if err != nil {
		return err
	}
	_, err = a.Forced().Apply(ctx, o)
	return err
}

// Forced is for objects that no other program writes.
func (a *Applier) Forced() *Applier {
	forced := *a
	forced.Force = true
	return &forced
}

// Workload names an object with pods of the namespace of the parts.
func (a *Applier) Workload(kind, name string) Ref {
	return WorkloadRef(kind, a.Cluster.Namespace, name)
}

func WorkloadRef(kind, namespace, name string) Ref {
	gvk := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind}
	if kind == "Job" {
		gvk.Group = "batch"
	}
	return Ref{GroupVersionKind: gvk, Namespace: namespace, Name: name}
}

func ConfigMapRef(namespace, name string) Ref {
	return Ref{corev1.SchemeGroupVersion.WithKind("ConfigMap"), namespace, name}
}

// Joined returns a text such as "3 created, 2 changed".
func Joined(counts map[string]int) string {
	var out []string
	for _, outcome := range []string{created, Changed, unchanged} {
		if n := counts[outcome]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	return strings.Join(out, ", ")
}

// PartOf is the label of the manifests that marks a namespace as semaphore's.
const PartOf = "app.kubernetes.io/part-of"

func NamespaceRef(name string) Ref {
	return Ref{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"), Name: name}
}

const FieldManager = "semaphorectl"
