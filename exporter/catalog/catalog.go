// Package catalog decides what a cluster exports: Kubernetes objects in, exported objects
// out, in a journal that publishers read.
//
// It is where an object is reduced to what the other side needs; a change to anything else
// makes no revision and so costs nothing on the wire. It does no I/O, asks no clock and
// knows nothing of streams.
package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/journal"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// tombstones is how many deletions are remembered for brokers that come back.
const tombstones = 10_000

// Key names an exported object and says for whom it is.
type Key struct {
	// Audience is the one cluster the object is for; empty for all.
	Audience        string
	Kind            semaphorev1.Kind
	Namespace, Name string
}

// For reports whether an object with this key may be sent to cluster.
func (k Key) For(cluster string) bool { return k.Audience == "" || k.Audience == cluster }

// Proto is the key for a message.
func (k Key) Proto() *semaphorev1.ObjectKey {
	return &semaphorev1.ObjectKey{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

// String is such as "service shop/echo", with the audience where there is one.
func (k Key) String() string {
	s := semaphorev1.KindName(k.Kind) + " "
	if k.Namespace != "" {
		s += k.Namespace + "/"
	}
	s += k.Name
	if k.Audience != "" {
		s += " for " + k.Audience
	}
	return s
}

// Journal is what publishers read. Its values are immutable.
type Journal = journal.Journal[Key, *semaphorev1.Object]

// Rules say what is exported, and for whom.
type Rules struct {
	Features config.Features
	// Clusters are those with a broker to publish to.
	Clusters []string
	// Mirror and Global select the Services that are offered.
	Mirror, Global labels.Selector
	// LabelDomain is that of the label that puts a pod into a set.
	LabelDomain string
	// Tombstones is how many deletions are remembered; 10,000 when 0.
	Tombstones int
}

// Kinds are the kinds that are exported under these rules.
func (r Rules) Kinds() []semaphorev1.Kind {
	var kinds []semaphorev1.Kind
	if r.Features.Has(config.Encryption) {
		kinds = append(kinds, semaphorev1.Kind_KIND_NODE)
	}
	if r.Features.Has(config.Services) {
		kinds = append(kinds, semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE)
	}
	if r.Features.Has(config.Policy) {
		kinds = append(kinds, semaphorev1.Kind_KIND_SET_MEMBER)
	}
	return kinds
}

// Catalog is what one cluster exports. Its methods may be called from any goroutine.
type Catalog struct {
	rules   Rules
	journal *Journal

	mu sync.Mutex
	// slices of every Service, exported or not: a slice can come before its Service does.
	slices map[name]map[string]*semaphorev1.Object
	// serviceOf is the Service that a slice belonged to when it was last seen.
	serviceOf map[name]name
	problems  map[Key]string
}

// name is the namespace and name of an object.
type name struct{ namespace, name string }

// New makes an empty catalog.
func New(rules Rules) *Catalog {
	return &Catalog{
		rules:     rules,
		journal:   journal.New[Key, *semaphorev1.Object](cmp.Or(rules.Tombstones, tombstones)),
		slices:    map[name]map[string]*semaphorev1.Object{},
		serviceOf: map[name]name{},
		problems:  map[Key]string{},
	}
}

// Journal is what is exported now, and the order in which it came to be.
func (c *Catalog) Journal() *Journal { return c.journal }

// Rules that the catalog was made with.
func (c *Catalog) Rules() Rules { return c.rules }

// Problems are the objects that are not exported, or not whole, and why; a line each, sorted.
func (c *Catalog) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.problems))
	for key, p := range c.problems {
		out = append(out, fmt.Sprintf("%s: %s", key, p))
	}
	slices.Sort(out)
	return out
}

// PutNode takes a node as it is now.
func (c *Catalog) PutNode(n *corev1.Node, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range c.rules.Clusters {
		key := Key{Audience: cluster, Kind: semaphorev1.Kind_KIND_NODE, Name: n.Name}
		node, problem := projectNode(n, cluster)
		c.problem(key, problem)
		c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Node{Node: node}}, now)
	}
}

// DeleteNode takes a node's end.
func (c *Catalog) DeleteNode(name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range c.rules.Clusters {
		key := Key{Audience: cluster, Kind: semaphorev1.Kind_KIND_NODE, Name: name}
		c.problem(key, "")
		c.journal.Delete(key, now)
	}
}

