package apply

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Adoption is which objects of the tools before this one are taken over. What is taken over gets our labels and keeps
// all else, so that it neither goes nor is empty for a moment; from then on it is one of ours, and becomes what is wanted
// when that is known.
type Adoption struct {
	// From are the tools, by the label managed-by of their objects; those of config.Originals that are not among them are
	// only told of.
	From []string
	// LabelDomains are those of the labels that say whose objects they are, which must be labels that we write ourselves.
	LabelDomains []string
	// Remotes are the clusters that they may be of.
	Remotes []string
	Events  *Events
}

// adopter makes objects of one type ours that are not, or do not look so: those of tools before this one, and those that
// were ours and that the Calico API server has written since, which is not how they are read now.
type adopter[T kube.CalicoObject] struct {
	// Adoption is nil for a type that no tool before this one had.
	*Adoption
	in    func(namespace string) kube.CalicoResource[T]
	veils bool // see kube.Unveil
	log   *slog.Logger
}

// all takes over what there is. What fails is told, and tried again by one when it stands in the way of an object.
func (a adopter[T]) all(ctx context.Context) {
	if a.Adoption == nil && !a.veils {
		return
	}
	left, regained := 0, 0
	err := pager.New(cache.ToListerWatcherWithContext(a.in("").ListWatch("")).ListWithContext).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		have := object.(T)
		veiled := a.veils && kube.Unveil(have)
		_, _, _, mine := a.source(have)
		switch {
		case ours(have):
			if !veiled {
				return nil
			}
			if _, err := a.in(have.GetNamespace()).Update(ctx, have); err != nil {
				a.log.Warn("ours, and cannot be written as it is read now", "object", key(have), "error", err)
				return nil
			}
			regained++
		case !a.original(have):
		case !mine:
			left++
			a.log.Info("left alone: "+a.hint(have), "set", have.GetName())
		default:
			if _, err := a.take(ctx, have); err != nil {
				a.Events.Warn("", "NotTakenOver", fmt.Sprintf("%s of %s: %v", have.GetName(), have.GetLabels()[naming.LabelSetManagedBy], err))
			}
		}
		return nil
	})
	if regained > 0 {
		a.log.Info("objects of ours that the Calico API server wrote are written without it now", "objects", regained)
	}
	if left > 0 {
		a.Events.Warn("", "LeftAlone", fmt.Sprintf("%d sets are of %s and left alone; the log says why of each", left, strings.Join(config.Originals, " or ")))
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("what can be taken over cannot be listed", "error", err)
	}
}

// one takes over what is under the name of an object that is wanted.
func (a adopter[T]) one(ctx context.Context, want T) (object T, ok bool, hint string, err error) {
	resource := a.in(want.GetNamespace())
	have, err := resource.Get(ctx, want.GetName())
	if err != nil {
		return object, false, "", err
	}
	veiled := a.veils && kube.Unveil(have)
	_, _, _, mine := a.source(have)
	switch {
	case veiled && ours(have):
		object, err = wrap(resource.Update(ctx, have))
	case mine && a.original(have):
		object, err = a.take(ctx, have)
	default:
		return object, false, a.hint(have), nil
	}
	return object, err == nil, "", err
}

func ours(object metav1.Object) bool {
	return object.GetLabels()[naming.LabelManagedBy] == naming.ManagedByBroker
}

// original says whether an object is one of a tool before this one.
func (a adopter[T]) original(object T) bool {
	labels := object.GetLabels()
	return a.Adoption != nil && labels[naming.LabelManagedBy] == "" && slices.Contains(config.Originals, labels[naming.LabelSetManagedBy])
}

// source is the cluster, namespace and name that an object's pods have; ok is false for one that is not to be taken over.
func (a adopter[T]) source(have T) (cluster, namespace, name string, ok bool) {
	if a.Adoption == nil || !slices.Contains(a.From, have.GetLabels()[naming.LabelSetManagedBy]) {
		return "", "", "", false
	}
	labels := have.GetLabels()
	for _, domain := range a.LabelDomains {
		cluster, name := labels[domain+"/cluster"], labels[domain+"/name"]
		if slices.Contains(a.Remotes, cluster) && name != "" {
			return cluster, labels[domain+"/namespace"], name, true
		}
	}
	return "", "", "", false
}

// take makes an object ours.
func (a adopter[T]) take(ctx context.Context, have T) (T, error) {
	cluster, namespace, name, _ := a.source(have)
	from := have.GetLabels()[naming.LabelSetManagedBy]
	out := have.DeepCopyObject().(T)
	out.SetLabels(with(out.GetLabels(), naming.LabelManagedBy, naming.ManagedByBroker, naming.LabelSourceCluster, cluster))
	out.SetAnnotations(with(out.GetAnnotations(), naming.AnnotationSourceNamespace, namespace, naming.AnnotationSourceName, name))
	out, err := wrap(a.in("").Update(ctx, out))
	if err == nil {
		a.log.Info("taken over", "set", have.GetName(), "from", from, "cluster", cluster)
	}
	return out, err
}

// with is a map with keys and values beside what it has.
func with(m map[string]string, pairs ...string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, m)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// hint is what can be done about an object that is not taken over; empty where it is none of a tool before this one.
func (a adopter[T]) hint(have T) string {
	from := have.GetLabels()[naming.LabelSetManagedBy]
	switch {
	case !a.original(have):
		return ""
	case !slices.Contains(a.From, from):
		return fmt.Sprintf("it is of %s: sets.adoptFrom: [%s] takes it over", from, from)
	}
	for key, cluster := range have.GetLabels() {
		domain, ok := strings.CutSuffix(key, "/cluster")
		if ok && !slices.Contains(a.LabelDomains, domain) && slices.Contains(a.Remotes, cluster) {
			return fmt.Sprintf("it is of %s and has labels of %s: labelDomains: [%s] takes it over", from, domain, domain)
		}
	}
	return fmt.Sprintf("it is of %s and, by its labels, of no remote that is configured", from)
}
