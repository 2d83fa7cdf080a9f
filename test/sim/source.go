package sim

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// The kinds of a source cluster's objects.
const (
	kindNode = iota
	kindService
	kindSlice
	kindPod
	kinds
)

var kindNames = [kinds]string{"node", "service", "slice", "pod"}

// ref names an object within its kind and cluster.
type ref struct{ namespace, name string }

func (r ref) String() string {
	if r.namespace == "" {
		return r.name
	}
	return r.namespace + "/" + r.name
}

// event is one step of an object's life as an apiserver reports it.
type event struct {
	version uint64
	ref     ref
	object  metav1.Object // nil when it was deleted
}

// source is a cluster that exports. Objects are immutable once set.
type source struct {
	w     *world
	name  string
	index int

	version uint64
	objects [kinds]map[ref]metav1.Object
	// log is everything that happened, by kind: watchers see no order between kinds.
	log [kinds][]event
	// stamp makes every state of an object different.
	stamp int
	uids  int
	// key is the certificate of its exporters.
	key int
	// past is what brokers may have received of each object, for the model.
	past map[pastKey]*past
}

func newSource(w *world, index int, name string) *source {
	s := &source{w: w, name: name, index: index, past: map[pastKey]*past{}}
	for kind := range s.objects {
		s.objects[kind] = map[ref]metav1.Object{}
	}
	return s
}

// set sets the current state of an object; nil deletes it.
func (s *source) set(kind int, r ref, o metav1.Object) {
	s.version++
	if o == nil {
		delete(s.objects[kind], r)
	} else {
		o.SetNamespace(r.namespace)
		o.SetName(r.name)
		o.SetResourceVersion(strconv.FormatUint(s.version, 10))
		s.objects[kind][r] = o
	}
	s.log[kind] = append(s.log[kind], event{s.version, r, o})
	s.remember(kind, r, o)
	s.w.tracef("%s: %s %s is now %s", s.name, kindNames[kind], r, describe{o})
}

// Few names and addresses, so that conflicts are frequent.
var (
	namespaces = []string{"a", "a-b", "b"}
	services   = []string{"s", "t"}
	sliceNames = []string{"s-1", "s-2", "t-1"}
	podNames   = []string{"p0", "p1", "p2", "p3"}
	setNames   = []string{"x", "b-c", "c"}
	nodeNames  = []string{"n0", "n1", "n2"}
)

// longName makes the name of a mirror longer than the API takes.
const longName = "a-service-whose-mirror-has-a-name-longer-than-the-api-allows"

func pick[T any](w *world, from []T) T { return from[w.rng.IntN(len(from))] }

// mutate is one change that a person makes in the cluster.
func (s *source) mutate() bool {
	switch s.w.rng.IntN(8) {
	case 0:
		s.mutateNode()
	case 1, 2:
		s.mutateService()
	case 3, 4:
		s.mutateSlice()
	default:
		s.mutatePod()
	}
	return true
}

// withdraw removes most objects of a kind, as a person does who deletes a namespace or mistypes a selector.
func (s *source) withdraw() bool {
	kind := s.w.rng.IntN(kinds)
	refs := slices.SortedFunc(maps.Keys(s.objects[kind]),
		func(a, b ref) int { return from{"", a}.compareByCluster(from{"", b}) })
	if len(refs) == 0 {
		return false
	}
	s.w.tracef("%s withdraws its %ss", s.name, kindNames[kind])
	for _, r := range refs {
		if s.w.chance(0.9) {
			s.set(kind, r, nil)
		}
	}
	return true
}

func (s *source) namespace() string { return namespaces[s.w.rng.IntN(s.w.namespaces)] }

// subnet is the pod subnet of the cluster, without its last two bytes.
func (s *source) subnet() string { return fmt.Sprintf("10.%d", 20+s.index) }

// address returns an IP of a pod, one of few, and sometimes one that the cluster may not have.
func (s *source) address() string {
	if s.w.hostile && s.w.chance(0.1) {
		return pick(s.w, []string{"169.254.169.254", "127.0.0.1", "10.1.0.5", "10.96.0.1", "8.8.8.8",
			fmt.Sprintf("10.%d.0.1", 20+(s.index+1)%3)})
	}
	return fmt.Sprintf("%s.0.%d", s.subnet(), 1+s.w.rng.IntN(6))
}

func (s *source) address6() string { return fmt.Sprintf("fd00:%d::%d", 20+s.index, 1+s.w.rng.IntN(4)) }

