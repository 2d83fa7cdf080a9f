package kube

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// ErrNoIPAM is the error if a cluster serves IPAMBlocks or IPReservations in neither group.
var ErrNoIPAM = errors.New("the cluster serves IPAMBlocks and IPReservations (Calico 3.22 or later, with its data in " +
	"this cluster) in neither projectcalico.org/v3 nor crd.projectcalico.org/v1")

// IPAMBlock is a block of Calico's IPAM, with the fields that show whether an address of it is free
// (projectcalico/calico, libcalico-go/lib/apis/v3, IPAMBlockSpec).
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              IPAMBlockSpec `json:"spec"`
}

type IPAMBlockSpec struct {
	CIDR string `json:"cidr"`
	// Affinity is "host:" and the name of the node whose block it is.
	Affinity *string `json:"affinity,omitempty"`
	// Allocations has an entry for each address of the block, nil for a free one.
	Allocations []*int `json:"allocations"`
	// Unallocated are the indices of the free addresses: the first is assigned next.
	Unallocated []int `json:"unallocated"`
	// Deleted is true for a block that counts as absent.
	Deleted Word `json:"deleted,omitempty"`
}

func (b *IPAMBlock) DeepCopyObject() runtime.Object {
	out := *b
	b.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Allocations = append([]*int(nil), b.Spec.Allocations...)
	out.Spec.Unallocated = append([]int(nil), b.Spec.Unallocated...)
	return &out
}

func (b *IPAMBlock) OfNode(node string) bool {
	return b.Spec.Affinity != nil && *b.Spec.Affinity == "host:"+node && b.Spec.Deleted != "true"
}

// Free reports whether an address of the block is not assigned.
func (b *IPAMBlock) Free(addr netip.Addr) bool {
	prefix, err := netip.ParsePrefix(b.Spec.CIDR)
	if err != nil || !prefix.Contains(addr) {
		return false
	}
	at := prefix.Masked().Addr()
	for _, allocation := range b.Spec.Allocations {
		if at == addr {
			return allocation == nil
		}
		at = at.Next()
	}
	return false
}

// LastFree returns the free addresses of the block, in reverse order of assignment.
func (b *IPAMBlock) LastFree() []netip.Addr {
	prefix, err := netip.ParsePrefix(b.Spec.CIDR)
	if err != nil {
		return nil
	}
	var all, out []netip.Addr
	// The lists come from another writer, and may be longer than the block or name an address twice.
	for at, i := prefix.Masked().Addr(), 0; i < len(b.Spec.Allocations) && prefix.Contains(at); at, i = at.Next(), i+1 {
		all = append(all, at)
	}
	listed := make([]bool, len(all))
	for i := len(b.Spec.Unallocated) - 1; i >= 0; i-- {
		if ordinal := b.Spec.Unallocated[i]; ordinal >= 0 && ordinal < len(all) && b.Spec.Allocations[ordinal] == nil &&
			!listed[ordinal] {
			listed[ordinal] = true
			out = append(out, all[ordinal])
		}
	}
	return out
}

// CalicoIPAM reads blocks, and reads and writes IPReservations, in the groups in which the cluster serves them.
type CalicoIPAM struct {
	blocks, reservations *CalicoClient
}

// NewCalicoIPAM discovers which groups the cluster serves. The error is ErrNoIPAM if it serves none of them.
func NewCalicoIPAM(cfg *rest.Config) (*CalicoIPAM, error) {
	out := &CalicoIPAM{}
	for resource, client := range map[string]**CalicoClient{"ipamblocks": &out.blocks,
		"ipreservations": &out.reservations} {
		gv, err := calicoGroup(context.Background(), cfg, resource, ErrNoIPAM)
		if err != nil {
			return nil, err
		}
		if *client, err = CalicoIn(cfg, gv); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Block reads the block of a CIDR. It fails if there is none, or the object cannot be read as a block.
func (c *CalicoIPAM) Block(ctx context.Context, cidr netip.Prefix) (*IPAMBlock, error) {
	name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String()) // libcalico-go/lib/names, CIDRToName
	return CalicoResource[*IPAMBlock]{client: c.blocks, resource: "ipamblocks", kind: "IPAMBlock"}.Get(ctx, name)
}

func (c *CalicoIPAM) Reservations() CalicoResource[*calicov3.IPReservation] {
	return c.reservations.IPReservations()
}
