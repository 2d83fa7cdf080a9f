package apply

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// How often it is looked whether more can go: at first, and at most where nothing has for a while.
const (
	firstLook = time.Second
	lastLook  = 30 * time.Second
)

// Leftovers removes what stands behind Services that were taken over: the Endpoints that semaphore-service-mirror wrote,
// from which Kubernetes makes EndpointSlices (or takes them over, where the broker writes Endpoints), and its EndpointSlices of global services. Each goes once all that is known
// to be wanted in its place is written; until then traffic goes by both. When nothing of it is left the work is done.
type Leftovers struct {
	adoption *ServiceAdoption
	services *Objects[*corev1.Service]
	slices   *Objects[*discoveryv1.EndpointSlice]
	// told says whether a cluster has told all its services and slices; all clusters, for an empty name.
	told func(cluster string) bool
	// local are the own cluster's subnets, where nobody tells of its endpoints.
	local []netip.Prefix
	// Endpoints are read as metadata: nothing else of them counts.
	endpoints metadata.ResourceInterface
	// keep, if not nil, is how they are taken over: where the broker writes Endpoints they do not go.
	keep           typedcorev1.EndpointsInterface
	endpointSlices typeddiscoveryv1.EndpointSliceInterface
	kube           typedcorev1.ServiceInterface

	mu sync.Mutex
	// waiting is what is left, and why, as it was last seen.
	waiting map[string]string
	problem string
}

// NewLeftovers looks after what is left in namespace, beside the loops of Services and EndpointSlices.
func NewLeftovers(kube kubernetes.Interface, meta metadata.Interface, namespace string, adoption *ServiceAdoption,
	services *Objects[*corev1.Service], slices *Objects[*discoveryv1.EndpointSlice], told func(cluster string) bool, local []netip.Prefix) *Leftovers {
	return &Leftovers{
		adoption: adoption, services: services, slices: slices, told: told, local: local,
		endpoints:      meta.Resource(corev1.SchemeGroupVersion.WithResource("endpoints")).Namespace(namespace),
		endpointSlices: kube.DiscoveryV1().EndpointSlices(namespace),
		kube:           kube.CoreV1().Services(namespace),
		waiting:        map[string]string{},
	}
}

// KeepEndpoints has Endpoints taken over in place of being removed. It is called before Run. kube logs no warnings (kube.Quiet).
func (l *Leftovers) KeepEndpoints(kube kubernetes.Interface, namespace string) {
	l.keep = kube.CoreV1().Endpoints(namespace)
}

// Run removes until nothing is left, or ctx ends.
func (l *Leftovers) Run(ctx context.Context) error {
	if !slices.Contains(l.adoption.From, config.ServiceMirror) {
		return nil
	}
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		if l.services.Synced() && l.slices.Synced() {
			removed, left, err := l.look(ctx)
			l.tell(left, err)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil && len(left) == 0:
				l.adoption.Log.Info("nothing is left of the endpoints of " + config.ServiceMirror)
				return nil
			case removed > 0:
				wait = firstLook
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// leftover is one object that may have to go.
type leftover struct {
	kind, name, service string
	addresses           []netip.Addr
	remove              func(context.Context) error
}

// look removes what can go, and returns what cannot yet, and why.
func (l *Leftovers) look(ctx context.Context) (removed int, left map[string]string, err error) {
	all, err := l.list(ctx)
	if err != nil {
		return 0, nil, err
	}
	left = map[string]string{}
	if len(all) == 0 {
		return 0, left, nil
	}
	unwritten := l.unwritten()
	var failed []error
	for _, it := range all {
		why, err := l.needed(ctx, it, unwritten)
		if err != nil {
			failed = append(failed, err)
			why = "it is not known whether its Service is there"
		}
		if why != "" {
			left[it.kind+" "+it.name] = why
			continue
		}
		if err := it.remove(ctx); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("removing %s %s: %w", it.kind, it.name, err))
			left[it.kind+" "+it.name] = "it cannot be removed"
			continue
		}
		removed++
		l.adoption.Log.Info("handed over", it.kind, it.name, "service", it.service)
	}
	return removed, left, errors.Join(failed...)
}

