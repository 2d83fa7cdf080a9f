// Package migrate adopts the objects of earlier tools: their policy sets and mirror Services become the broker's and
// are never empty or absent meanwhile. It removes the endpoints of those Services once their successors are written.
//
// It decides which objects of those tools are adopted. Inputs are objects that have the name of desired ones or are
// left over; outputs are relabelled objects and deletions. The engines decide their use.
package migrate

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

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Sets selects the policy sets of earlier tools to adopt. An adopted set gets our labels and keeps all else, so that it
// is neither deleted nor empty at any time; from then on it is ours, and is written as desired once that is known.
type Sets struct {
	// Config returns the configuration with the remotes in effect, from which the sets may come. It names the tools, by
	// the label managed-by of their objects (sets.adoptFrom; those of config.Originals that are not listed are only
	// reported), and the domains of the labels that name the objects' source, which the broker writes itself, too.
	Config func() *config.Broker
	Events *report.Events
}

// Adopter makes objects of one type ours: those of earlier tools, and those of ours that the Calico API server has
// written since, which reads and stores them in another form.
type Adopter[T kube.CalicoObject] struct {
	// Sets is nil for a type that no earlier tool had.
	*Sets
	// In returns the objects of a namespace; "" for all.
	In func(namespace string) kube.CalicoResource[T]
	// HidesMetadata is set if the Calico API server may have written objects; see kube.CopyCalicoMetadata.
	HidesMetadata bool
	Log           *slog.Logger
}

// All adopts the existing objects. It reports failures; One tries again when the name is desired.
func (a Adopter[T]) All(ctx context.Context) {
	if a.Sets == nil && !a.HidesMetadata {
		return
	}
	left, regained := 0, 0
	unread := &kube.Unread{Changed: func(bad *kube.Unreadable) {
		a.Log.Warn("an object cannot be read; it is not adopted", "error", bad)
	}}
	list := cache.ToListerWatcherWithContext(a.In("").Follow("", unread)).ListWithContext
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		have := object.(T)
		hidden := a.HidesMetadata && kube.CopyCalicoMetadata(have)
		_, _, _, mine := a.source(have)
		switch {
		case writes.Ours(have):
			if !hidden {
				return nil
			}
			if _, err := a.In(have.GetNamespace()).Update(ctx, have); err != nil {
				a.Log.Warn("cannot rewrite an object that the Calico API server wrote", "object",
					writes.KeyOf(have), "error", err)
				return nil
			}
			regained++
		case !a.original(have):
		case !mine:
			left++
			a.Log.Warn("not adopted: "+a.hint(have), "set", have.GetName())
		default:
			if _, err := a.take(ctx, have); err != nil {
				a.Events.Warn("", finding.NotTakenOver,
					fmt.Sprintf("%s of %s: %v", have.GetName(), have.GetLabels()[naming.LabelSetManagedBy], err))
			}
		}
		return nil
	})
	if regained > 0 {
		a.Log.Info("objects of semaphore that the Calico API server wrote are now written without it", "objects", regained)
	}
	if left > 0 {
		a.Events.Warn("", finding.LeftAlone, fmt.Sprintf(
			"%s created %d sets that are not adopted; the log has the reason for each",
			strings.Join(config.Originals, " or "), left))
	}
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("cannot list the objects to adopt; the broker adopts those whose names it writes", "error", err)
	}
}

// One adopts the object under the name of a desired one. It fails if that is absent, or a request fails.
func (a Adopter[T]) One(ctx context.Context, want T) (object T, ok bool, hint string, err error) {
	resource := a.In(want.GetNamespace())
	have, err := resource.Get(ctx, want.GetName())
	if err != nil {
		return object, false, "", err
	}
	hidden := a.HidesMetadata && kube.CopyCalicoMetadata(have)
	_, _, _, mine := a.source(have)
	switch {
	case hidden && writes.Ours(have):
		object, err = resource.Update(ctx, have)
	case mine && a.original(have):
		object, err = a.take(ctx, have)
	default:
		return object, false, a.hint(have), nil
	}
	return object, err == nil, "", err
}

func (a Adopter[T]) original(object T) bool {
	labels := object.GetLabels()
	return a.Sets != nil && labels[naming.LabelManagedBy] == "" &&
		slices.Contains(config.Originals, labels[naming.LabelSetManagedBy])
}

// source returns the cluster, namespace and name that an object's pods have; ok is false if it is not to be adopted.
func (a Adopter[T]) source(have T) (cluster, namespace, name string, ok bool) {
	if a.Sets == nil || !slices.Contains(a.Config().Sets.AdoptFrom, have.GetLabels()[naming.LabelSetManagedBy]) {
		return "", "", "", false
	}
	cfg, labels := a.Config(), have.GetLabels()
	for _, domain := range cfg.LabelDomains {
		cluster, name := labels[domain+"/cluster"], labels[domain+"/name"]
		if _, ok := cfg.Remote(cluster); ok && name != "" {
			return cluster, labels[domain+"/namespace"], name, true
		}
	}
	return "", "", "", false
}

func (a Adopter[T]) take(ctx context.Context, have T) (T, error) {
	cluster, namespace, name, _ := a.source(have)
	from := have.GetLabels()[naming.LabelSetManagedBy]
	out := have.DeepCopyObject().(T)
	out.SetLabels(with(out.GetLabels(), naming.LabelManagedBy, naming.ManagedByBroker, naming.LabelSourceCluster, cluster))
	out.SetAnnotations(with(out.GetAnnotations(),
		naming.AnnotationSourceNamespace, namespace, naming.AnnotationSourceName, name))
	out, err := a.In("").Update(ctx, out)
	if err == nil {
		a.Log.Info("adopted a set", "set", have.GetName(), "from", from, "cluster", cluster)
	}
	return out, err
}

func with(m map[string]string, pairs ...string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, m)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}

// hint returns the remedy for an object that is not adopted; empty if no earlier tool created it.
func (a Adopter[T]) hint(have T) string {
	if !a.original(have) {
		return ""
	}
	cfg, from := a.Config(), have.GetLabels()[naming.LabelSetManagedBy]
	if !slices.Contains(cfg.Sets.AdoptFrom, from) {
		return fmt.Sprintf("%s created it: set sets.adoptFrom: [%s] to take it over", from, from)
	}
	for key, cluster := range have.GetLabels() {
		domain, ok := strings.CutSuffix(key, "/cluster")
		if _, configured := cfg.Remote(cluster); ok && configured && !slices.Contains(cfg.LabelDomains, domain) {
			return fmt.Sprintf("%s created it, with labels of %s: set labelDomains: [%s] to take it over", from, domain, domain)
		}
	}
	return fmt.Sprintf("%s created it, and its labels name no configured remote", from)
}
