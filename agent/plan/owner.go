package plan

import (
	"fmt"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Owner is the owner of an existing interface with the name of the device for a cluster.
type Owner int

const (
	// Ours has the agent's alias, or routes with its protocol number if the alias was removed. A device without a key
	// that was just created is ours, too.
	Ours Owner = iota
	// Predecessor is a device as semaphore-wireguard creates it, with a key and without the agent's marks.
	Predecessor
	// Foreign is anything else.
	Foreign
)

func OwnerOf(cluster string, existing *kernel.Device) Owner {
	alias := naming.DeviceAlias(cluster)
	switch {
	case existing.Name != naming.Device(cluster):
		return Foreign
	case existing.Alias == alias || len(existing.Routes) > 0:
		return Ours
	case existing.Alias != "":
		return Foreign
	case existing.PrivateKey == (wgtypes.Key{}) && len(existing.Peers) == 0:
		return Ours
	case existing.Name == alias: // semaphore-wireguard has no shortened names
		return Predecessor
	}
	return Foreign
}

// CheckOwner refuses an existing interface that is not ours and may not become so. adopts means that it belongs to
// semaphore-wireguard and is to be adopted.
func CheckOwner(cluster string, existing *kernel.Device, adopt bool) (adopts bool, err error) {
	if existing == nil {
		return false, nil
	}
	switch OwnerOf(cluster, existing) {
	case Ours:
		return false, nil
	case Predecessor:
		if adopt {
			return true, nil
		}
		return false, fmt.Errorf("interface %s exists with a key and does not belong to this agent: it remains unchanged; "+
			"if it belongs to semaphore-wireguard, stop that on this node and set adoptFrom: [semaphore-wireguard]",
			existing.Name)
	default:
		return false, fmt.Errorf("interface %s belongs to another program: its alias is %q", existing.Name,
			strings.ToValidUTF8(existing.Alias, "?"))
	}
}
