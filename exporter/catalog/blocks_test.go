package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/podcidr"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func withBlocks(t testing.TB) *Catalog {
	return withRules(t, func(r *Rules) {
		r.AllowedIPs = config.CalicoBlocks
		r.PodSubnets = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")}
	})
}

// affinity is one as Calico's IPAM makes it, named after its node and block, and created in a second.
func affinity(node, block, state string, created int, edit ...func(*kube.BlockAffinity)) *kube.BlockAffinity {
	a := &kube.BlockAffinity{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node + "-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(block),
			CreationTimestamp: metav1.Unix(int64(created), 0),
		},
		Spec: kube.BlockAffinitySpec{Node: node, CIDR: block, State: state, Deleted: "false"},
	}
	for _, e := range edit {
		e(a)
	}
	return a
}

func deleted(word kube.Word) func(*kube.BlockAffinity) {
	return func(a *kube.BlockAffinity) { a.Spec.Deleted = word }
}

// blocksOf has the pod CIDRs that are exported to c2 of each node.
func blocksOf(c *Catalog) map[string]string {
	out := map[string]string{}
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		if e.Key.Kind == semaphorev1.Kind_KIND_NODE && e.Key.Audience == "c2" {
			out[e.Key.Name] = strings.Join(e.Value.Object.GetNode().GetPodCidrs(), " ")
		}
	}
	return out
}

func TestBlocksOfOneNode(t *testing.T) {
	for name, test := range map[string]struct {
		affinities []*kube.BlockAffinity
		want       string
		problem    string
	}{
		"none": {},
		"confirmed, of both families, in order": {
			affinities: []*kube.BlockAffinity{
				affinity("n1", "fd00:1:0:7::/122", "confirmed", 3),
				affinity("n1", "10.1.9.0/26", "confirmed", 2),
				affinity("n1", "10.1.2.64/26", "confirmed", 5),
			},
			want: "10.1.2.64/26 10.1.9.0/26 fd00:1:0:7::/122",
		},
		"pending is no node's yet": {affinities: []*kube.BlockAffinity{affinity("n1", "10.1.2.0/26",
			"pending", 1)}},
		"pods of a block that is given up may be there": {affinities: []*kube.BlockAffinity{affinity("n1", "10.1.2.0/26",
			"pendingDeletion", 1)}, want: "10.1.2.0/26"},
		"an older Calico has no states": {affinities: []*kube.BlockAffinity{affinity("n1", "10.1.2.0/26", "",
			1)}, want: "10.1.2.0/26"},
		"deleted, in the words of the CRD and of v3": {affinities: []*kube.BlockAffinity{
			affinity("n1", "10.1.2.0/26", "confirmed", 1, deleted("true")),
			affinity("n1", "10.1.3.0/26", "confirmed", 1, deleted("")),
		}, want: "10.1.3.0/26"},
		"deleted is no word that there is": {
			affinities: []*kube.BlockAffinity{affinity("n1", "10.1.2.0/26", "confirmed", 1, deleted("perhaps"))},
			problem:    `node n1: block affinity n1-10-1-2-0-26: spec.deleted: "perhaps" is neither true nor false`,
		},
		"no CIDR": {
			affinities: []*kube.BlockAffinity{affinity("n1", "10.1.2.0", "confirmed", 1),
				affinity("n1", "10.1.3.0/26", "confirmed", 1)},
			want: "10.1.3.0/26", problem: "node n1: block affinity n1-10-1-2-0: spec.cidr: ",
		},
		"outside the pod subnets": {
			affinities: []*kube.BlockAffinity{affinity("n1", "10.9.2.0/26", "confirmed", 1),
				affinity("n1", "10.1.3.0/26", "confirmed", 1)},
			want:    "10.1.3.0/26",
			problem: "node n1: block affinities: 10.9.2.0/26 lies outside podSubnets and is not exported",
		},
		"of load balancers, which have no node": {affinities: []*kube.BlockAffinity{
			affinity("n1", "10.1.2.0/26", "confirmed", 1, func(a *kube.BlockAffinity) { a.Spec.Type = "virtual" }),
			affinity("virtual:load-balancer", "10.1.3.0/26", "confirmed", 1),
			affinity("n1", "10.1.4.0/26", "confirmed", 1, func(a *kube.BlockAffinity) { a.Spec.Type = "host" }),
		}, want: "10.1.4.0/26"},
		"of what is no node": {
			affinities: []*kube.BlockAffinity{affinity("n9", "10.1.2.0/26", "confirmed", 1)},
			problem:    "node n9: block affinities: 1 name it, but no such node exists",
		},
	} {
		for _, nodeFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", node first: ", nodeFirst), func(t *testing.T) {
				c := withBlocks(t)
				// Its podCIDRs are nothing to Calico's IPAM.
				node := newNode("n1", []string{"10.1.200.0/24"}, nil)
				if nodeFirst {
					c.PutNode(node, time.Now())
				}
				for _, a := range test.affinities {
					c.PutBlock(a, time.Now())
				}
				if !nodeFirst {
					c.PutNode(node, time.Now())
				}
				if got := blocksOf(c)["n1"]; got != test.want {
					t.Errorf("exported are %q, not %q", got, test.want)
				}
				got := strings.Join(finding.Texts(c.Findings()), "\n")
				if (got == "") != (test.problem == "") || !strings.Contains(got, test.problem) {
					t.Errorf("problems are %q, not %q", got, test.problem)
				}
				// A node that changes in other ways keeps its blocks.
				c.PutNode(newNode("n1", nil, end("c2", publicKey(1), "192.0.2.1:1")), time.Now())
				if got := blocksOf(c)["n1"]; got != test.want {
					t.Errorf("exported of the changed node are %q, not %q", got, test.want)
				}
				c.DeleteNode("n1", time.Now())
				for _, a := range test.affinities {
					c.DeleteBlock(a.Name, time.Now())
				}
				if p := finding.Texts(c.Findings()); len(p) != 0 || !c.prefixes.Empty() {
					t.Errorf("all is gone, and left are problems %q, prefixes %+v", p, c.prefixes)
				}
			})
		}
	}
}

