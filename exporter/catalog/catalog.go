// Package catalog decides what a cluster exports: Kubernetes objects in, exported objects
// out, in a journal that publishers read.
//
// It is where an object is reduced to what the other side needs; a change to anything else
// makes no revision and so costs nothing on the wire. It does no I/O, asks no clock and
// knows nothing of streams.
package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	"github.com/kube-semaphore/semaphore/internal/stream/journal"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// tombstones is how many deletions are remembered for brokers that come back.
const tombstones = 10_000

// Key names an exported object.
type Key struct {
	// Audience is set where a cluster is told something of its own under the name: its end of a node's tunnels.
	Audience        string
	Kind            semaphorev1.Kind
	Namespace, Name string
}

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

// Rules say what is exported, and for whom.
type Rules struct {
	Features config.Features
	// Own is the name of the cluster. Where it is also one of Clusters, its broker is told of global services, all of
	// them, and of nothing else: it has no tunnel to itself, no mirrors and no sets of its own.
	Own string
	// Clusters are those with a broker to publish to.
	Clusters []string
	// Mirror and Global select the Services that are offered.
	Mirror, Global labels.Selector
	// ServiceLabels are the labels of Services that other clusters are told.
	ServiceLabels config.LabelKeys
	// LabelDomains are those of the labels that put a pod into a set. Of several that a pod has, the first counts.
	LabelDomains []string
	// Export says for whom Services and pods are; the first rule that matches. All are for everyone where none does.
	Export []ExportRule
	// PodSubnets hold the IPs of the cluster's pods; where there are any, nothing outside them is exported.
	PodSubnets []netip.Prefix
	// AllowedIPs says where the prefixes are found that nodes export.
	AllowedIPs config.AllowedIPs
	// Tombstones is how many deletions are remembered; 10,000 when 0.
	Tombstones int
}

// KindsFor are the kinds that a cluster is told of.
func (r Rules) KindsFor(cluster string) []semaphorev1.Kind {
	if cluster == r.Own {
		return Rules{Features: config.Features{config.Services}}.Kinds()
	}
	return r.Kinds()
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
	// all are the clusters with brokers, others those but the own one, ruled those of each of the rules.
	all    universe
	others Audience
	ruled  []Audience
	// home is the own cluster where it is one of all, else nobody.
	home Audience
	// remotes are the others each, in the order of the rules, and only each of them alone.
	remotes []string
	only    map[string]Audience

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	prefixes *podcidr.Table
	// whereabouts of endpoints and pods.
	whereabouts whereabouts
	// slices of every Service, exported or not: a slice can come before its Service does.
	slices map[name]map[string]*semaphorev1.Object
	// serviceOf is the Service that a slice belonged to when it was last seen.
	serviceOf map[name]name
	problems  map[problem]string
	// offers are the Services that bear a label that offers them; offersVersion counts their changes.
	offers        map[name]*offered
	offersVersion uint64
	// exportTo is what the values of the annotation say that were seen.
	exportTo map[string]exportTo
	// objects is how many are exported, by kind and audience.
	objects map[semaphorev1.Kind]map[Audience]int
}

// name is the namespace and name of an object.
type name struct{ namespace, name string }

// New makes an empty catalog.
func New(rules Rules) *Catalog {
	c := &Catalog{
		rules:       rules,
		journal:     journal.New[Key, Export](cmp.Or(rules.Tombstones, tombstones)),
		all:         slices.Sorted(slices.Values(rules.Clusters)),
		only:        map[string]Audience{},
		nodes:       map[string]*corev1.Node{},
		prefixes:    podcidr.New(cmp.Or(rules.AllowedIPs, config.AutoAllowedIPs), rules.PodSubnets),
		whereabouts: newWhereabouts(),
		slices:      map[name]map[string]*semaphorev1.Object{},
		serviceOf:   map[name]name{},
		problems:    map[problem]string{},
		offers:      map[name]*offered{},
		exportTo:    map[string]exportTo{},
		objects:     map[semaphorev1.Kind]map[Audience]int{},
	}
	for _, r := range rules.Export {
		c.ruled = append(c.ruled, c.all.of(func(cluster string) bool { return slices.Contains(r.Clusters, cluster) }))
	}
	c.others = Everyone
	for _, cluster := range rules.Clusters {
		if cluster == rules.Own {
			c.home = For(cluster)
			c.others = c.all.without(Everyone, c.home)
			continue
		}
		c.remotes = append(c.remotes, cluster)
		c.only[cluster] = For(cluster)
	}
	return c
}