func (s *source) mutateNode() {
	r := ref{"", pick(s.w, nodeNames)}
	_, there := s.objects[kindNode][r]
	if there && s.w.chance(0.3) {
		s.set(kindNode, r, nil)
		if s.w.chance(0.5) {
			s.set(kindNode, r, s.newNode(r))
		}
		return
	}
	n := s.newNode(r)
	if there {
		old := s.objects[kindNode][r]
		n.UID, n.CreationTimestamp = old.GetUID(), old.GetCreationTimestamp()
	}
	s.set(kindNode, r, n)
}

func (s *source) newNode(r ref) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: s.uid(), Annotations: map[string]string{}}}
	n.CreationTimestamp = metav1.Unix(int64(s.uids)/4, 0) // few apart, so that some are created in one second
	number := int(r.name[1] - '0')
	if s.w.chance(0.1) {
		number = 1 // as another node has it, perhaps
	}
	if !s.w.chance(0.1) {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("%s.%d.0/24", s.subnet(), number))
	}
	if s.w.chance(0.2) {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("%s.%d.128/25", s.subnet(), s.w.rng.IntN(3)))
	}
	if s.w.hostile && s.w.chance(0.15) {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, pick(s.w, []string{"0.0.0.0/0", "10.1.0.0/24", "10.0.0.0/8"}))
	}
	for _, d := range s.w.dests {
		if s.w.chance(0.15) {
			continue // its agent has not reported yet
		}
		key := make([]byte, 32)
		key[0] = 9
		if s.w.chance(0.1) {
			key[1] = 1 // one that others have too
		} else {
			s.stamp++
			key[1], key[2], key[3], key[4] = 2, byte(s.index), byte(s.stamp>>8), byte(s.stamp)
		}
		n.Annotations[naming.PubKeyAnnotation(d.name)] = base64.StdEncoding.EncodeToString(key)
		at := fmt.Sprintf("172.18.%d.%d:51820", 20+s.index, 10+int(r.name[1]-'0'))
		if s.w.hostile && s.w.chance(0.1) {
			at = pick(s.w, []string{"127.0.0.1:51820", "172.18.1.5:51820", s.subnet() + ".0.1:51820"})
		}
		n.Annotations[naming.EndpointAnnotation(d.name)] = at
	}
	return n
}

func (s *source) uid() types.UID {
	s.uids++
	return types.UID(fmt.Sprintf("uid-%s-%d", s.name, s.uids))
}

func (s *source) mutateService() {
	r := ref{s.namespace(), pick(s.w, services)}
	if s.w.chance(0.03) {
		r.name = longName
	}
	old, there := s.objects[kindService][r]
	switch {
	case there && s.w.chance(0.25):
		s.set(kindService, r, nil)
		if s.w.chance(0.4) {
			s.set(kindService, r, s.newService(nil))
		}
	case there && s.w.chance(0.15): // a new name for it
		s.set(kindService, r, nil)
		s.set(kindService, ref{s.namespace(), pick(s.w, services)}, s.newService(old.(*corev1.Service)))
	case there:
		s.set(kindService, r, s.newService(old.(*corev1.Service)))
	default:
		s.set(kindService, r, s.newService(nil))
	}
}

// newService returns a Service like old, if there is one, with one difference.
func (s *source) newService(old *corev1.Service) *corev1.Service {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	if old != nil {
		o = old.DeepCopy()
	} else {
		o.UID = s.uid()
		o.Labels["mirror.semaphore.uw.io/mirror-service"] = "true"
		o.Spec.ClusterIP = "10.96.0.9"
		if s.w.chance(0.2) {
			o.Spec.ClusterIP = corev1.ClusterIPNone
		}
	}
	switch s.w.rng.IntN(10) {
	case 0:
		o.Labels["mirror.semaphore.uw.io/mirror-service"] = "false"
	case 1:
		o.Labels["mirror.semaphore.uw.io/mirror-service"] = "true"
	case 2:
		o.Labels["mirror.semaphore.uw.io/global-service"] = "true"
	case 3:
		delete(o.Labels, "mirror.semaphore.uw.io/global-service")
	case 4:
		o.Labels[naming.LabelMirrored] = "true" // came from elsewhere itself
	case 5:
		delete(o.Labels, naming.LabelMirrored)
	case 6:
		o.Annotations = s.exportTo()
	case 7:
		o.Spec.PublishNotReadyAddresses = !o.Spec.PublishNotReadyAddresses
	}
	o.Spec.Type = corev1.ServiceTypeClusterIP
	if s.w.chance(0.03) {
		o.Spec.Type = corev1.ServiceTypeExternalName
	}
	s.stamp++
	o.Spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: int32(1000 + s.stamp)}}
	return o
}