// TestABlockOfAnotherNode: a node without a block that it claims is named, and so is an affinity that comes to name
// another node. TestOwnersKeepTheirBlocks (internal/podcidr) has who of two has a block.
func TestABlockOfAnotherNode(t *testing.T) {
	c := withBlocks(t)
	now := time.Now()
	is := func(n1, n2, problem string) {
		t.Helper()
		if got := blocksOf(c); got["n1"] != n1 || got["n2"] != n2 {
			t.Errorf("exported are %q", got)
		}
		if got := strings.Join(finding.Texts(c.Findings()), "\n"); (got == "") != (problem == "") ||
			!strings.Contains(got, problem) {
			t.Errorf("problems are %q, not %q", got, problem)
		}
	}
	c.PutNode(newNode("n1", nil, nil), now)
	c.PutNode(newNode("n2", nil, nil), now)
	const block = "10.1.2.0/26"
	c.PutBlock(affinity("n2", block, "confirmed", 13), now)
	c.PutBlock(affinity("n1", block, "confirmed", 20), now)
	is("", block, "node n1: block affinities: 10.1.2.0/26 overlaps that of node n2 and is not exported")
	c.DeleteBlock("n2-10-1-2-0-26", now)
	is(block, "", "")
	c.PutBlock(affinity("n2", block, "confirmed", 20, func(a *kube.BlockAffinity) { a.Name = "n1-10-1-2-0-26" }), now)
	is("", block, "")
	c.DeleteNode("n2", now)
	is("", "", "node n2: block affinities: 1 name it, but no such node exists")
	if n := c.CountProblems()[finding.StrayBlocks]; n != 1 {
		t.Errorf("%d problems are of reason %s", n, finding.StrayBlocks)
	}
	c.PutNode(newNode("n2", nil, nil), now)
	is("", block, "")
}

// TestR12OverlapsDependOnTheState: whatever the order in which affinities and nodes come, change and go, what is
// exported at last depends on what they are at last, and no two nodes have one address: of blocks at no step on the
// way, and at last of Nodes that are created again with other CIDRs.
func TestR12OverlapsDependOnTheState(t *testing.T) {
	for _, from := range []config.AllowedIPs{config.CalicoBlocks, config.AutoAllowedIPs, config.NodePodCIDRs} {
		t.Run(string(from), func(t *testing.T) {
			t.Parallel()
			testOverlaps(t, from)
		})
	}
}

func disjoint(t *testing.T, seed uint64, step int, held map[string][]netip.Prefix) {
	t.Helper()
	for node, has := range held {
		for other, others := range held {
			if node != other && slices.ContainsFunc(has, func(p netip.Prefix) bool {
				return slices.ContainsFunc(others, p.Overlaps)
			}) {
				t.Fatalf("seed %d, step %d: %s has %s, and %s has %v", seed, step, node, has, other, others)
			}
		}
	}
}