// list is all that is left.
func (l *Leftovers) list(ctx context.Context) ([]leftover, error) {
	var all []leftover
	endpoints, err := l.endpoints.List(ctx, metav1.ListOptions{LabelSelector: naming.LabelMirrored + "=true," + naming.LabelMirrorPrefixSync + ",!" + naming.LabelManagedBy})
	if err != nil {
		return nil, fmt.Errorf("listing Endpoints (the component features/adopt-services has the right to): %w", err)
	}
	for _, e := range endpoints.Items {
		if l.adoption.Remotes[e.Labels[naming.LabelMirrorPrefixSync]] == "" {
			continue // of no remote that is configured
		}
		all = append(all, leftover{kind: "endpoints", name: e.Name, service: e.Name, remove: func(ctx context.Context) error {
			if service, ours := l.services.newest.get(l.services.keyOf(e.Name)); ours && l.keep != nil {
				return takeEndpoints(ctx, l.keep, e.Name, service.Labels[naming.LabelSourceCluster])
			}
			return l.endpoints.Delete(ctx, e.Name, asSeen(&e.ObjectMeta))
		}})
	}
	theirs, err := l.endpointSlices.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + naming.ManagedByServiceMirror})
	if err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	for i := range theirs.Items {
		s := &theirs.Items[i]
		it := leftover{kind: "endpointslice", name: s.Name, service: s.Labels[discoveryv1.LabelServiceName], remove: func(ctx context.Context) error {
			return l.endpointSlices.Delete(ctx, s.Name, asSeen(&s.ObjectMeta))
		}}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					it.addresses = append(it.addresses, a)
				}
			}
		}
		all = append(all, it)
	}
	return all, nil
}

// unwritten are the Services, by name, of which a slice is wanted that is not there as it is wanted.
func (l *Leftovers) unwritten() map[string]bool {
	out := map[string]bool{}
	for _, name := range l.slices.desired.Names() {
		have, there := l.slices.newest.get(l.slices.keyOf(name))
		owner := ""
		if there {
			owner = have.GetLabels()[naming.LabelSourceCluster]
		}
		answer := l.slices.desired.Want(name, owner)
		if answer.Verdict != Present {
			continue
		}
		if !there || have.DeletionTimestamp != nil || !l.slices.kind.equal(l.slices.kind.merge(have, answer.Object), have) {
			out[answer.Object.Labels[discoveryv1.LabelServiceName]] = true
		}
	}
	return out
}

// needed is why a leftover must stay; empty when it can go.
func (l *Leftovers) needed(ctx context.Context, it leftover, unwritten map[string]bool) (why string, err error) {
	service, ours := l.services.newest.get(l.services.keyOf(it.service))
	if !ours {
		_, err := l.kube.Get(ctx, it.service, metav1.GetOptions{})
		switch {
		case err == nil:
			return "its Service is not taken over", nil
		case apierrors.IsNotFound(err):
			return "", nil // it leads nowhere
		}
		return "", fmt.Errorf("reading Service %s: %w", it.service, err)
	}
	owner := service.Labels[naming.LabelSourceCluster]
	cluster := owner
	if strings.HasPrefix(it.service, naming.GlobalPrefix+"-") {
		cluster = "" // it is of several
	}
	switch {
	case !l.told(cluster) && cluster == "":
		return "not all clusters have told their services whole", nil
	case !l.told(cluster):
		return cluster + " has not told its services whole", nil
	case l.services.desired.Want(it.service, owner).Verdict != Present:
		return "its Service is not wanted, and not gone either", nil
	case unwritten[it.service]:
		return "not all EndpointSlices that stand in its place are written", nil
	}
	for _, a := range it.addresses {
		if slices.ContainsFunc(l.local, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return "it has endpoints of this cluster, of which nobody tells the broker: set globalServices.podSubnets, and name this cluster's broker in brokers of its exporter", nil
		}
	}
	return "", nil
}

func (l *Leftovers) tell(left map[string]string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.problem = left, ""
	if err != nil {
		l.problem = err.Error()
	}
}

// Problems are what is left and why, a line for each reason.
func (l *Leftovers) Problems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	reasons := map[string][]string{}
	for name, why := range l.waiting {
		reasons[why] = append(reasons[why], name)
	}
	var lines []string
	for why, names := range reasons {
		slices.Sort(names)
		lines = append(lines, fmt.Sprintf("%d objects of %s stay for now, such as %s: %s", len(names), config.ServiceMirror, names[0], why))
	}
	if l.problem != "" {
		lines = append(lines, fmt.Sprintf("what is left of %s: %s", config.ServiceMirror, l.problem))
	}
	slices.Sort(lines)
	return lines
}
