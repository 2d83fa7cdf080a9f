package choice

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

var drainNoon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var prefixes = testkit.Prefixes

func ofCluster(c string) Drain { return Drain{Target: Target{Cluster: c}} }
func ofService(c, ns, s string) Drain {
	return Drain{Target: Target{Cluster: c, Namespace: ns, Service: s}}
}
func ofNode(c, n string, p ...string) Drain {
	return Drain{Target: Target{Cluster: c, Node: n}, Prefixes: prefixes(p...)}
}

func TestCovers(t *testing.T) {
	set := NewDrains(ofCluster("c3"), ofService("c2", "shop", "echo"), ofService("", "shop", "cart"),
		ofNode("c2", "n1", "10.2.1.0/24", "fd00:2::100/120"), ofNode("c2", "n2", "10.2.2.0/26"))
	for _, c := range []struct{ cluster, namespace, service, address, by string }{
		{"c3", "shop", "echo", "10.3.9.9", "cluster c3"},
		{"c3", "any", "thing", "fd00:3::1", "cluster c3"},
		{"c2", "shop", "echo", "10.2.9.9", "service c2:shop/echo"},
		{"c1", "shop", "echo", "10.1.9.9", ""},
		{"c2", "other", "echo", "10.2.9.9", ""},
		{"c2", "shop", "cart", "10.2.9.9", "service shop/cart"},
		{"c1", "shop", "cart", "10.1.9.9", "service shop/cart"},
		{"c3", "shop", "cart", "10.3.9.9", "cluster c3"},
		{"c2", "x", "y", "10.2.1.7", "node c2/n1"},
		{"c2", "x", "y", "::ffff:10.2.1.7", "node c2/n1"},
		{"c2", "x", "y", "fd00:2::101", "node c2/n1"},
		{"c2", "x", "y", "fd00:2::201", ""},
		{"c2", "x", "y", "10.2.2.63", "node c2/n2"},
		{"c2", "x", "y", "10.2.2.64", ""},
		{"c1", "x", "y", "10.2.1.7", ""}, // another cluster's, whatever the address
	} {
		d, ok := set.Covers(c.cluster, c.namespace, c.service, netip.MustParseAddr(c.address))
		if ok != (c.by != "") || ok && d.String() != c.by {
			t.Errorf("%v: %v by %s", c, ok, d)
		}
	}
	if d, ok := (Drains{}).Covers("c2", "shop", "echo", netip.MustParseAddr("10.2.1.7")); ok {
		t.Errorf("nothing is drained, and %s covers it", d)
	}
}

func until(d Drain, at time.Time) Drain {
	d.Until = at
	return d
}

func TestOfSeveralDrainsTheLongestIsReported(t *testing.T) {
	short, long, ever := drainNoon.Add(time.Hour), drainNoon.Add(2*time.Hour), time.Time{}
	for _, d := range []Drain{ofCluster("c2"), ofService("c2", "shop", "echo"), ofService("", "shop", "echo"),
		ofNode("c2", "n1", "10.2.1.0/24")} {
		for _, c := range []struct{ a, b, want time.Time }{{short, long, long}, {long, short, long}, {ever, short, ever},
			{short, ever, ever}} {
			got, ok := NewDrains(until(d, c.a), until(d, c.b)).Covers("c2", "shop", "echo", netip.MustParseAddr("10.2.1.7"))
			if !ok || !got.Until.Equal(c.want) {
				t.Errorf("%s: %v until %s, not %s", d, ok, got.Until, c.want)
			}
		}
	}
}

func TestAt(t *testing.T) {
	set := NewDrains(ofCluster("c4"), until(ofCluster("c2"), drainNoon.Add(time.Hour)),
		until(ofCluster("c3"), drainNoon.Add(2*time.Hour)))
	for _, c := range []struct {
		after time.Duration
		left  string
		next  time.Duration
	}{
		{0, "[cluster c2 cluster c3 cluster c4]", time.Hour},
		{time.Hour - 1, "[cluster c2 cluster c3 cluster c4]", time.Hour},
		{time.Hour, "[cluster c3 cluster c4]", 2 * time.Hour},
		{3 * time.Hour, "[cluster c4]", 0},
	} {
		left, next := set.Active(drainNoon.Add(c.after))
		want := time.Time{}
		if c.next > 0 {
			want = drainNoon.Add(c.next)
		}
		if fmt.Sprint(left.All()) != c.left || !next.Equal(want) {
			t.Errorf("after %s: %v, next %s", c.after, left.All(), next)
		}
		if left.Same(set) != (len(left.All()) == 3) {
			t.Errorf("after %s: same: %v", c.after, left.Same(set))
		}
	}
}

func TestWith(t *testing.T) {
	set := NewDrains(ofCluster("c3"), ofNode("c2", "n1", "10.2.1.0/24"), ofNode("c2", "n2", "10.2.2.0/24"))
	more := set.With(func(cluster, node string) []netip.Prefix {
		if cluster == "c2" && node == "n1" {
			return prefixes("10.2.9.0/26", "10.2.1.0/24")
		}
		return nil
	})
	for address, want := range map[string][2]bool{"10.2.1.5": {true, true}, "10.2.2.5": {true, true},
		"10.2.9.5": {false, true}, "10.2.9.65": {false, false}} {
		_, before := set.Covers("c2", "a", "b", netip.MustParseAddr(address))
		_, after := more.Covers("c2", "a", "b", netip.MustParseAddr(address))
		if before != want[0] || after != want[1] {
			t.Errorf("%s: %v, and with what is known %v", address, before, after)
		}
	}
	if !set.Node("c2", "n1") || set.Node("c3", "n1") || set.Node("c3", "") || set.Node("c2", "n3") {
		t.Error("other nodes are drained")
	}
}

