package plan

import (
	"maps"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Desired is the desired device to one remote cluster with its peers, by node name.
type Desired struct {
	Device *semaphorev1.Device
	Peers  map[string]*semaphorev1.Peer
	// Restored means that an earlier agent saved it, and no broker has sent it since.
	Restored bool
	// Heard are the nodes of a permissive remote to which packets are sent through the tunnel. It is not sent by the
	// broker, but set from the state of the device.
	Heard map[string]bool
}

// Equal reports whether both desire the same, whatever their source.
func (n *Desired) Equal(other *Desired) bool {
	return proto.Equal(n.Device, other.Device) && maps.Equal(n.Heard, other.Heard) &&
		maps.EqualFunc(n.Peers, other.Peers, func(a, b *semaphorev1.Peer) bool { return a == b || proto.Equal(a, b) })
}

// Nodes returns the names of the nodes with these public keys, "" for no peer.
func (n *Desired) Nodes(keys []wgtypes.Key) []string {
	names := make([]string, len(keys))
	at := make(map[string]int, len(keys))
	for i := range keys {
		at[string(keys[i][:])] = i
	}
	for node, peer := range n.Peers {
		if i, ok := at[string(peer.GetWireguard().GetPublicKey())]; ok {
			names[i] = node
		}
	}
	return names
}

// Missing returns those that are wanted and not there.
func Missing[T comparable](wanted, there []T) []T {
	return slices.DeleteFunc(slices.Clone(wanted), func(one T) bool { return slices.Contains(there, one) })
}

// FewPeers is how many peers represent all where these rarely differ, as in their links.
const FewPeers = 64

func Addresses(peers map[string]*semaphorev1.Peer, most int) (to []netip.Addr) {
	for _, node := range slices.Sorted(maps.Keys(peers)) {
		if len(to) == most {
			break
		}
		if at, err := netip.ParseAddrPort(peers[node].GetWireguard().GetAddress()); err == nil {
			to = append(to, at.Addr())
		}
	}
	return to
}