// PutService takes a Service as it is now.
func (c *Catalog) PutService(s *corev1.Service, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serviceKey(s.Namespace, s.Name)
	service, problem := c.rules.projectService(s)
	c.problem(key, problem)
	if service == nil {
		c.withdrawService(key, now)
		return
	}
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_Service{Service: service}}, now)
	// Those that came before their Service. Slices that are exported already are not touched by put.
	for _, slice := range c.slicesOf(name{s.Namespace, s.Name}) {
		c.put(sliceKey(slice.GetKey()), slice, now)
	}
}

// DeleteService takes a Service's end.
func (c *Catalog) DeleteService(namespace, name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serviceKey(namespace, name)
	c.problem(key, "")
	c.withdrawService(key, now)
}

// withdrawService takes the slices before their Service: nowhere is a slice without one.
func (c *Catalog) withdrawService(key Key, now time.Time) {
	for _, slice := range c.slicesOf(name{key.Namespace, key.Name}) {
		c.journal.Delete(sliceKey(slice.GetKey()), now)
	}
	c.journal.Delete(key, now)
}

// PutSlice takes an EndpointSlice as it is now.
func (c *Catalog) PutSlice(s *discoveryv1.EndpointSlice, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := name{s.Namespace, s.Name}
	service := name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}
	key := sliceKey(&semaphorev1.ObjectKey{Namespace: s.Namespace, Name: s.Name})
	if old, ok := c.serviceOf[at]; ok && old != service {
		c.forgetSlice(at)
	}
	slice := projectSlice(s)
	if slice == nil {
		c.forgetSlice(at)
		c.journal.Delete(key, now)
		return
	}
	c.serviceOf[at] = service
	if c.slices[service] == nil {
		c.slices[service] = map[string]*semaphorev1.Object{}
	}
	object := &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: slice}}
	c.slices[service][s.Name] = object
	if _, exported := c.journal.Get(serviceKey(service.namespace, service.name)); exported {
		c.put(key, object, now)
	} else {
		// It may have been another Service's until now.
		c.journal.Delete(key, now)
	}
}

// DeleteSlice takes an EndpointSlice's end.
func (c *Catalog) DeleteSlice(namespace, sliceName string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetSlice(name{namespace, sliceName})
	c.journal.Delete(sliceKey(&semaphorev1.ObjectKey{Namespace: namespace, Name: sliceName}), now)
}

// slicesOf are the slices of a Service in the order of their names: what is told, and when, depends on what
// happened alone.
func (c *Catalog) slicesOf(service name) []*semaphorev1.Object {
	all := c.slices[service]
	out := make([]*semaphorev1.Object, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[key])
	}
	return out
}

// forgetSlice takes a slice out of its Service's.
func (c *Catalog) forgetSlice(at name) {
	service, ok := c.serviceOf[at]
	if !ok {
		return
	}
	delete(c.serviceOf, at)
	delete(c.slices[service], at.name)
	if len(c.slices[service]) == 0 {
		delete(c.slices, service)
	}
}

// PutPod takes a pod as it is now.
func (c *Catalog) PutPod(p *corev1.Pod, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := podKey(p.Namespace, p.Name)
	member := projectPod(p, c.rules.LabelDomain)
	if member == nil {
		c.journal.Delete(key, now)
		return
	}
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_SetMember{SetMember: member}}, now)
}

// DeletePod takes a pod's end.
func (c *Catalog) DeletePod(namespace, name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.journal.Delete(podKey(namespace, name), now)
}

// put makes a revision only when what is exported differs.
func (c *Catalog) put(key Key, object *semaphorev1.Object, now time.Time) {
	if old, ok := c.journal.Get(key); ok && proto.Equal(old, object) {
		return
	}
	c.journal.Put(key, object, now)
}

// problem notes what is wrong with an object; nothing, when text is empty.
func (c *Catalog) problem(key Key, text string) {
	if text == "" {
		delete(c.problems, key)
		return
	}
	c.problems[key] = text
}

func serviceKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: namespace, Name: name}
}

func sliceKey(k *semaphorev1.ObjectKey) Key {
	return Key{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: k.GetNamespace(), Name: k.GetName()}
}

func podKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: namespace, Name: name}
}

// mirrored reports whether an object is itself a mirror, ours or the original's: what came from
// another cluster is never exported again.
func mirrored(labels map[string]string) bool {
	return labels[naming.LabelManagedBy] == naming.ManagedByBroker || labels[naming.LabelMirrored] == "true"
}
