package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

type step func(*Table) Changed

func putNode(name string, podCIDRs ...string) step {
	return putNodeOf(1, types.UID(name), name, podCIDRs...)
}

// putNodeOf puts a Node with a creation time, in seconds, and a UID.
func putNodeOf(second int64, uid types.UID, name string, podCIDRs ...string) step {
	return func(t *Table) Changed {
		return t.PutNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, CreationTimestamp: metav1.Unix(second, 0)},
			Spec:       corev1.NodeSpec{PodCIDRs: podCIDRs},
		})
	}
}

func noNode(name string) step { return func(t *Table) Changed { return t.DeleteNode(name) } }

func affine(node, cidr, state string) step { return affineOf(1, "", node, cidr, state) }

func affineOf(second int64, uid types.UID, node, cidr, state string) step {
	return func(t *Table) Changed {
		return t.PutBlock(&kube.BlockAffinity{
			ObjectMeta: metav1.ObjectMeta{Name: node + "-" + cidr, UID: uid, CreationTimestamp: metav1.Unix(second, 0)},
			Spec:       kube.BlockAffinitySpec{Node: node, CIDR: cidr, State: state},
		})
	}
}

func noBlock(node, cidr string) step {
	return func(t *Table) Changed { return t.DeleteBlock(node + "-" + cidr) }
}

