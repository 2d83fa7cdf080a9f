package mirrored

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ownState is what the owner of a Service of c1 asks for, and what the broker knows.
type ownState struct {
	name, use  string
	set        func(p *mirror.Plan)
	own, inUse bool
}

var ownStates = []ownState{
	{name: "an own name, c1 is ready", use: naming.OwnNameFailover, set: nothing, own: true},
	{name: "an own name, c1 has nothing ready", use: naming.OwnNameFailover, set: nothing, inUse: true},
	{name: "an own name of both", use: naming.OwnNameAll, set: nothing, own: true, inUse: true},
	{name: "an own name of both, c2 is drained", use: naming.OwnNameAll, set: drained, own: true},
	{name: "an own name of both, no tunnel leads to c2", use: naming.OwnNameAll, set: unreached, own: true},
	{name: "an own name of both, c2 is gone", use: naming.OwnNameAll, set: gone, own: true},
}

// OwnNames are a Service of c1 itself in each state of its own name: the slice that Kubernetes writes, and, only while
// c2's endpoints are in use, those of the broker beside it.
func OwnNames(t testing.TB, protocol corev1.Protocol) (all []Service) {
	t.Helper()
	for _, st := range ownStates {
		p := plan(t)
		theirs, endpoints := sources()
		offered := service(protocol)
		offered.Global = true
		offer(p, "c2", offered, protocol, theirs)
		offered = service(protocol)
		offered.Global, offered.OwnName = true, &semaphorev1.OwnName{Use: st.use, Uid: "a-uid"}
		offer(p, "c1", offered, protocol, []*semaphorev1.Endpoint{{Addresses: []string{Own}, Ready: ptr.To(st.own)}})
		st.set(p)
		settled(t, p)
		out := Service{Name: st.name, InUse: st.inUse, Own: st.own, Service: ofAUser(protocol),
			Slices: []*discoveryv1.EndpointSlice{ofKubernetes(protocol, st.own)}}
		for i, e := range endpoints {
			if st.inUse && *choice.ExportedConditions(theirs[i]).Serving { // others are not under an own name
				out.Endpoints = append(out.Endpoints, e)
			}
		}
		p.EachOwn(func(_, name string) { out.Slices = append(out.Slices, p.OwnSlice(name).DeepCopy()) })
		slices.SortFunc(out.Slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
		all = append(all, out)
	}
	return all
}

// ofAUser is the Service that c1's users know.
func ofAUser(protocol corev1.Protocol) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "a-uid"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ClusterIP, ClusterIPs: []string{ClusterIP},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "echo"},
			Ports: []corev1.ServicePort{{Name: "web", Protocol: protocol, Port: Port,
				TargetPort: intstr.FromInt32(TargetPort)}},
		},
	}
}

// ofKubernetes is the slice that the EndpointSlice controller writes for it.
func ofKubernetes(protocol corev1.Protocol, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo-x7k2p", Labels: map[string]string{
			discoveryv1.LabelServiceName: "echo", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(protocol),
			Port: ptr.To(int32(TargetPort))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{Own}, Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(ready), Serving: ptr.To(ready), Terminating: ptr.To(false)}}},
	}
}