func testOverlaps(t *testing.T, from config.AllowedIPs) {
	podCIDRs := [][]string{nil, nil, {"10.1.0.0/24"}, {"10.1.0.64/26", "fd00:1::/64"}, {"10.1.9.0/24"}, {"10.9.0.0/24"}}
	if from == config.NodePodCIDRs {
		podCIDRs = append(podCIDRs, []string{"10.1.0.0/23", "nonsense"}, []string{"fd00:1::/48", "10.1.1.0/24"})
	}
	empty := func() *Catalog {
		c := withBlocks(t)
		c.prefixes = podcidr.New(from, c.rules.PodSubnets)
		return c
	}
	blocks := []string{"10.1.0.0/26", "10.1.0.64/26", "10.1.0.0/25", "10.1.0.0/27", "fd00:1::/122", "10.9.0.0/26",
		"nonsense"}
	states := []string{"confirmed", "confirmed", "pending", "pendingDeletion"}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		c := empty()
		nodes, affinities := map[string]*corev1.Node{}, map[string]*kube.BlockAffinity{}
		held, head := map[string][]netip.Prefix{}, uint64(0)
		for version := range 60 {
			node := fmt.Sprint("n", rnd.IntN(4))
			a := affinity(node, blocks[rnd.IntN(len(blocks))], states[rnd.IntN(4)], version+1,
				deleted([]kube.Word{"false", "false", "true", ""}[rnd.IntN(4)]))
			switch rnd.IntN(6) {
			case 0:
				nodes[node] = newNode(node, podCIDRs[rnd.IntN(len(podCIDRs))], nil)
				if from == config.NodePodCIDRs {
					nodes[node].UID = types.UID(fmt.Sprint(rnd.IntN(1000)))
					nodes[node].CreationTimestamp = metav1.Unix(int64(rnd.IntN(3)), 0)
				}
				c.PutNode(nodes[node], time.Now())
			case 1:
				delete(nodes, node)
				c.DeleteNode(node, time.Now())
			case 2:
				delete(affinities, a.Name)
				c.DeleteBlock(a.Name, time.Now())
			default:
				affinities[a.Name] = a
				c.PutBlock(a, time.Now())
			}
			changes, _, _ := c.Journal().Since(head, 1000)
			head = c.Journal().Head()
			for _, e := range changes {
				if e.Key.Audience != "c2" {
					continue
				}
				held[e.Key.Name] = nil
				if e.Deleted {
					continue
				}
				for _, text := range e.Value.Object.GetNode().GetPodCidrs() {
					held[e.Key.Name] = append(held[e.Key.Name], netip.MustParsePrefix(text))
				}
				if from != config.NodePodCIDRs {
					disjoint(t, seed, version, held)
				}
			}
		}
		disjoint(t, seed, 60, held)
		again := empty()
		for _, a := range affinities {
			again.PutBlock(a, time.Now())
		}
		for _, n := range nodes {
			again.PutNode(n, time.Now())
		}
		got := fmt.Sprint(blocksOf(c), finding.Texts(c.Findings()))
		want := fmt.Sprint(blocksOf(again), finding.Texts(again.Findings()))
		if got != want {
			t.Fatalf("seed %d: %s\nand in another order %s", seed, got, want)
		}
		counts := map[finding.Code]int{}
		for _, f := range c.Findings() {
			counts[f.Code] += int(f.Count)
		}
		if count := c.CountProblems(); !maps.Equal(count, counts) {
			t.Fatalf("seed %d: the metrics count %v and the status finds %v", seed, count, counts)
		}
	}
}

