// Package catalog decides what a cluster exports. It takes Kubernetes objects and writes exported objects into a
// journal that publishers read.
//
// It reduces an object to the fields that a receiver needs: a change to any other field makes no revision and sends
// nothing. It is pure: it does no I/O and reads no clock.
package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// tombstones is how many deletions the journal keeps for brokers that resume a stream.
const tombstones = 10_000

// Key names an exported object.
type Key struct {
	// Audience is set for an object that differs by cluster: a node has a tunnel endpoint for each remote.
	Audience        string
	Kind            semaphorev1.Kind
	Namespace, Name string
}

func (k Key) Proto() *semaphorev1.ObjectKey {
	return &semaphorev1.ObjectKey{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

// String returns text such as "service shop/echo", followed by the audience if the key has one.
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

// Rules decide which objects are exported, and to which clusters.
type Rules struct {
	Features config.Features
	// Own is the name of the own cluster. If Clusters contains it, its broker receives all global services and
	// nothing else: a cluster has no tunnel to itself, and no mirrors or sets of its own objects.
	Own string
	// Clusters are the clusters with a broker to publish to, until SetRemotes.
	Clusters []string
	// Mirror and Global select the Services to export.
	Mirror, Global labels.Selector
	// ServiceLabels selects the labels of Services that are exported.
	ServiceLabels config.LabelKeys
	// MultiCluster means that ServiceExports export Services, too.
	MultiCluster bool
	// LabelDomains are the domains of the labels that put a pod into a set. The first domain of which the pod has a
	// label counts.
	LabelDomains []string
	// PodSubnets contain the IPs of the cluster's pods. If not empty, IPs outside them are not exported.
	PodSubnets []netip.Prefix
	// AllowedIPs selects the source of the prefixes that nodes export.
	AllowedIPs config.AllowedIPs
	// Tombstones is how many deletions the journal keeps; 10,000 if 0.
	Tombstones int
}

func (r Rules) KindsFor(cluster string) []semaphorev1.Kind {
	if cluster == r.Own {
		return Rules{Features: config.Features{config.Services}}.Kinds()
	}
	return r.Kinds()
}

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

// Catalog is what one cluster exports. Its methods are safe for concurrent use.
type Catalog struct {
	rules   Rules
	journal *Journal
	// clusters have a broker, others are clusters without the own one.
	clusters universe
	others   Audience
	// own is the own cluster if it is one of clusters, else Nobody.
	own Audience
	// perCluster are the rules of single clusters.
	perCluster map[string][]remotes.ExportRule
	// remotes are the single clusters of others in the order of the rules.
	remotes []string

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	prefixes *podcidr.Table
	// locations of exported endpoints and pods.
	locations locations
	// slices of every Service, exported or not: a slice can arrive before its Service.
	slices map[name]map[string]*discoveryv1.EndpointSlice
	// serviceOf is the Service that a slice belonged to in its last state.
	serviceOf map[name]name
	problems  map[problemKey]string
	// exports and services are all of the cluster, remembered if the rules have MultiCluster.
	exports  map[name]*mcsv1beta1.ServiceExport
	services map[name]*corev1.Service
	// offers are the Services with a label that offers them; offersVersion counts changes that no revision shows.
	offers        map[name]*offered
	offersVersion uint64
	// objects is the number of exported objects by kind and audience.
	objects map[semaphorev1.Kind]map[Audience]int
}

type name struct{ namespace, name string }

func New(rules Rules) *Catalog {
	c := &Catalog{
		rules:     rules,
		journal:   streams.NewJournal[Key, Export](cmp.Or(rules.Tombstones, tombstones)),
		nodes:     map[string]*corev1.Node{},
		prefixes:  podcidr.New(cmp.Or(rules.AllowedIPs, config.AutoAllowedIPs), rules.PodSubnets),
		locations: newLocations(),
		slices:    map[name]map[string]*discoveryv1.EndpointSlice{},
		serviceOf: map[name]name{},
		problems:  map[problemKey]string{},
		exports:   map[name]*mcsv1beta1.ServiceExport{},
		services:  map[name]*corev1.Service{},
		offers:    map[name]*offered{},
		objects:   map[semaphorev1.Kind]map[Audience]int{},
	}
	c.setClusters(rules.Clusters)
	return c
}

func (c *Catalog) setClusters(clusters []string) {
	c.clusters = slices.Sorted(slices.Values(clusters))
	c.remotes, c.own = nil, Nobody
	for _, cluster := range clusters {
		if cluster == c.rules.Own {
			c.own = For(cluster)
			continue
		}
		c.remotes = append(c.remotes, cluster)
	}
	c.others = For(c.remotes...)
}

// SetRemotes sets other clusters that have brokers, and their rules. Their objects follow once all sources are put
// again; until then no stream to a new cluster may begin. The catalog forgets what a removed cluster received.
func (c *Catalog) SetRemotes(clusters []string, offers map[string][]remotes.ExportRule, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cluster := range c.remotes {
		if slices.Contains(clusters, cluster) {
			continue
		}
		for node := range c.nodes {
			c.withdraw(nodeKey(cluster, node), now)
			c.forgetProblems(nodeKey(cluster, node))
		}
	}
	c.perCluster = offers
	c.setClusters(clusters)
	c.offersVersion++ // an offer names the clusters that there are
}

// Journal returns the exported objects in the order of their revisions.
func (c *Catalog) Journal() *Journal { return c.journal }

func (c *Catalog) Rules() Rules { return c.rules }

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

// ExportedSince returns the revision since which a cluster is sent an object as it is now; false if it is not exported
// to it. The broker's key of an object has no audience.
func (c *Catalog) ExportedSince(cluster string, key Key) (revision uint64, exported bool) {
	for _, audience := range []string{"", cluster} {
		key.Audience = audience
		e, ok := c.journal.Last(key)
		switch {
		case !ok || e.Deleted || !e.Value.To.Has(cluster):
		case e.Value.since.Has(cluster):
			return e.Value.contentAt, true
		default:
			return e.Revision, true
		}
	}
	return 0, false
}

// put makes a revision only if the exported object, or its audience, changes.
func (c *Catalog) put(key Key, object *semaphorev1.Object, to Audience, now time.Time) {
	if to == Nobody {
		c.withdraw(key, now)
		return
	}
	e, err := NewExport(object, to)
	if err != nil {
		c.withdraw(key, now)
		c.setProblem(key, finding.Unsendable, err.Error())
		return
	}
	c.setProblem(key, finding.Unsendable, "")
	old, ok := c.journal.Last(key)
	if ok && !old.Deleted {
		if old.Value.Digest == e.Digest && old.Value.To == to {
			return
		}
		c.count(key.Kind, old.Value.To, -1)
	}
	e.contentAt, e.since = c.journal.Head()+1, to
	if ok {
		e.inheritWithdrawn(old, c.journal.Head()+1, c.clusters)
	}
	c.count(key.Kind, to, +1)
	c.journal.Put(key, e, now)
}

// withdraw deletes the exported object of a key, if there is one: no size of it is a problem any more.
func (c *Catalog) withdraw(key Key, now time.Time) {
	c.setProblem(key, finding.Unsendable, "")
	if old, ok := c.journal.Get(key); ok {
		c.count(key.Kind, old.To, -1)
		old.Object = nil // a deletion is its key and who gets it
		c.journal.Delete(key, old, now)
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

func (c *Catalog) PutPod(p *corev1.Pod, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := podKey(p.Namespace, p.Name)
	member, outside := projectPod(p, c.rules.LabelDomains, c.rules.PodSubnets)
	c.setProblem(key, finding.IPOutsideOwnPodSubnets, outside)
	c.setProblem(key, finding.SetLabelsContradict, otherSets(p, c.rules.LabelDomains, member))
	var at map[string][]netip.Addr
	if member != nil && p.Spec.NodeName != "" {
		at = map[string][]netip.Addr{p.Spec.NodeName: addresses(member.GetIps())}
	}
	c.setLocation(key, at)
	if member == nil {
		c.setProblem(key, finding.InvalidExportTo, "")
		c.withdraw(key, now)
		return
	}
	to, problem := c.audience(config.Policy, p.Namespace, p.Labels, p.Annotations)
	c.setProblem(key, finding.InvalidExportTo, problem)
	c.put(key, &semaphorev1.Object{Key: key.Proto(), Spec: &semaphorev1.Object_SetMember{SetMember: member}}, to, now)
}

func (c *Catalog) DeletePod(namespace, name string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := podKey(namespace, name)
	c.forgetProblems(key)
	c.setLocation(key, nil)
	c.withdraw(key, now)
}

func podKey(namespace, name string) Key {
	return Key{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: namespace, Name: name}
}

// isImported reports whether an object is a mirror or a global service of semaphore or of the tool before it. An
// object of another cluster is never exported again.
func isImported(labels map[string]string) bool {
	return labels[naming.LabelManagedBy] == naming.ManagedByBroker || labels[naming.LabelMirrored] == "true" ||
		labels[naming.LabelGlobal] == "true"
}
