package migrate

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
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/metadata"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// The intervals of the passes: the first, and the longest after passes that removed nothing.
const (
	firstPass   = time.Second
	longestPass = 30 * time.Second
)

// Leftovers removes what remains of adopted Services: the Endpoints that semaphore-service-mirror wrote, which
// Kubernetes mirrors to EndpointSlices, and its EndpointSlices of global services. It removes each once all successors
// known to be desired are written; until then both carry traffic. When nothing remains, it ends.
type Leftovers struct {
	adoption *Services
	services writtenServices
	slices   writtenSlices
	// complete reports whether a cluster has exported all its services and slices; all clusters, for an empty name.
	complete func(cluster string) bool
	// local are the own cluster's subnets, whose endpoints no remote exports.
	local []netip.Prefix
	// Endpoints are read as metadata: the rest does not matter.
	endpoints      metadata.ResourceInterface
	endpointSlices typeddiscoveryv1.EndpointSliceInterface

	mu sync.Mutex
	// waiting is what remained after the last pass, and why.
	waiting map[string]string
	problem string
}

// writtenServices and writtenSlices are the loops that write the successors.
type (
	writtenServices interface {
		Synced() bool
		Newest(name string) (*corev1.Service, bool)
		Wants(name string) bool
	}
	writtenSlices interface {
		Synced() bool
		Unwritten() []*discoveryv1.EndpointSlice
	}
)

// NewLeftovers returns Leftovers for namespace, beside the loops of Services and EndpointSlices.
func NewLeftovers(
	kube kubernetes.Interface, meta metadata.Interface, namespace string, adoption *Services, services writtenServices,
	slices writtenSlices, complete func(cluster string) bool, local []netip.Prefix,
) *Leftovers {
	return &Leftovers{
		adoption: adoption, services: services, slices: slices, complete: complete, local: local,
		endpoints:      meta.Resource(corev1.SchemeGroupVersion.WithResource("endpoints")).Namespace(namespace),
		endpointSlices: kube.DiscoveryV1().EndpointSlices(namespace),
		waiting:        map[string]string{},
	}
}

// Run removes leftovers until none remains. It fails only if ctx ends before.
func (l *Leftovers) Run(ctx context.Context) error {
	if !l.adoption.configured() {
		return nil
	}
	for wait := firstPass; ; wait = min(2*wait, longestPass) {
		if l.services.Synced() && l.slices.Synced() {
			removed, left, err := l.pass(ctx)
			l.report(left, err)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil && len(left) == 0:
				l.adoption.Log.Info("replaced all endpoints of " + config.ServiceMirror)
				return nil
			case removed > 0:
				wait = firstPass
			}
		}
		if err := kube.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

type leftover struct {
	kind          writes.ObjectKind
	name, service string
	addresses     []netip.Addr
	remove        func(context.Context) error
}

// pass removes what can be removed, and returns the rest with the reasons.
func (l *Leftovers) pass(ctx context.Context) (removed int, left map[string]string, err error) {
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
			why = "it is not known whether its Service exists"
		}
		if why != "" {
			left[string(it.kind)+" "+it.name] = why
			continue
		}
		if err := it.remove(ctx); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("removing %s %s: %w", it.kind, it.name, err))
			left[string(it.kind)+" "+it.name] = "it cannot be removed"
			continue
		}
		removed++
		l.adoption.Log.Info("removed endpoints of an earlier tool that the broker's own replace", string(it.kind), it.name,
			"service", it.service)
	}
	return removed, left, errors.Join(failed...)
}

func (l *Leftovers) list(ctx context.Context) ([]leftover, error) {
	var all []leftover
	mirrored := naming.LabelMirrored + "=true," + naming.LabelMirrorPrefixSync + ",!" + naming.LabelManagedBy
	endpoints, err := l.endpoints.List(ctx, metav1.ListOptions{LabelSelector: mirrored})
	if err != nil {
		return nil, fmt.Errorf("listing Endpoints (the component features/adopt-services has the right to): %w", err)
	}
	for _, e := range endpoints.Items {
		if _, ok := l.adoption.remote(e.Labels[naming.LabelMirrorPrefixSync]); !ok {
			continue // of no configured remote
		}
		all = append(all, leftover{kind: writes.Endpoints, name: e.Name, service: e.Name,
			remove: func(ctx context.Context) error {
				return l.endpoints.Delete(ctx, e.Name, writes.DeletePreconditions(&e.ObjectMeta))
			}})
	}
	managed := discoveryv1.LabelManagedBy + "=" + naming.ManagedByServiceMirror
	theirs, err := l.endpointSlices.List(ctx, metav1.ListOptions{LabelSelector: managed})
	if err != nil {
		return nil, fmt.Errorf("listing EndpointSlices: %w", err)
	}
	for i := range theirs.Items {
		s := &theirs.Items[i]
		it := leftover{kind: writes.EndpointSlice, name: s.Name, service: s.Labels[discoveryv1.LabelServiceName]}
		it.remove = func(ctx context.Context) error {
			return l.endpointSlices.Delete(ctx, s.Name, writes.DeletePreconditions(&s.ObjectMeta))
		}
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

func (l *Leftovers) unwritten() map[string]bool {
	out := map[string]bool{}
	for _, slice := range l.slices.Unwritten() {
		out[slice.Labels[discoveryv1.LabelServiceName]] = true
	}
	return out
}

// needed returns why a leftover must stay; empty if it can be removed.
func (l *Leftovers) needed(ctx context.Context, it leftover, unwritten map[string]bool) (why string, err error) {
	service, ours := l.services.Newest(it.service)
	if !ours {
		_, err := l.adoption.API.Get(ctx, it.service, metav1.GetOptions{})
		switch {
		case err == nil:
			return "its Service is not adopted", nil
		case apierrors.IsNotFound(err):
			return "", nil // it has no endpoints
		}
		return "", fmt.Errorf("reading Service %s: %w", it.service, err)
	}
	owner := service.Labels[naming.LabelSourceCluster]
	cluster := owner
	if strings.HasPrefix(it.service, naming.GlobalPrefix+"-") {
		cluster = "" // it belongs to several clusters
	}
	switch {
	case !l.complete(cluster) && cluster == "":
		return "not all clusters have exported all their services", nil
	case !l.complete(cluster):
		return cluster + " has not exported all its services", nil
	case !l.services.Wants(it.service):
		return "no remote exports its Service, and the Service still exists", nil
	case unwritten[it.service]:
		return "not all EndpointSlices that replace it are written", nil
	}
	for _, a := range it.addresses {
		if slices.ContainsFunc(l.local, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return "it has endpoints of this cluster, which no exporter sends to the broker: set globalServices.podSubnets, " +
				"and name this cluster's broker in localBroker of its exporter", nil
		}
	}
	return "", nil
}

func (l *Leftovers) report(left map[string]string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.problem = left, ""
	if err != nil {
		l.problem = err.Error()
	}
}

// Problems returns what remains and why, a line for each reason.
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
		lines = append(lines,
			fmt.Sprintf("%d objects of %s stay for now, such as %s: %s", len(names), config.ServiceMirror, names[0], why))
	}
	if l.problem != "" {
		lines = append(lines, fmt.Sprintf("what is left of %s: %s", config.ServiceMirror, l.problem))
	}
	slices.Sort(lines)
	return lines
}
