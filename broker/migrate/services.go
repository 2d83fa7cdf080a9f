package migrate

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Services selects the Services of semaphore-service-mirror to adopt. An adopted Service gets our labels and keeps all
// else, in particular its addresses; its endpoints stay until Leftovers removes them. From then on it is ours, and is
// written as desired once that is known.
type Services struct {
	// Config returns the configuration with the remotes in effect: their mirrors they may be, by the prefix of the names.
	Config func() *config.Broker
	// API are the Services of the namespace of the mirrors.
	API    typedcorev1.ServiceInterface
	Events *report.Events
	Log    *slog.Logger
}

// configured reports whether the Services are adopted; otherwise they are only reported.
func (a *Services) configured() bool {
	return slices.Contains(a.Config().Services.AdoptFrom, config.ServiceMirror)
}

func (a *Services) remote(prefix string) (cluster string, ok bool) {
	for _, r := range a.Config().Remotes {
		if r.ServicePrefix == prefix {
			return r.Name, true
		}
	}
	return "", false
}

// The labels of semaphore-service-mirror's objects. Ours have them too, for selectors of users, and LabelManagedBy.
var theirServices = []string{naming.LabelMirrored + "=true,!" + naming.LabelManagedBy, naming.LabelGlobal + "=true,!" +
	naming.LabelManagedBy}

// All adopts the existing Services. It reports failures; One tries again when the name is desired.
func (a *Services) All(ctx context.Context) {
	left := 0
	for _, selector := range theirServices {
		list, err := a.API.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			if ctx.Err() == nil {
				a.Events.Warn("", finding.NotTakenOver, fmt.Sprintf("listing Services of %s: %v", config.ServiceMirror, err))
			}
			continue
		}
		for i := range list.Items {
			have := &list.Items[i]
			if _, mine := a.source(have); !mine {
				left++
				a.Log.Warn("not adopted: "+a.hint(have), "service", have.Name)
			} else if _, err := a.take(ctx, have); err != nil {
				a.Events.Warn("", finding.NotTakenOver, fmt.Sprintf("service %s of %s: %v", have.Name, config.ServiceMirror, err))
			}
		}
	}
	if left > 0 {
		a.Events.Warn("", finding.LeftAlone,
			fmt.Sprintf("%s created %d Services that are not adopted; the log has the reason for each",
				config.ServiceMirror, left))
	}
}

// One adopts the Service under the name of a desired one. It fails if that is absent, or a request fails.
func (a *Services) One(ctx context.Context, want *corev1.Service) (object *corev1.Service, ok bool, hint string,
	err error) {
	have, err := a.API.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, "", err
	}
	if _, mine := a.source(have); !mine {
		return nil, false, a.hint(have), nil
	}
	object, err = a.take(ctx, have)
	return object, err == nil, "", err
}

// origin is the source of a Service of semaphore-service-mirror.
type origin struct {
	// cluster is empty for a global service, which has several.
	cluster, namespace, name string
}

// source returns the source of a Service; ok is false if it is not to be adopted.
func (a *Services) source(have *corev1.Service) (from origin, ok bool) {
	prefix, theirs := theirPrefix(have)
	if !theirs || !a.configured() {
		return origin{}, false
	}
	if prefix != naming.GlobalPrefix {
		if from.cluster, ok = a.remote(prefix); !ok {
			return origin{}, false
		}
	}
	rest, named := strings.CutPrefix(have.Name, prefix+"-")
	from.namespace, from.name, ok = strings.Cut(rest, "-"+naming.MirrorSeparator+"-")
	return from, named && ok
}

// theirPrefix is the prefix of the names that semaphore-service-mirror gives. It created no Service with a selector:
// such a Service has endpoints of this cluster.
func theirPrefix(s *corev1.Service) (prefix string, theirs bool) {
	switch {
	case s.Labels[naming.LabelManagedBy] != "" || len(s.Spec.Selector) > 0:
		return "", false
	case s.Labels[naming.LabelGlobal] == "true":
		return naming.GlobalPrefix, true
	case s.Labels[naming.LabelMirrored] == "true":
		return s.Labels[naming.LabelMirrorPrefixSync], true
	}
	return "", false
}

func (a *Services) take(ctx context.Context, have *corev1.Service) (*corev1.Service, error) {
	from, _ := a.source(have)
	out := have.DeepCopy()
	out.Labels = with(out.Labels, naming.LabelManagedBy, naming.ManagedByBroker)
	if from.cluster != "" {
		out.Labels[naming.LabelSourceCluster] = from.cluster
	}
	out.Annotations = with(out.Annotations, naming.AnnotationSourceNamespace, from.namespace,
		naming.AnnotationSourceName, from.name)
	out, err := a.API.Update(ctx, out, metav1.UpdateOptions{FieldManager: writes.FieldManager})
	if err == nil {
		a.Log.Info("adopted a Service", "service", have.Name, "from", config.ServiceMirror, "cluster", from.cluster)
	}
	return out, err
}

// hint returns the remedy for a Service that is not adopted; empty if another tool created it.
func (a *Services) hint(have *corev1.Service) string {
	prefix, theirs := theirPrefix(have)
	cluster, _ := a.remote(prefix)
	switch {
	case !theirs:
		return ""
	case !a.configured():
		return fmt.Sprintf("%s created it: set services.adoptFrom: [%s] to take it over", config.ServiceMirror,
			config.ServiceMirror)
	case prefix != naming.GlobalPrefix && cluster == "":
		return fmt.Sprintf("%s created it, with the prefix %q, which is the servicePrefix of no configured remote",
			config.ServiceMirror, prefix)
	}
	return fmt.Sprintf("%s created it, but its name is none that %s gives: %s-NAMESPACE-%s-NAME",
		config.ServiceMirror, config.ServiceMirror, prefix, naming.MirrorSeparator)
}