// Journal is what is exported now, and the order in which it came to be.
func (c *Catalog) Journal() *Journal { return c.journal }

// Rules that the catalog was made with.
func (c *Catalog) Rules() Rules { return c.rules }

// Objects is how many objects of a kind a cluster may see.
func (c *Catalog) Objects(cluster string, kind semaphorev1.Kind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for to, n := range c.objects[kind] {
		if to.Has(cluster) {
			total += n
		}
	}
	return total
}

// Exports reports whether a cluster may see an object, under the name by which it knows it.
func (c *Catalog) Exports(cluster string, key Key) bool {
	for _, audience := range []string{"", cluster} {
		key.Audience = audience
		if e, ok := c.journal.Get(key); ok && e.To.Has(cluster) {
			return true
		}
	}
	return false
}

// put makes a revision only when what is exported, or for whom, differs.
func (c *Catalog) put(key Key, object *semaphorev1.Object, to Audience, now time.Time) {
	if to == Nobody {
		c.problem(key, Unsendable, "")
		c.withdraw(key, now)
		return
	}
	e, err := NewExport(object, to)
	if err != nil {
		c.problem(key, Unsendable, err.Error())
		c.withdraw(key, now)
		return
	}
	c.problem(key, Unsendable, "")
	old, ok := c.journal.Last(key)
	if ok && !old.Deleted {
		if old.Value.Digest == e.Digest && old.Value.To == to {
			return
		}
		c.count(key.Kind, old.Value.To, -1)
	}
	if ok {
		e.succeed(old, c.journal.Head()+1, c.all)
	}
	c.count(key.Kind, to, +1)
	c.journal.Put(key, e, now)
}

// withdraw ends what is exported under a key, if anything is.
func (c *Catalog) withdraw(key Key, now time.Time) {
	if old, ok := c.journal.Get(key); ok {
		c.count(key.Kind, old.To, -1)
		c.journal.Delete(key, now)
	}
}

func (c *Catalog) count(kind semaphorev1.Kind, to Audience, by int) {
	if c.objects[kind] == nil {
		c.objects[kind] = map[Audience]int{}
	}
	if c.objects[kind][to] += by; c.objects[kind][to] == 0 {
		delete(c.objects[kind], to)
	}
}

// PutPod takes a pod as it is now.
func (c *Catalog) PutPod(p *corev1.Pod, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := podKey(p.Namespace, p.Name)
	member, outside := projectPod(p, c.rules.LabelDomains, c.rules.PodSubnets)
	c.problem(key, OutsidePodSubnets, outside)
	c.problem(key, SetLabels, otherSets(p, c.rules.LabelDomains, member))
	var at map[string][]netip.Addr
	if member != nil && p.Spec.NodeName != "" {
		at = map[string][]netip.Addr{p.Spec.NodeName: addresses(member.GetIps())}
	}
	c.locate(key, at)
	if member == nil {
		c.problem(key, ExportTo, "")
		c.problem(key, Unsendable, "")
		c.withdraw(key, now)
		return
	}
	to, problem := c.audience(config.Policy, p.Namespace, p.Labels, p.Annotations)
	c.problem(key, ExportTo, problem)
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_SetMember{SetMember: member}}, to, now)
}

// DeletePod takes a pod's end.
func (c *Catalog) DeletePod(namespace, name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := podKey(namespace, name)
	c.forgetProblems(key)
	c.locate(key, nil)
	c.withdraw(key, now)
}

func podKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: namespace, Name: name}
}

// mirrored reports whether an object is itself a mirror or a global service, ours or the original's: what came from
// another cluster is never exported again.
func mirrored(labels map[string]string) bool {
	return labels[naming.LabelManagedBy] == naming.ManagedByBroker || labels[naming.LabelMirrored] == "true" || labels[naming.LabelGlobal] == "true"
}
