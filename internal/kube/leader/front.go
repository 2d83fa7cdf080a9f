package leader

// Front routes calls to the broker that leads: it writes the EndpointSlices of the broker's Services, which
// have no selector, so that each names only the leader's pod. All replicas are ready, since a standby can take over;
// only one receives calls. docs/adr/0023-calls-reach-the-leader.md weighs it against alternatives.
//
// It knows the apiserver, and the Lease through a function. It does not know the broker's work.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// ManagedBy is the value of endpointslice.kubernetes.io/managed-by on the slices, which makes Kubernetes' controllers
// ignore them.
const ManagedBy = "semaphore-broker-leader"

const (
	// heal is the interval at which the leader compares the slices, and so the longest time until it restores one that
	// another writer changed or deleted.
	heal = 2 * time.Second
	// readiness is the interval at which a new leader checks whether it is ready for calls.
	readiness = 50 * time.Millisecond
	// answer is the timeout of a request to the apiserver.
	answer = 5 * time.Second
	// farewell is Farewell by default.
	farewell = time.Second
)

// families are the address types that a pod may have, with the suffix of the slices' names.
var families = map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "-leader-ipv4",
	discoveryv1.AddressTypeIPv6: "-leader-ipv6"}

// SliceName returns the name of the slice of a Service for an address type. RBAC has the same names
// (deploy/broker/leader.yaml).
func SliceName(service string, family discoveryv1.AddressType) string {
	return service + families[family]
}

// PodOfEnvironment reads POD_NAME, POD_NAMESPACE, POD_UID, NODE_NAME and POD_IPS, which the manifests fill by the
// downward API (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/). Without POD_IPS, as outside of a
// cluster, the pod has no addresses. It fails if one of the others is missing beside POD_IPS, or an address is invalid.
func PodOfEnvironment() (config.Pod, error) {
	p := config.Pod{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME"), Node: os.Getenv("NODE_NAME"),
		UID: types.UID(os.Getenv("POD_UID"))}
	text := os.Getenv("POD_IPS")
	if text == "" {
		return p, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		addr, err := netip.ParseAddr(strings.TrimSpace(one))
		if err != nil {
			return p, fmt.Errorf("POD_IPS: %q is no IP address: set it from status.podIPs", one)
		}
		p.IPs = append(p.IPs, addr.Unmap())
	}
	for name, value := range map[string]string{"POD_NAMESPACE": p.Namespace, "POD_NAME": p.Name, "POD_UID": string(p.UID),
		"NODE_NAME": p.Node} {
		if value == "" {
			return p, fmt.Errorf("%s is empty beside POD_IPS: set it by the downward API", name)
		}
	}
	return p, nil
}

// Ports returns the named ports of this replica, from the addresses that it listens on; an address without a port is an
// error.
func Ports(listen map[string]string) ([]discoveryv1.EndpointPort, error) {
	var out []discoveryv1.EndpointPort
	for _, name := range slices.Sorted(maps.Keys(listen)) {
		_, text, err := net.SplitHostPort(listen[name])
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		out = append(out, discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(int32(port)),
			Protocol: ptr.To(corev1.ProtocolTCP)})
	}
	return out, nil
}

type FrontOptions struct {
	Client kubernetes.Interface
	Pod    config.Pod
	// Services are the names of those that route to the leader, in the pod's namespace.
	Services []string
	// Ports are the same for each Service: kube-proxy uses those whose names the Service has.
	Ports []discoveryv1.EndpointPort
	// Holds asks the apiserver whether this replica holds the Lease.
	Holds func(context.Context) error
	// Ready returns why the leader is not ready for calls yet; nil if it is.
	Ready func() error
	Log   *slog.Logger
	// Farewell bounds how long a leader that stops tries to remove its address: no call should go to a pod that has
	// ended. It is a second by default.
	Farewell time.Duration
}

type Front struct {
	FrontOptions
	api typeddiscoveryv1.EndpointSliceInterface

	mu sync.Mutex
	// problems are the errors of the last comparison, by slice.
	problems map[string]string
}

// NewFront returns a Front. It sends no request yet.
func NewFront(o FrontOptions) *Front {
	o.Farewell = cmp.Or(o.Farewell, farewell)
	slices := o.Client.DiscoveryV1().EndpointSlices(o.Pod.Namespace)
	return &Front{FrontOptions: o, api: slices, problems: map[string]string{}}
}

// Problems returns why calls may not reach this replica, a line each.
func (f *Front) Problems() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Values(f.problems))
}

