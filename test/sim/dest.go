package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// dest is a destination cluster: an apiserver, and brokers of which one leads.
type dest struct {
	w      *world
	name   string
	config *config.Broker

	version, uids int
	services      *table[*corev1.Service]
	slices        *table[*discoveryv1.EndpointSlice]
	sets          *table[*calicov3.GlobalNetworkSet]

	agents  []*agent
	brokers []*broker
	leader  *broker
	// unreachable means that no exporter can dial it.
	unreachable bool
	// trusts are the accepted certificates of each source.
	trusts map[string]map[int]bool
	// late are writes of brokers that ended, which may still be executed.
	late []func()
	// writing is the broker whose write is being executed.
	writing *broker
	// disordered are addresses whose order is unknown: see writtenSet.
	disordered map[string]bool
	// others are the objects that are not a broker's, with their versions.
	others map[string]string
	// left are the addresses that a write of a broker ever removed from a set, by its object.
	left map[string]map[string]bool
	// stood are the endpoints that a broker ever wrote.
	stood map[string]bool
	// relabelled are the objects, such as "set c2-a-x", whose source a person changed.
	relabelled map[string]bool
}

// configs caches parsed configurations: parsing one takes longer than a run.
var configs sync.Map

func newDest(w *world, name string) *dest {
	d := &dest{w: w, name: name, disordered: map[string]bool{}, others: map[string]string{}, stood: map[string]bool{},
		left:   map[string]map[string]bool{},
		trusts: map[string]map[int]bool{}, relabelled: map[string]bool{}}
	for _, s := range w.sources {
		d.trusts[s.name] = map[int]bool{s.key: true}
	}
	d.services = newTable(d, "service", d.writtenService)
	d.slices = newTable(d, "slice", d.writtenSlice)
	d.sets = newTable(d, "set", d.writtenSet)
	var remotes []string
	for i, s := range w.sources {
		remotes = append(
			remotes,
			fmt.Sprintf(
				`{"name": %q, "podSubnets": ["%s.0.0/16", "fd00:%d::/64"], "nodeSubnets": ["172.18.%d.0/24"], "wireguard": `+
					`{"listenPort": %d}, "servicePrefix": %q}`,
				s.name,
				s.subnet(),
				20+i,
				20+i,
				51820+i,
				prefixOf(s.name),
			),
		)
	}
	text := fmt.Sprintf(
		`{"cluster": %q, "localSubnets": ["10.1.0.0/16", "10.96.0.0/16", "172.18.1.0/24"], "remotes": [%s], "brake": %s, `+
			`"slices": {"maxEndpoints": 2}}`,
		name,
		strings.Join(remotes, ", "),
		w.brake,
	)
	if known, ok := configs.Load(text); ok {
		d.config = known.(*config.Broker)
		return d
	}
	parsed, err := described.Broker([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("the broker's configuration: %v", err))
	}
	configs.Store(text, parsed)
	d.config = parsed
	return d
}

// prefixOf begins the names of a source's mirrors: c2 and c2-a are refused beside each other.
func prefixOf(source string) string { return strings.ReplaceAll(source, "-", "") }

// meddle is a change that a person, or another program, makes to objects in the cluster.
func (d *dest) meddle() bool {
	switch d.w.rng.IntN(4) {
	case 0:
		meddle(d, d.services, func(o *corev1.Service) { o.Spec.Ports[0].Port = 7 })
	case 1:
		meddle(d, d.slices, func(o *discoveryv1.EndpointSlice) { o.Endpoints = nil })
	case 2:
		meddle(d, d.sets, func(o *calicov3.GlobalNetworkSet) { o.Spec.Nets = []string{"192.0.2.1/32"} })
	default:
		d.occupy()
	}
	return true
}

func meddle[T writes.Object](d *dest, t *table[T], edit func(T)) {
	names := slices.Sorted(maps.Keys(t.objects))
	names = slices.DeleteFunc(names, func(name string) bool { return !ours(t.objects[name]) })
	if len(names) == 0 {
		return
	}
	name := pick(d.w, names)
	o := t.objects[name].DeepCopyObject().(T)
	if d.w.chance(0.4) {
		d.tracef("somebody deletes %s %s", t.name, name)
		t.delete(o, bySomeone)
		return
	}
	edit(o)
	if d.w.chance(0.3) {
		labels := maps.Clone(o.GetLabels())
		labels[naming.LabelSourceCluster] = pick(d.w, append([]string{"nobody"}, d.w.sourceNames()...))
		o.SetLabels(labels)
		d.relabelled[t.name+" "+name] = true
	}
	d.tracef("somebody edits %s %s, source %s", t.name, name, o.GetLabels()[naming.LabelSourceCluster])
	t.update(o, bySomeone)
}

// occupy creates an object that is not a broker's under a name that a mirror or a set would have, or deletes it again.
func (d *dest) occupy() {
	s := pick(d.w, d.w.sources)
	if d.w.chance(0.5) {
		name := fmt.Sprintf("%s-%s-73736d-%s", prefixOf(s.name), s.namespace(), pick(d.w, services))
		occupy(d, d.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}})
		return
	}
	name := fmt.Sprintf("%s-%s-%s", s.name, s.namespace(), pick(d.w, setNames))
	occupy(d, d.sets, &calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

func occupy[T writes.Object](d *dest, t *table[T], o T) {
	what := t.name + " " + o.GetName()
	have, there := t.objects[o.GetName()]
	switch {
	case !there:
		made, _ := t.create(o, bySomeone)
		d.others[what] = made.GetResourceVersion()
		d.tracef("somebody's %s comes", what)
	case !ours(have):
		d.tracef("somebody's %s goes", what)
		t.delete(have, bySomeone)
		delete(d.others, what)
	}
}

func (d *dest) tracef(format string, args ...any) {
	d.w.tracef("%s: "+format, append([]any{d.name}, args...)...)
}