func (s *source) mutateSlice() {
	r := ref{s.namespace(), pick(s.w, sliceNames)}
	old, there := s.objects[kindSlice][r]
	switch {
	case there && s.w.chance(0.25):
		s.set(kindSlice, r, nil)
		if s.w.chance(0.4) {
			s.set(kindSlice, r, s.newSlice(nil))
		}
	case there:
		s.set(kindSlice, r, s.newSlice(old.(*discoveryv1.EndpointSlice)))
	default:
		s.set(kindSlice, r, s.newSlice(nil))
	}
}

func (s *source) newSlice(old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	if old != nil {
		o = old.DeepCopy()
	} else {
		o.UID = s.uid()
		o.AddressType = discoveryv1.AddressTypeIPv4
		if s.w.chance(0.2) {
			o.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	if old == nil || s.w.chance(0.15) {
		o.Labels[discoveryv1.LabelServiceName] = pick(s.w, services)
	}
	if s.w.chance(0.03) {
		delete(o.Labels, discoveryv1.LabelServiceName)
	}
	o.Endpoints = nil
	for range s.w.rng.IntN(4) {
		e := discoveryv1.Endpoint{Addresses: []string{s.address()}}
		if o.AddressType == discoveryv1.AddressTypeIPv6 {
			e.Addresses = []string{s.address6()}
		}
		ready := s.w.chance(0.7)
		e.Conditions.Ready = &ready
		if s.w.chance(0.3) {
			name := pick(s.w, podNames)
			e.Hostname = &name
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	s.stamp++
	name, protocol, port := "http", corev1.ProtocolTCP, int32(1000+s.stamp)
	o.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}}
	return o
}

func (s *source) mutatePod() {
	r := ref{s.namespace(), pick(s.w, podNames)}
	o, there := s.objects[kindPod][r]
	if !there {
		s.set(kindPod, r, s.newPod())
		return
	}
	pod := o.(*corev1.Pod).DeepCopy()
	switch s.w.rng.IntN(8) {
	case 0, 1: // deleted, and its address free at once
		s.set(kindPod, r, nil)
		if s.w.chance(0.5) {
			s.set(kindPod, r, s.newPod())
		}
		return
	case 2: // ended: its address is free, and still in its status
		pod.Status.Phase = corev1.PodSucceeded
	case 3: // ended, and its address given to another pod at once
		if pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0 {
			pod.Status.Phase = corev1.PodFailed
			s.set(kindPod, r, pod)
			other := ref{s.namespace(), pick(s.w, podNames)}
			if _, taken := s.objects[kindPod][other]; !taken {
				heir := s.newPod()
				heir.Status.PodIPs = pod.Status.PodIPs
				heir.Spec.HostNetwork = false
				s.set(kindPod, other, heir)
			}
			return
		}
	case 4: // it has an address now
		if pod.Status.Phase == corev1.PodPending {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.PodIPs = s.freeAddresses()
		}
	case 5:
		pod.Annotations = s.exportTo()
	default:
		pod.Labels = s.setLabel()
	}
	s.set(kindPod, r, pod)
}

// exportTo returns the annotation by which a producer narrows the audience of an object.
func (s *source) exportTo() map[string]string {
	value := pick(s.w, []string{"d1", "d2", "d2,d1", "none", "d1,elsewhere", "d1,Not a name", "elsewhere", ""})
	if value == "" {
		return nil
	}
	return map[string]string{naming.AnnotationExportTo: value}
}

func (s *source) setLabel() map[string]string {
	if s.w.chance(0.1) {
		return map[string]string{"other": "label"}
	}
	return map[string]string{naming.DefaultLabelDomain + "/name": pick(s.w, setNames)}
}

func (s *source) newPod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: s.uid(), Labels: s.setLabel()}}
	p.Status.Phase = corev1.PodRunning
	p.Spec.HostNetwork = s.w.chance(0.05)
	if s.w.chance(0.2) {
		p.Status.Phase = corev1.PodPending
		return p
	}
	p.Status.PodIPs = s.freeAddresses()
	return p
}

// freeAddresses returns addresses such that no two pods that may send have the same one.
func (s *source) freeAddresses() []corev1.PodIP {
	taken := map[string]bool{}
	for _, o := range s.objects[kindPod] {
		if p := o.(*corev1.Pod); p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			for _, ip := range p.Status.PodIPs {
				taken[ip.IP] = true
			}
		}
	}
	var out []corev1.PodIP
	for range 3 {
		if ip := s.address(); !taken[ip] {
			out = append(out, corev1.PodIP{IP: ip})
			break
		}
	}
	if s.w.chance(0.2) {
		if ip := s.address6(); !taken[ip] {
			out = append(out, corev1.PodIP{IP: ip})
		}
	}
	return out
}
