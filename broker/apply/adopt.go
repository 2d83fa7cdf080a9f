package apply

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

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
	// LabelDomain is that of the labels that say whose objects they are, which must be labels that we write ourselves.
	LabelDomain string
	// Remotes are the clusters that they may be of.
	Remotes []string
	Events  *Events
	Log     *slog.Logger
}

// adopter takes over objects of one type.
type adopter[T kube.CalicoObject] struct {
	*Adoption
	resource kube.CalicoResource[T]
}

// all takes over what there is. What fails is told, and tried again by one when it stands in the way of an object.
func (a adopter[T]) all(ctx context.Context) {
	selector := fmt.Sprintf("%s in (%s),!%s", naming.LabelSetManagedBy, strings.Join(config.Originals, ","), naming.LabelManagedBy)
	list, err := cache.ToListerWatcherWithContext(a.resource.ListWatch(selector)).ListWithContext(ctx, metav1.ListOptions{})
	if err == nil {
		left := 0
		err = meta.EachListItem(list, func(object runtime.Object) error {
			have := object.(T)
			if _, _, mine := a.source(have); !mine {
				left++
				a.Log.Info("left alone: "+a.hint(have), "set", have.GetName())
				return nil
			}
			if _, err := a.take(ctx, have); err != nil {
				a.Events.Warn("NotTakenOver", fmt.Sprintf("%s of %s: %v", have.GetName(), have.GetLabels()[naming.LabelSetManagedBy], err))
			}
			return nil
		})
		if left > 0 {
			a.Events.Warn("LeftAlone", fmt.Sprintf("%d sets are of %s and left alone; the log says why of each", left, strings.Join(config.Originals, " or ")))
		}
	}
	if err != nil && ctx.Err() == nil {
		a.Events.Warn("NotTakenOver", fmt.Sprintf("listing sets of %s: %v", strings.Join(config.Originals, " and "), err))
	}
}

// one takes over what is under the name of an object that is wanted.
func (a adopter[T]) one(ctx context.Context, want T) (object T, ok bool, hint string, err error) {
	have, err := a.resource.Get(ctx, want.GetName())
	if err != nil {
		return object, false, "", err
	}
	if _, _, mine := a.source(have); !mine || have.GetLabels()[naming.LabelManagedBy] != "" {
		return object, false, a.hint(have), nil
	}
	object, err = a.take(ctx, have)
	return object, err == nil, "", err
}

// source is the namespace and name that an object's pods have in their own cluster; ok is false for one that is not to be
// taken over.
func (a adopter[T]) source(have T) (namespace, name string, ok bool) {
	labels := have.GetLabels()
	return labels[a.LabelDomain+"/namespace"], labels[a.LabelDomain+"/name"],
		slices.Contains(a.From, labels[naming.LabelSetManagedBy]) && slices.Contains(a.Remotes, labels[a.LabelDomain+"/cluster"]) &&
			labels[a.LabelDomain+"/name"] != ""
}

// take makes an object ours.
func (a adopter[T]) take(ctx context.Context, have T) (T, error) {
	namespace, name, _ := a.source(have)
	from, cluster := have.GetLabels()[naming.LabelSetManagedBy], have.GetLabels()[a.LabelDomain+"/cluster"]
	out := have.DeepCopyObject().(T)
	out.SetLabels(with(out.GetLabels(), naming.LabelManagedBy, naming.ManagedByBroker, naming.LabelSourceCluster, cluster))
	out.SetAnnotations(with(out.GetAnnotations(), naming.AnnotationSourceNamespace, namespace, naming.AnnotationSourceName, name))
	out, err := wrap(a.resource.Update(ctx, out))
	if err == nil {
		a.Log.Info("taken over", "set", have.GetName(), "from", from, "cluster", cluster)
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
	case !slices.Contains(config.Originals, from) || have.GetLabels()[naming.LabelManagedBy] != "":
		return ""
	case !slices.Contains(a.From, from):
		return fmt.Sprintf("it is of %s: sets.adoptFrom: [%s] takes it over", from, from)
	}
	for key, cluster := range have.GetLabels() {
		domain, ok := strings.CutSuffix(key, "/cluster")
		if ok && domain != a.LabelDomain && slices.Contains(a.Remotes, cluster) {
			return fmt.Sprintf("it is of %s and has labels of %s: labelDomain: %s takes it over", from, domain, domain)
		}
	}
	return fmt.Sprintf("it is of %s and, by its labels, of no remote that is configured", from)
}