// A drain that was written is read again as it was, under a key that an apiserver takes and that is no other's.
func TestText(t *testing.T) {
	keys := map[string]Target{}
	long := strings.Repeat(strings.Repeat("n", 60)+".", 4) + strings.Repeat("n", 9)
	for _, d := range []Drain{
		ofCluster("c2"), ofService("c2", "shop", "echo"), ofService("", "shop", "echo"), ofService("", "c2", "shop"),
		ofService("shop", "echo", "x"),
		ofNode("c2", "n1.example.org", "10.2.1.0/24", "fd00:2::100/120"), ofNode("c2", long, "10.2.1.0/24"),
		ofNode("c2", long[:len(long)-1], "10.2.1.0/24"), ofNode("c3", long, "10.3.1.0/24"),
		// A dot ends neither a cluster's name nor a node's.
		ofNode("eu", "west.n1", "10.4.1.0/24"), ofNode("eu.west", "n1", "10.4.1.0/24"),
		ofNode("eu.west.n1", "n2", "10.4.1.0/24"), ofNode("eu.west", "n1.n2", "10.4.1.0/24"),
		ofNode("eu.west", long, "10.4.1.0/24"), ofCluster("eu.west"), ofCluster("eu.west.n1"),
		ofService("eu", "west", "n1"), ofService("eu.west", "n1", "n2"), ofService("eu", "n1", "n2"),
		{Target: Target{Cluster: "c2"}, Since: drainNoon, Until: drainNoon.Add(time.Hour), By: "a\n\"person\": {of: note}"},
	} {
		got, err := Parse(d.Text())
		if err != nil || !got.Same(d) {
			t.Errorf("%s: %v; read again it is %+v of %+v", d.Text(), err, got, d)
		}
		key := d.Key()
		if wrong := validation.IsConfigMapKey(key); len(wrong) > 0 {
			t.Errorf("%s: key %s: %v", d, key, wrong)
		}
		if other, ok := keys[key]; ok && other != d.Target {
			t.Errorf("%s has the key of %s: %s", d, other, key)
		}
		keys[key] = d.Target
	}
	for want, of := range map[string]Target{"node.c2.n1": {Cluster: "c2", Node: "n1"},
		"node.eu.west_n1": {Cluster: "eu.west", Node: "n1"}} {
		if got := of.Key(); got != want {
			t.Errorf("%s has the key %s, not %s", of, got, want)
		}
	}
	if got := ofCluster("c2").Text(); got != "cluster: c2\n" {
		t.Errorf("%q", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for value, want := range map[string]string{
		"":                                    "name what to drain",
		"cluster: [c2]":                       "cannot unmarshal",
		"clutser: c2":                         `unknown field "clutser"`,
		"cluster: C2":                         "no cluster name",
		"node: n1\nprefixes: [10.0.0.0/8]":    "name the node's cluster",
		"cluster: c2\nnode: n1":               "prefixes: none: name the subnets that the pods of node n1 have",
		"cluster: c2\nprefixes: [10.0.0.0/8]": "only a node has them",
		"cluster: c2\nnode: n1\nnamespace: a\nservice: b\nprefixes: [10.0.0.0/8]": "drain one of them",
		"cluster: c2\nnode: N1\nprefixes: [10.0.0.0/8]":                           `node: "N1"`,
		"namespace: shop":                                                       "a service needs both",
		"service: echo":                                                         "a service needs both",
		"namespace: shop\nservice: Echo":                                        `service: "Echo"`,
		"namespace: a/b\nservice: echo":                                         `namespace: "a/b"`,
		"cluster: c2\nnode: n1\nprefixes: [10.2.1.1/24]":                        "write 10.2.1.0/24",
		"cluster: c2\nnode: n1\nprefixes: [0.0.0.0/0]":                          "drain the cluster",
		"cluster: c2\nnode: n1\nprefixes: [n1]":                                 `prefixes[0]: "n1" is not a subnet`,
		"cluster: c2\nnode: n1\nprefixes: [\"::ffff:1.2.3.0/120\"]":             "is not a subnet",
		"cluster: c2\nuntil: tomorrow":                                          `until: "tomorrow" is not a time`,
		"cluster: c2\nsince: 2026-01-02T12:00:00Z\nuntil: 2026-01-02T12:00:00Z": "is not after since",
	} {
		if d, err := Parse(value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %q", value, d, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("cluster: c2\n")
	f.Add(ofNode("c2", "n1", "10.2.1.0/24").Text())
	f.Add(until(ofService("c2", "shop", "echo"), drainNoon).Text())
	f.Fuzz(func(t *testing.T, value string) {
		d, err := Parse(value)
		if err != nil {
			return
		}
		if again, err := Parse(d.Text()); err != nil || again.Target != d.Target {
			t.Errorf("%q: %+v, and read again %+v, %v", value, d, again, err)
		}
		NewDrains(d).Active(drainNoon)
	})
}