// TestAuto: which prefixes nodes have with the source auto.
func TestAuto(t *testing.T) {
	for name, test := range map[string]struct {
		steps []step
		// want and problems are by node.
		want     map[string]string
		problems map[string]string
	}{
		"host-local IPAM, of two families": {
			steps: []step{putNode("n1", "10.1.1.0/24", "fd00:1:0:1::/64"), putNode("n2", "10.1.2.0/24")},
			want:  map[string]string{"n1": "10.1.1.0/24 fd00:1:0:1::/64", "n2": "10.1.2.0/24"},
		},
		"Calico's IPAM, beside the podCIDRs that the controller manager gives all the same": {
			steps: []step{
				putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.2.0/24"),
				affine("n1", "10.1.2.0/26", "confirmed"), affine("n2", "10.1.1.64/26", "confirmed"),
			},
			want: map[string]string{"n1": "10.1.2.0/26", "n2": "10.1.1.64/26"},
		},
		"a node of Calico's IPAM without a pod, whose podCIDR is another's block": {
			steps: []step{putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.2.0/24"), affine("n1", "10.1.2.0/26", "confirmed")},
			want:  map[string]string{"n1": "10.1.2.0/26", "n2": ""},
		},
		"a node of Calico's IPAM without a pod, whose podCIDR is of no pool": {
			steps: []step{putNode("n1", "10.244.1.0/24"), putNode("n2", "10.244.2.0/24"),
				affine("n1", "10.1.2.0/26", "confirmed")},
			want: map[string]string{"n1": "10.1.2.0/26", "n2": ""},
		},
		"a block that its node is about to give up may have pods still": {
			steps: []step{putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.2.0/24"),
				affine("n1", "10.1.2.0/26", "pendingDeletion")},
			want: map[string]string{"n1": "10.1.2.0/26", "n2": ""},
		},
		"a mixed cluster: host-local on n2": {
			steps: []step{putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.2.0/24"),
				affine("n1", "10.1.200.0/26", "confirmed")},
			want: map[string]string{"n1": "10.1.200.0/26", "n2": "10.1.2.0/24"},
		},
		"a pending block is no sign of anything": {
			steps: []step{putNode("n1", "10.1.1.0/24"), affine("n1", "10.1.200.0/26", "pending")},
			want:  map[string]string{"n1": "10.1.1.0/24"},
		},
		"a block that was left behind by a node that is not there": {
			steps: []step{putNode("n1", "10.1.1.0/24"), affine("n9", "10.1.1.0/26", "confirmed")},
			want:  map[string]string{"n1": "10.1.1.0/24"},
		},
		"blocks of load balancers": {
			steps: []step{putNode("n1", "10.1.1.0/24"), affine("virtual:load-balancer", "10.1.1.0/26", "confirmed")},
			want:  map[string]string{"n1": "10.1.1.0/24"},
		},
		"the IPAM changes to Calico's while all runs": {
			steps: []step{
				putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.2.0/24"),
				affine("n1", "10.1.1.0/26", "confirmed"), affine("n1", "10.1.2.128/26", "confirmed"),
				affine("n2", "10.1.2.0/26", "confirmed"),
			},
			want: map[string]string{"n1": "10.1.1.0/26 10.1.2.128/26", "n2": "10.1.2.0/26"},
		},
		"and to host-local": {
			steps: []step{
				putNode("n1", "10.1.1.0/24"), affine("n1", "10.1.1.0/26", "confirmed"), affine("n1", "10.1.9.0/26", "confirmed"),
				noBlock("n1", "10.1.1.0/26"), noBlock("n1", "10.1.9.0/26"),
			},
			want: map[string]string{"n1": "10.1.1.0/24"},
		},
		"podCIDRs count once no node has blocks": {
			steps: []step{
				putNode("n1", "10.1.1.0/24"), putNode("n2", "10.244.2.0/24"), affine("n1", "10.1.9.0/26", "confirmed"),
				noBlock("n1", "10.1.9.0/26"),
			},
			want:     map[string]string{"n1": "10.1.1.0/24", "n2": ""},
			problems: map[string]string{"n2": "spec.podCIDRs: 10.244.2.0/24 lies outside podSubnets"},
		},
		"host-local IPAM, outside the subnets": {
			steps:    []step{putNode("n1", "10.244.1.0/24")},
			want:     map[string]string{"n1": ""},
			problems: map[string]string{"n1": "spec.podCIDRs: 10.244.1.0/24 lies outside podSubnets"},
		},
		"host-local IPAM, two nodes with one": {
			steps:    []step{putNode("n1", "10.1.1.0/24"), putNode("n2", "10.1.1.0/25")},
			want:     map[string]string{"n1": "10.1.1.0/24", "n2": ""},
			problems: map[string]string{"n2": "spec.podCIDRs: 10.1.1.0/25 overlaps that of node n1"},
		},
		"a block that is none": {
			steps:    []step{putNode("n1", "10.1.1.0/24"), affine("n1", "10.1.1.0", "confirmed")},
			want:     map[string]string{"n1": "10.1.1.0/24"},
			problems: map[string]string{"n1": "block affinity n1-10.1.1.0: spec.cidr: "},
		},
		"neither": {steps: []step{putNode("n1")}, want: map[string]string{"n1": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(config.AutoAllowedIPs, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"),
				netip.MustParsePrefix("fd00:1::/48")})
			published := map[string][]string{} // as a client that follows the changes has them
			for _, s := range test.steps {
				for _, step := range s(table).Nodes {
					node := step.Name
					published[node] = step.Prefixes
					for other, has := range published {
						for _, p := range has {
							overlaps := func(q string) bool { return netip.MustParsePrefix(p).Overlaps(netip.MustParsePrefix(q)) }
							if other != node && slices.ContainsFunc(published[node], overlaps) {
								t.Errorf("on the way, %s has %v and %s has %v", node, published[node], other, has)
							}
						}
					}
				}
			}
			for node, want := range test.want {
				if got := strings.Join(table.Prefixes(node), " "); got != want ||
					fmt.Sprint(published[node]) != fmt.Sprint(table.Prefixes(node)) {
					t.Errorf("%s has %q, and who follows the changes has %v; want %q", node, got, published[node], want)
				}
				if got := table.Problem(node); (got == "") != (test.problems[node] == "") ||
					!strings.Contains(got, test.problems[node]) {
					t.Errorf("the problem of %s is %q, not %q", node, got, test.problems[node])
				}
			}
		})
	}
}