// TestOutsideNode: IPs of endpoints and pods that no remote cluster reaches, as they are not in what is published of
// their node, come and go with either.
func TestOutsideNode(t *testing.T) {
	c := withRules(t, func(r *Rules) { r.AllowedIPs = config.AutoAllowedIPs })
	now := time.Now()
	says := func(n int, want ...string) {
		t.Helper()
		if got := c.OutsidePrefixes(); got != n {
			t.Errorf("%d IPs are outside; want %d", got, n)
		}
		if got := c.CountProblems()[finding.IPOutsideNode]; got != len(want) {
			t.Errorf("%d nodes have such; want %d", got, len(want))
		}
		got := finding.Texts(c.Findings())
		if len(got) != len(want) {
			t.Fatalf("problems are %q; want %q", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("problem %q; want %q", got[i], want[i])
			}
		}
	}
	slice := func(name string, at ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
				Labels: map[string]string{discoveryv1.LabelServiceName: "web", "mirror.semaphore.uw.io/mirror-service": "true"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for _, text := range at {
			ip, node, _ := strings.Cut(text, "@")
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node})
		}
		return s
	}
	c.PutSlice(slice("web-1", "10.1.1.5@n1", "10.1.2.5@n2", "10.1.9.9@n2", "10.1.9.8@n2"), now)
	says(0) // nothing is known of the nodes yet
	c.PutNode(newNode("n1", []string{"10.1.1.0/24"}, nil), now)
	c.PutNode(newNode("n2", []string{"10.1.2.0/24"}, nil), now)
	const two = "node n2: 2 IPs of endpoints and pods lie outside the node's exported prefixes (10.1.2.0/24), so no " +
		"remote cluster reaches them; the first is 10.1.9.9 of endpointslice shop/web-1"
	says(2, two)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
			Labels: map[string]string{c.rules.LabelDomains[0] + "/name": "web"}},
		Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{PodIP: "10.1.9.7"},
	}
	c.PutPod(pod, now)
	says(3, "node n1: 1 IPs of endpoints and pods lie outside the node's exported prefixes (10.1.1.0/24), so no remote "+
		"cluster reaches them; "+
		"the first is 10.1.9.7 of setmember shop/web", two)

	// Blocks show that it is Calico's IPAM: now it is others that are outside.
	c.PutBlock(affinity("n2", "10.1.9.0/29", "confirmed", 1), now)
	c.PutBlock(affinity("n2", "10.1.9.8/29", "confirmed", 2), now)
	c.PutBlock(affinity("n1", "10.1.1.0/26", "confirmed", 3), now)
	says(2, "node n1: 1 IPs of endpoints and pods lie outside the node's exported prefixes (10.1.1.0/26), so no remote "+
		"cluster reaches them; "+
		"the first is 10.1.9.7 of setmember shop/web",
		"node n2: 1 IPs of endpoints and pods lie outside the node's exported prefixes (10.1.9.0/29, 10.1.9.8/29), so no "+
			"remote cluster reaches them; "+
			"the first is 10.1.2.5 of endpointslice shop/web-1")
	c.PutSlice(slice("web-1", "10.1.1.5@n1", "10.1.9.9@n2"), now)
	c.DeletePod("shop", "web", now)
	says(0)
	c.PutBlock(affinity("n2", "10.1.9.8/29", "pending", 4), now)
	says(1, "node n2: 1 IPs of endpoints and pods lie outside the node's exported prefixes (10.1.9.0/29), so no remote "+
		"cluster reaches them; "+
		"the first is 10.1.9.9 of endpointslice shop/web-1")
	c.DeleteNode("n2", now)
	if got := c.OutsidePrefixes(); got != 0 {
		t.Errorf("%d IPs are outside the prefixes of a node that is gone", got)
	}
	c.DeleteSlice("shop", "web-1", now)
	c.DeleteNode("n1", now)
	if w := c.locations; len(w.byNode)+len(w.nodesOf)+len(w.outside) != 0 {
		t.Errorf("all is gone, and left is %+v", w)
	}
}

// TestOutsideNodeWithoutARemote: no IP is reported as unreachable from remotes while there is none, and what is deleted
// meanwhile is not reported afterwards either.
func TestOutsideNodeWithoutARemote(t *testing.T) {
	c, now := newCatalog(t), time.Now()
	node, slice := newNode("n1", []string{"10.1.1.0/24"}, nil), newSlice("echo-1", "echo", "10.1.2.8")
	slice.Endpoints[0].NodeName = &node.Name
	stays, goes := newPod("web-0", "front"), newPod("web-1", "front")
	for _, pod := range []*corev1.Pod{stays, goes} {
		pod.Spec.NodeName, pod.Status.PodIP, pod.Status.PodIPs = "n1", "10.1.2.9", nil
	}
	are := func(when string, want int) {
		t.Helper()
		if n := c.OutsidePrefixes(); n != want || len(c.Findings()) != min(want, 1) {
			t.Errorf("%s: %d IPs are outside, want %d: %v", when, n, want, c.Findings())
		}
	}
	put := func(pods ...*corev1.Pod) {
		c.PutNode(node, now)
		for _, pod := range pods {
			c.PutPod(pod, now)
		}
	}
	put(stays, goes)
	c.PutSlice(slice, now)
	are("with remotes", 3)
	c.SetRemotes(nil, nil, now)
	put(stays, goes) // as Watcher.Replay does
	c.PutSlice(slice, now)
	are("without", 0)
	c.DeletePod("shop", "web-1", now)
	c.DeleteSlice("shop", "echo-1", now)
	c.SetRemotes([]string{"c2"}, nil, now)
	put(stays)
	are("with one again", 1)
}
