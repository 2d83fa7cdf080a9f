package migration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// original stands in for semaphore-wireguard on one node and for one remote. It makes the same device, key file,
// annotations, peers and route with the same calls in the same order. It uses none of this project's names.
type original struct {
	local, remote string
	node          string
	port, mtu     int
	podSubnet     string
	keyPath       string
	// own is the node's apiserver, other the remote's.
	own, other kubernetes.Interface
	// on runs functions in the node's network namespace. quietly runs changes of its device.
	on, quietly func(func() error) error

	// ready is closed when the first setup is complete.
	ready chan struct{}
}

func (o *original) device() string { return "wireguard." + o.remote }

// run works until ctx ends, and leaves the device.
func (o *original) run(ctx context.Context) error {
	public, err := o.setUp(ctx)
	if err != nil {
		return fmt.Errorf("device: %w", err)
	}
	if err := o.annotate(ctx, public); err != nil {
		return fmt.Errorf("annotations: %w", err)
	}
	if err := o.on(func() error {
		link, err := netlink.LinkByName(o.device())
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if err := netlink.AddrDel(link, &a); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	// The watch begins at the version of the list.
	nodes, err := o.other.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := o.on(func() error {
		link, err := netlink.LinkByName(o.device())
		if err != nil {
			return err
		}
		_, subnet, err := net.ParseCIDR(o.podSubnet)
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet, Scope: netlink.SCOPE_LINK})
	}); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	if err := o.setPeers(nodes.Items); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	close(o.ready)
	changes, err := o.other.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: nodes.ResourceVersion})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for range changes.ResultChan() {
		nodes, err := o.other.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil {
			err = o.setPeers(nodes.Items)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("peers: %w", err)
		}
	}
	return ctx.Err()
}

// setUp creates or reuses the device, and sets its key and port. It returns the public key.
func (o *original) setUp(ctx context.Context) (public string, err error) {
	err = o.on(func() error {
		link, err := netlink.LinkByName(o.device())
		if err != nil {
			// On a kernel without WireGuard, a userspace process provides the device.
			host, err := kernel.NewHost("auto", "", kernel.DefaultRoutingTable())
			if err != nil {
				return err
			}
			defer host.Close()
			if err := host.Create(ctx, o.device(), "", o.mtu); err != nil {
				return err
			}
		} else {
			if err := netlink.LinkSetMTU(link, o.mtu); err != nil {
				return err
			}
			if err := netlink.LinkSetTxQLen(link, 1000); err != nil {
				return err
			}
		}
		key, err := o.key()
		if err != nil {
			return err
		}
		public = key.PublicKey().String()
		return o.configure(wgtypes.Config{PrivateKey: &key, ListenPort: &o.port})
	})
	return public, err
}

func (o *original) key() (wgtypes.Key, error) {
	file := filepath.Join(o.keyPath, o.device()+".key")
	data, err := os.ReadFile(file)
	if err == nil {
		return wgtypes.ParseKey(string(data)) // spaces and line breaks are rejected
	}
	if !os.IsNotExist(err) {
		return wgtypes.Key{}, err
	}
	if err := os.MkdirAll(o.keyPath, 0o755); err != nil {
		return wgtypes.Key{}, err
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, err
	}
	return key, os.WriteFile(file, []byte(key.String()), 0o600)
}

func (o *original) configure(cfg wgtypes.Config) error {
	wg, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer wg.Close()
	return o.quietly(func() error { return wg.ConfigureDevice(o.device(), cfg) })
}

func annotation(cluster, what string) string { return cluster + ".wireguard.semaphore.uw.io/" + what }

// annotate writes this end of the tunnel for the remote to the own Node.
func (o *original) annotate(ctx context.Context, public string) error {
	node, err := o.own.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	endpoint := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			endpoint = fmt.Sprintf("%s:%d", a.Address, o.port)
			break
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotation(o.remote, "pubKey"): public, annotation(o.remote, "endpoint"): endpoint,
	}}})
	if err != nil {
		return err
	}
	_, err = o.own.CoreV1().Nodes().Patch(ctx, o.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// setPeers sets the peers to the remote's nodes that have both annotations for this cluster.
func (o *original) setPeers(nodes []corev1.Node) error {
	return o.on(func() error {
		wg, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer wg.Close()
		device, err := wg.Device(o.device())
		if err != nil {
			return err
		}
		keepalive := 25 * time.Second
		var peers []wgtypes.PeerConfig
		wanted := map[wgtypes.Key]bool{}
		for _, n := range nodes {
			key, ok := n.Annotations[annotation(o.local, "pubKey")]
			endpoint, also := n.Annotations[annotation(o.local, "endpoint")]
			if !ok || !also {
				continue
			}
			public, err := wgtypes.ParseKey(key)
			if err != nil {
				return err
			}
			at, err := net.ResolveUDPAddr("udp4", endpoint)
			if err != nil {
				return err
			}
			_, cidr, err := net.ParseCIDR(n.Spec.PodCIDR)
			if err != nil {
				return err
			}
			wanted[public] = true
			peers = append(peers, wgtypes.PeerConfig{
				PublicKey: public, Endpoint: at, AllowedIPs: []net.IPNet{*cidr}, PersistentKeepaliveInterval: &keepalive,
				// The original replaces allowed IPs only if the device has a peer.
				ReplaceAllowedIPs: len(device.Peers) > 0,
			})
		}
		for _, p := range device.Peers {
			if !wanted[p.PublicKey] {
				peers = append(peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
			}
		}
		return o.configure(wgtypes.Config{Peers: peers})
	})
}
