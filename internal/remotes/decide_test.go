package remotes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

func own(t testing.TB, more string) *config.Broker {
	t.Helper()
	return testkit.Value(described.Broker([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\n" + more)))(t)
}

// at returns an object with an age and a text such as "c2 10.2.0.0/16"; the oldest has the lowest number.
func at(t testing.TB, age int, name, spec string) Object {
	t.Helper()
	o := Object{Name: name, Created: time.Unix(int64(1_000_000+age), 0), Generation: 1, Definition: "d1"}
	testkit.Must(t, yaml.UnmarshalStrict([]byte(spec), &o.Spec))
	return o
}

func all(objects ...Object) Objects {
	out := Objects{}
	for _, o := range objects {
		out[o.Name] = o
	}
	return out
}

// what formats a decision: name, first subnet and port of each object in effect, oldest first; then the others, with
// the reason.
func what(d Decision) string {
	var words []string
	for _, o := range d.InEffect.ByAge() {
		subnet := v1alpha1.Subnet("nothing")
		if len(o.Spec.PodSubnets) > 0 {
			subnet = o.Spec.PodSubnets[0]
		}
		words = append(words, fmt.Sprint(o.Name, " ", subnet, " ", o.ListenPort))
	}
	for _, name := range []string{"c1", "c2", "c3", "c4", "c2-eu"} {
		if v, ok := d.Verdicts[name]; ok && !v.Accepted() {
			words = append(words, "not "+name+": "+string(v.Reason))
		}
	}
	return strings.Join(words, ", ")
}

func TestDecide(t *testing.T) {
	const nodes = ", nodeSubnets: [192.0.2.0/24]"
	c2 := at(t, 2, "c2", "{podSubnets: [10.2.0.0/16]"+nodes+"}")
	c3 := at(t, 3, "c3", "{podSubnets: [10.3.0.0/16]"+nodes+"}")
	overlaps := at(t, 4, "c4", "{podSubnets: [10.2.128.0/17]"+nodes+"}")
	port := func(o Object, port uint16) Object { o.ListenPort = port; return o }
	for name, test := range map[string]struct {
		config          string
		before, objects Objects
		ports           map[string]uint16
		want            string
	}{
		"nothing":                        {want: ""},
		"two, ports in the order of age": {objects: all(c3, c2), want: "c2 10.2.0.0/16 7775, c3 10.3.0.0/16 7776"},
		"the newer one loses": {objects: all(c2, overlaps),
			want: "c2 10.2.0.0/16 7775, not c4: SubnetsOverlap"},
		"what is in effect stays in effect": {before: all(port(overlaps, 7780)), objects: all(c2, overlaps),
			want: "c4 10.2.128.0/17 7780, not c2: SubnetsOverlap"},
		"a change that makes room": {
			before: all(port(overlaps, 7780)), objects: all(c2, at(t, 4, "c4", "{podSubnets: [10.4.0.0/16]"+nodes+"}")),
			want: "c2 10.2.0.0/16 7775, c4 10.4.0.0/16 7780",
		},
		"a change that is not accepted": {
			before:  all(port(c2, 7775), port(c3, 7776)),
			objects: all(c2, at(t, 3, "c3", "{podSubnets: [10.2.0.0/24]"+nodes+"}")),
			want:    "c2 10.2.0.0/16 7775, c3 10.3.0.0/16 7776, not c3: SubnetsOverlap",
		},
		"the own configuration has changed": {
			config:  "globalServices: {}\nwireguard: {portRange: 7775-7775}",
			before:  all(port(at(t, 2, "c2", "{podSubnets: [10.1.0.0/24]"+nodes+"}"), 7775)),
			objects: all(at(t, 2, "c2", "{podSubnets: [10.1.0.0/24]"+nodes+"}")), want: "not c2: SubnetsOverlap",
		},
		"a deleted one": {before: all(port(c2, 7775), port(c3, 7776)), objects: all(c3),
			want: "c3 10.3.0.0/16 7776"},
		"the port of its status": {objects: all(c2, port(c3, 7775)), want: "c2 10.2.0.0/16 7776, c3 10.3.0.0/16 7775"},
		"the port that nodes publish": {objects: all(c2), ports: map[string]uint16{"c2": 51820},
			want: "c2 10.2.0.0/16 51820"},
		"a port that is said": {
			objects: all(c2, at(t, 3, "c3", "{podSubnets: [10.3.0.0/16], wireguard: {listenPort: 7775}"+nodes+"}")),
			want:    "c2 10.2.0.0/16 7776, c3 10.3.0.0/16 7775",
		},
		"a port that is said, and another's": {
			before:  all(port(c2, 7775)),
			objects: all(c2, at(t, 3, "c3", "{podSubnets: [10.3.0.0/16], wireguard: {listenPort: 7775}"+nodes+"}")),
			want:    "c2 10.2.0.0/16 7775, not c3: PortConflict",
		},
		"no port is left": {config: "wireguard: {portRange: 7775-7775}", objects: all(c2, c3),
			want: "c2 10.2.0.0/16 7775, not c3: NoFreePort"},
		"export only":     {objects: all(at(t, 2, "c2", "{broker: {address: 'b:1'}}")), want: "c2 nothing 0"},
		"the own cluster": {objects: all(at(t, 2, "c1", "{podSubnets: [10.2.0.0/16]"+nodes+"}")), want: "not c1: OwnCluster"},
		"nodes in a subnet of another's pods": {
			objects: all(c2, at(t, 3, "c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [10.2.1.0/24]}")),
			want:    "c2 10.2.0.0/16 7775, not c3: SubnetsOverlap",
		},
		"pods in a subnet of another's nodes": {
			objects: all(c2, at(t, 3, "c3", "{podSubnets: [192.0.2.128/25], nodeSubnets: [198.51.100.0/24]}")),
			want:    "c2 10.2.0.0/16 7775, not c3: SubnetsOverlap",
		},
		"no nodes, with encryption": {objects: all(at(t, 2, "c2", "{podSubnets: [10.2.0.0/16]}")),
			want: "not c2: SubnetsOverlap"},
		"no nodes, without": {
			config: "features: [services]", objects: all(at(t, 2, "c2", "{podSubnets: [10.2.0.0/16]}")),
			want: "c2 10.2.0.0/16 7775",
		},
		"prefixes": {
			objects: all(c2, at(t, 3, "c2-eu", "{podSubnets: [10.3.0.0/16]"+nodes+"}")),
			want:    "c2 10.2.0.0/16 7775, not c2-eu: PrefixConflict",
		},
		"a prefix of its own": {
			objects: all(c2, at(t, 3, "c2-eu", "{podSubnets: [10.3.0.0/16], servicePrefix: eu"+nodes+"}")),
			want:    "c2 10.2.0.0/16 7775, c2-eu 10.3.0.0/16 7776",
		},
		"no selector": {
			objects: all(at(t, 2, "c2", "{broker: {address: 'b:1'}, export: {rules: [{action: Offer, selector: "+
				"{matchExpressions: [{key: a, operator: Near}]}}]}}")),
			want: "not c2: InvalidSpec",
		},
		"no certificate": {
			objects: all(at(t, 2, "c2", "{broker: {address: 'b:1'}, trustBundle: '-----BEGIN CERTIFICATE-----'}")),
			want:    "not c2: InvalidSpec",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(own(t, test.config), test.before, test.objects, test.ports)
			if got := what(d); got != test.want {
				t.Errorf("%s\nwant %s\n%+v", got, test.want, d.Verdicts)
			}
			again := Decide(own(t, test.config), d.InEffect, test.objects, nil)
			if got := what(again); got != test.want {
				t.Errorf("decided once more: %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestNoRoom: the remote that nodes or a ConfigMap have no room for is refused, and all before it stay in effect.
func TestNoRoom(t *testing.T) {
	roots := string(testkit.Value(os.ReadFile(filepath.Join(trust.New(t, "c2").Bundles(), "c2.pem")))(t))
	of := func(n, size int) Objects {
		objects := Objects{}
		for i := range n {
			o := at(t, i, fmt.Sprintf("r%03d", i), fmt.Sprintf(
				"{podSubnets: [10.%d.%d.0/24], nodeSubnets: [192.0.2.0/24]}", 2+i>>8, i&255))
			if size > 0 {
				o.Spec.TrustBundle = roots + strings.Repeat("#", size)
			}
			objects[o.Name] = o
		}
		return objects
	}
	for name, test := range map[string]struct {
		config, refused, message string
		objects                  Objects
	}{
		"as many as there are annotations": {objects: of(256, 0)},
		"one more": {objects: of(257, 0), refused: "r256",
			message: "256 RemoteClusters are in effect"},
		"without encryption there are none": {config: "features: [services]", objects: of(257, 0)},
		"they fit into a ConfigMap":         {objects: of(15, 64_000)},
		"they do not": {objects: of(16, 64_000), refused: "r015",
			message: "and 1000000 fit into the ConfigMap"},
	} {
		d := Decide(own(t, test.config+"\nwireguard: {portRange: 7775-8999}"), nil, test.objects, nil)
		for object, v := range d.Verdicts {
			if refused := object == test.refused; refused == v.Accepted() || refused &&
				(v.Reason != finding.TooManyRemotes || !strings.Contains(v.Message, test.message)) {
				t.Errorf("%s: %s is %s: %s", name, object, v.Reason, v.Message)
			}
		}
	}
}

// TestSourceThatStands: the cluster that stands for a remote stays, whatever becomes of the object's spec, until the
// operator names another one or deletes the object.
func TestSourceThatStands(t *testing.T) {
	const spec = "{podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24]"
	plain := at(t, 2, "c2", spec+"}")
	named := at(t, 2, "c2", spec+", sourceID: named}")
	stands := func(o Object, uid string) Object { o.SourceID = uid; return o }
	for name, test := range map[string]struct {
		before, objects Objects
		want            string
	}{
		"nobody has connected":   {objects: all(plain), want: ""},
		"one has connected":      {before: all(stands(plain, "first")), objects: all(plain), want: "first"},
		"the operator names one": {before: all(stands(plain, "first")), objects: all(named), want: "named"},
		"named from the start":   {objects: all(named), want: "named"},
		"the name is taken away": {before: all(stands(named, "named")), objects: all(plain), want: "named"},
		"the object is restored": {before: all(stands(plain, "first")), objects: all(at(t, 9, "c2", spec+"}")),
			want: "first"},
		"the object has changed": {before: all(stands(plain, "first")),
			objects: all(at(t, 2, "c2", spec+", encryption: clear}")), want: "first"},
		"a change is not accepted": {before: all(stands(plain, "first")),
			objects: all(at(t, 2, "c2", "{podSubnets: [10.1.0.0/16], sourceID: named, nodeSubnets: [192.0.2.0/24]}")),
			want:    "first"},
		"the object was deleted": {before: all(), objects: all(plain), want: ""},
	} {
		d := Decide(own(t, ""), test.before, test.objects, nil)
		if o, ok := d.InEffect["c2"]; !ok || o.SourceID != test.want {
			t.Errorf("%s: %q stands; want %q", name, o.SourceID, test.want)
		}
	}
}

// TestTracker: an object disappears by an operator's order, or with its definition.
func TestTracker(t *testing.T) {
	c2, c3 := at(t, 2, "c2", "{podSubnets: [10.2.0.0/16]}"), at(t, 3, "c3", "{podSubnets: [10.3.0.0/16]}")
	of := func(o Object, definition types.UID) Object { o.Definition = definition; return o }
	is, ends, other := Definition{UID: "d1"}, Definition{UID: "d1", Terminating: true}, Definition{UID: "d2"}
	for name, test := range map[string]struct {
		steps func(*Tracker)
		want  string
		lost  bool
	}{
		"deleted":                            {func(tr *Tracker) { tr.Deleted("c3", is) }, "c2", false},
		"not in a list":                      {func(tr *Tracker) { tr.Listed(is, []Object{c2}) }, "c2", false},
		"the definition is being deleted":    {func(tr *Tracker) { tr.Deleted("c3", ends) }, "c2 c3", true},
		"the definition is gone":             {func(tr *Tracker) { tr.Deleted("c3", Definition{}) }, "c2 c3", true},
		"another definition, and no object":  {func(tr *Tracker) { tr.Listed(other, nil) }, "c2 c3", true},
		"another definition, and one object": {func(tr *Tracker) { tr.Listed(other, []Object{of(c2, "d2")}) }, "c2 c3", true},
		"one that is there again is deleted": {func(tr *Tracker) {
			tr.Listed(other, []Object{of(c2, "d2")})
			tr.Deleted("c2",
				other)
		}, "c3", true},
		"all are there again, and one is deleted": {func(tr *Tracker) {
			tr.Deleted("c2", ends)
			tr.Deleted("c3", ends)
			tr.Listed(other, []Object{of(c2, "d2"), of(c3, "d2")})
			tr.Deleted("c3", other)
		}, "c2", false},
	} {
		t.Run(name, func(t *testing.T) {
			tr := NewTracker(all(c2, c3))
			test.steps(tr)
			var names []string
			for _, o := range tr.Objects().ByAge() {
				names = append(names, o.Name)
			}
			if got := strings.Join(names, " "); got != test.want || (tr.Problem() != "") != test.lost {
				t.Errorf("objects %s (%s), want %s", got, tr.Problem(), test.want)
			}
		})
	}
}
