package plan

import (
	"fmt"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Owner is who has made a standing interface that bears the name of the device for a cluster.
type Owner int

// Owners.
const (
	// Ours is marked as such: by its alias, or by routes with our protocol number where the alias was taken off. So is
	// a device that was begun and has no key yet.
	Ours Owner = iota
	// SemaphoreWireguards is a device as semaphore-wireguard makes it, with a key and no mark of ours.
	SemaphoreWireguards
	// SomeoneElses is anything else.
	SomeoneElses
)

// OwnerOf says who has made a standing interface.
func OwnerOf(cluster string, stands *wireguard.Device) Owner {
	alias := naming.DeviceAlias(cluster)
	switch {
	case stands.Name != naming.Device(cluster):
		return SomeoneElses
	case stands.Alias == alias || len(stands.Routes) > 0:
		return Ours
	case stands.Alias != "":
		return SomeoneElses
	case stands.PrivateKey == (wgtypes.Key{}) && len(stands.Peers) == 0:
		return Ours
	case stands.Name == alias: // it knows no short names
		return SemaphoreWireguards
	}
	return SomeoneElses
}

// CheckOwner refuses a standing interface that is not ours and that may not become so. adopts says that it is
// semaphore-wireguard's and is to be taken over.
func CheckOwner(cluster string, stands *wireguard.Device, adopt bool) (adopts bool, err error) {
	if stands == nil {
		return false, nil
	}
	switch OwnerOf(cluster, stands) {
	case Ours:
		return false, nil
	case SemaphoreWireguards:
		if adopt {
			return true, nil
		}
		return false, fmt.Errorf("interface %s stands with a key and is not ours: it is left as it is; if it is semaphore-wireguard's, end that on this node and set adoptFrom: [semaphore-wireguard]", stands.Name)
	default:
		return false, fmt.Errorf("interface %s is someone else's: its alias is %q", stands.Name, strings.ToValidUTF8(stands.Alias, "?"))
	}
}