// Run writes the slices until ctx ends, removes this replica's address from them, and returns ctx's error; nil at once
// without POD_IPS. The caller runs it while this replica leads.
func (f *Front) Run(ctx context.Context) error {
	if len(f.Pod.IPs) == 0 {
		f.Log.Warn("POD_IPS is empty: the Services do not route to this replica")
		return nil
	}
	for f.Ready() != nil {
		if err := kube.Sleep(ctx, readiness); err != nil {
			return err
		}
	}
	defer f.leave(context.WithoutCancel(ctx))
	for {
		f.each(ctx, f.lead)
		if err := kube.Sleep(ctx, heal); err != nil {
			return err
		}
	}
}

// each calls a function for the slice of each Service and family, and records the errors.
func (f *Front) each(ctx context.Context,
	do func(ctx context.Context, service string, family discoveryv1.AddressType) error) {
	for _, service := range f.Services {
		for family := range families {
			ctx, cancel := context.WithTimeout(ctx, answer)
			err := do(ctx, service, family)
			cancel()
			f.note(SliceName(service, family), err)
		}
	}
}

// note records the problem of a slice, nil for none, and logs when one begins or ends.
func (f *Front) note(slice string, err error) {
	// Another replica wrote it meanwhile, or this replica stops: neither is a problem.
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, was := f.problems[slice]
	switch {
	case err == nil && was:
		delete(f.problems, slice)
		f.Log.Info("the Service routes to this replica", "endpointslice", slice)
	case err != nil:
		f.problems[slice] = fmt.Sprintf("EndpointSlice %s/%s, by which calls reach this replica: %v", f.Pod.Namespace,
			slice, err)
		if !was {
			f.Log.Warn("cannot route the Service to this replica; the broker retries", "endpointslice", slice, "error", err)
		}
	}
}

// lead writes this replica into a slice.
//
// The order keeps a deposed replica that does not know it from taking calls back: it reads the slice, then the Lease,
// then writes the version that it read. Either the Lease names the successor, or the successor writes after the Lease
// was read, and then the slice has another version or is overwritten.
func (f *Front) lead(ctx context.Context, service string, family discoveryv1.AddressType) error {
	have, err := f.api.Get(ctx, SliceName(service, family), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	want := f.want(service, family)
	if missing && len(want.Endpoints) == 0 || !missing && same(have, want) {
		return nil
	}
	if err := f.Holds(ctx); err != nil {
		return err
	}
	if missing {
		_, err = f.api.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	changed := have.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, want.Labels)
	changed.Endpoints, changed.Ports = want.Endpoints, want.Ports
	_, err = f.api.Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// leave empties the slices that name this replica: kube-proxy then refuses calls immediately, until the next leader
// writes itself.
func (f *Front) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, f.Farewell)
	defer cancel()
	f.each(ctx, func(ctx context.Context, service string, family discoveryv1.AddressType) error {
		have, err := f.api.Get(ctx, SliceName(service, family), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || !slices.ContainsFunc(have.Endpoints, func(e discoveryv1.Endpoint) bool {
			return e.TargetRef != nil &&
				e.TargetRef.UID == f.Pod.UID
		}) {
			return err
		}
		have.Endpoints = []discoveryv1.Endpoint{}
		_, err = f.api.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}

// same reports whether a slice has the desired content. Further labels and annotations belong to others.
func same(have, want *discoveryv1.EndpointSlice) bool {
	for name, value := range want.Labels {
		if have.Labels[name] != value {
			return false
		}
	}
	return equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) &&
		equality.Semantic.DeepEqual(have.Ports, want.Ports)
}

// want returns the slice of a Service that routes to this replica; without endpoints if the replica has no address of
// the family.
func (f *Front) want(service string, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: SliceName(service, family),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: ManagedBy,
				"app.kubernetes.io/name": "semaphore", "app.kubernetes.io/component": "broker",
			},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{},
		Ports:       f.Ports,
	}
	for _, addr := range f.Pod.IPs {
		if addr.Is4() != (family == discoveryv1.AddressTypeIPv4) {
			continue
		}
		s.Endpoints = []discoveryv1.Endpoint{{
			Addresses:  []string{addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			// externalTrafficPolicy: Local, and load balancers that send to pods, need the node.
			NodeName:  ptr.To(f.Pod.Node),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: f.Pod.Namespace, Name: f.Pod.Name, UID: f.Pod.UID},
		}}
		break
	}
	return s
}
