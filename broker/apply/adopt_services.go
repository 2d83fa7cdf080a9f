package apply

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// ServiceAdoption is which Services of semaphore-service-mirror are taken over. What is taken over gets our labels and
// keeps all else, its addresses first of all; what stands behind it stays until Leftovers removes it. From then on it is
// one of ours, and becomes what is wanted when that is known.
type ServiceAdoption struct {
	// From are the tools, as in the configuration; without semaphore-service-mirror its Services are only told of.
	From []string
	// Remotes are the clusters whose mirrors they may be, by the prefix of the names.
	Remotes map[string]string
	Events  *Events
	Log     *slog.Logger
}

// NewServiceAdoption is that of a broker's configuration.
func NewServiceAdoption(cfg *config.Broker, events *Events, log *slog.Logger) *ServiceAdoption {
	a := &ServiceAdoption{From: cfg.Services.AdoptFrom, Remotes: map[string]string{}, Events: events, Log: log}
	for _, r := range cfg.Remotes {
		a.Remotes[r.ServicePrefix] = r.Name
	}
	return a
}

// AdoptingServices is Services that takes over those of another tool, all that there are when it begins, and later what
// stands in the way of one that is wanted.
func AdoptingServices(kube kubernetes.Interface, namespace string, adoption *ServiceAdoption, desired Desired[*corev1.Service], options Options) *Objects[*corev1.Service] {
	o := Services(kube, namespace, desired, options)
	adopter := serviceAdopter{adoption, kube.CoreV1().Services(namespace)}
	connect := o.kind.connect
	o.kind.connect = func(ctx context.Context) (connection[*corev1.Service], error) {
		out, err := connect(ctx)
		if err == nil {
			adopter.all(ctx)
			out.adopt = adopter.one
		}
		return out, err
	}
	return o
}

// The labels of what semaphore-service-mirror made. Ours have them too, for whoever selects by them, and LabelManagedBy.
var theirServices = []string{naming.LabelMirrored + "=true,!" + naming.LabelManagedBy, naming.LabelGlobal + "=true,!" + naming.LabelManagedBy}

// serviceAdopter takes over Services of one namespace.
type serviceAdopter struct {
	*ServiceAdoption
	services typedcorev1.ServiceInterface
}

// all takes over what there is. What fails is told, and tried again by one when it stands in the way.
func (a serviceAdopter) all(ctx context.Context) {
	left := 0
	for _, selector := range theirServices {
		list, err := a.services.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			if ctx.Err() == nil {
				a.Events.Warn("", "NotTakenOver", fmt.Sprintf("listing Services of %s: %v", config.ServiceMirror, err))
			}
			continue
		}
		for i := range list.Items {
			have := &list.Items[i]
			if _, mine := a.source(have); !mine {
				left++
				a.Log.Info("left alone: "+a.hint(have), "service", have.Name)
			} else if _, err := a.take(ctx, have); err != nil {
				a.Events.Warn("", "NotTakenOver", fmt.Sprintf("service %s of %s: %v", have.Name, config.ServiceMirror, err))
			}
		}
	}
	if left > 0 {
		a.Events.Warn("", "LeftAlone", fmt.Sprintf("%d Services are of %s and left alone; the log says why of each", left, config.ServiceMirror))
	}
}

// one takes over what is under the name of a Service that is wanted.
func (a serviceAdopter) one(ctx context.Context, want *corev1.Service) (object *corev1.Service, ok bool, hint string, err error) {
	have, err := a.services.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, "", err
	}
	if _, mine := a.source(have); !mine {
		return nil, false, a.hint(have), nil
	}
	object, err = a.take(ctx, have)
	return object, err == nil, "", err
}

// origin is where a Service of theirs came from.
type origin struct {
	// cluster is empty for a global service, which is of several.
	cluster, namespace, name string
}

// source is where a Service came from; ok is false for one that is not to be taken over.
func (a *ServiceAdoption) source(have *corev1.Service) (from origin, ok bool) {
	prefix, theirs := theirPrefix(have)
	if !theirs || !slices.Contains(a.From, config.ServiceMirror) {
		return origin{}, false
	}
	if prefix != naming.GlobalPrefix {
		if from.cluster, ok = a.Remotes[prefix]; !ok {
			return origin{}, false
		}
	}
	rest, named := strings.CutPrefix(have.Name, prefix+"-")
	from.namespace, from.name, ok = strings.Cut(rest, "-"+naming.MirrorSeparator+"-")
	return from, named && ok
}

// theirPrefix is what the name of a Service that semaphore-service-mirror made begins with. One with a selector it has
// not made: what is behind it is of this cluster.
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

// take makes a Service ours.
func (a serviceAdopter) take(ctx context.Context, have *corev1.Service) (*corev1.Service, error) {
	from, _ := a.source(have)
	out := have.DeepCopy()
	out.Labels = with(out.Labels, naming.LabelManagedBy, naming.ManagedByBroker)
	if from.cluster != "" {
		out.Labels[naming.LabelSourceCluster] = from.cluster
	}
	out.Annotations = with(out.Annotations, naming.AnnotationSourceNamespace, from.namespace, naming.AnnotationSourceName, from.name)
	out, err := wrap(a.services.Update(ctx, out, metav1.UpdateOptions{FieldManager: fieldManager}))
	if err == nil {
		a.Log.Info("taken over", "service", have.Name, "from", config.ServiceMirror, "cluster", from.cluster)
	}
	return out, err
}

// hint is what can be done about a Service that is not taken over; empty where it is none of theirs.
func (a *ServiceAdoption) hint(have *corev1.Service) string {
	prefix, theirs := theirPrefix(have)
	switch {
	case !theirs:
		return ""
	case !slices.Contains(a.From, config.ServiceMirror):
		return fmt.Sprintf("it is of %s: services.adoptFrom: [%s] takes it over", config.ServiceMirror, config.ServiceMirror)
	case prefix != naming.GlobalPrefix && a.Remotes[prefix] == "":
		return fmt.Sprintf("it is of %s and has the prefix %q, which is the servicePrefix of no remote that is configured", config.ServiceMirror, prefix)
	}
	return fmt.Sprintf("it is of %s and its name is none that %s gives: %s-NAMESPACE-%s-NAME", config.ServiceMirror, config.ServiceMirror, prefix, naming.MirrorSeparator)
}