// TestOwnersKeepTheirBlocks: a node's prefix cannot be taken by another node's name, by a later claim, or by a write to
// the claim's object. A table that starts with the final objects decides the same.
func TestOwnersKeepTheirBlocks(t *testing.T) {
	for name, test := range map[string]struct {
		from  config.AllowedIPs
		steps []step
		want  map[string]string
	}{
		"a newcomer whose name comes first": {
			steps: []step{putNodeOf(5, "b", "n2", "10.1.1.0/24"), putNodeOf(6, "a", "n1", "10.1.1.0/24")},
			want:  map[string]string{"n1": "", "n2": "10.1.1.0/24"},
		},
		"a newcomer that claims all": {
			steps: []step{putNodeOf(5, "b", "n2", "10.1.1.0/24"), putNodeOf(6, "a", "n1", "10.1.0.0/16")},
			want:  map[string]string{"n1": "", "n2": "10.1.1.0/24"},
		},
		"of one second: the UID decides": {
			steps: []step{putNodeOf(5, "a", "n2", "10.1.1.0/24"), putNodeOf(5, "b", "n1", "10.1.1.0/24")},
			want:  map[string]string{"n1": "", "n2": "10.1.1.0/24"},
		},
		"a node that was deleted and made again is a newcomer": {
			steps: []step{
				putNodeOf(5, "a", "n1", "10.1.1.0/24"), putNodeOf(6, "b", "n2", "10.1.1.0/24"), noNode("n1"),
				putNodeOf(7, "c", "n1", "10.1.1.0/24"),
			},
			want: map[string]string{"n1": "", "n2": "10.1.1.0/24"},
		},
		"also where its deletion was not seen": {
			steps: []step{putNodeOf(5, "a", "n1", "10.1.1.0/24"), putNodeOf(6, "b", "n2", "10.1.1.0/24"),
				putNodeOf(7, "c", "n1", "10.1.1.0/24")},
			want: map[string]string{"n1": "", "n2": "10.1.1.0/24"},
		},
		"of Calico's IPAM too, where a second affinity to a block is made": {
			steps: []step{
				putNodeOf(1, "a", "n1"), putNodeOf(2, "b", "n2"),
				affineOf(5, "d", "n2", "10.1.1.0/26", "confirmed"), affineOf(6, "c", "n1", "10.1.1.0/26", "confirmed"),
			},
			want: map[string]string{"n1": "", "n2": "10.1.1.0/26"},
		},
		"the age of its Node gives nobody a block": {
			from: config.CalicoBlocks,
			steps: []step{
				putNodeOf(2, "b", "n2"), affineOf(5, "c", "n2", "10.1.1.0/26", "confirmed"),
				putNodeOf(1, "a", "n1"), affineOf(5, "d", "n1", "10.1.1.0/26", "confirmed"),
			},
			want: map[string]string{"n1": "", "n2": "10.1.1.0/26"},
		},
		"one that its node gives up passes on": {
			steps: []step{
				putNodeOf(1, "a", "n1"), putNodeOf(2, "b", "n2"),
				affineOf(5, "c", "n2", "10.1.1.0/26", "pendingDeletion"), affineOf(6, "d", "n1", "10.1.1.0/26", "confirmed"),
			},
			want: map[string]string{"n1": "10.1.1.0/26", "n2": ""},
		},
		"when the first goes": {
			steps: []step{putNodeOf(5, "b", "n2", "10.1.1.0/24"), putNodeOf(6, "a", "n1", "10.1.1.0/24"), noNode("n2")},
			want:  map[string]string{"n1": "10.1.1.0/24"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(cmp.Or(test.from, config.AutoAllowedIPs), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
			for _, s := range test.steps {
				s(table)
			}
			for node, want := range test.want {
				if got := strings.Join(table.Prefixes(node), " "); got != want {
					t.Errorf("%s has %q, not %q", node, got, want)
				}
			}
		})
	}
}
