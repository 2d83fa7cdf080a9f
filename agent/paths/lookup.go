package paths

// A Lookup reports the way of the node's packets to an address of a remote: the route, the device, the peer, the
// session with the peer's node, and the size of the packets that the path to it carries.
//
// It reads the kernel, probes the path to the peer's node as the Monitor does, and asks kube-proxy of this node for
// its health. It changes nothing, keeps nothing and judges nothing: ctl/explain judges.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// kubeProxy is the default of kube-proxy's healthzBindAddress
// (https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/).
const kubeProxy = "http://127.0.0.1:10256/healthz"

// proxyWithin is how long kube-proxy may take to answer.
const proxyWithin = 2 * time.Second

type Lookup struct {
	Peers *Monitor
	// Confirmed is when a broker last confirmed the desired state of a cluster's device, and Problem the device's fault;
	// zero for unknown, and "" for nothing.
	Confirmed func(cluster string) time.Time
	Problem   func(cluster string) string
	// Calls reports whether nodes of a cluster have no address of this node.
	Calls func(cluster string) bool
	// Dropped returns the number of packets to and from remotes that the guard dropped.
	Dropped func() uint64
}

// LookUp answers a request. It fails, with a gRPC status, for an invalid address.
func (n *Lookup) LookUp(ctx context.Context, req *semaphorev1.LookUpPathRequest) (*semaphorev1.LookUpPathResponse,
	error) {
	to, err := netip.ParseAddr(req.GetTo())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "to: %v", err)
	}
	to = to.Unmap()
	var from netip.Addr
	if req.GetFrom() != "" {
		if from, err = netip.ParseAddr(req.GetFrom()); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "from: %v", err)
		}
		from = from.Unmap()
	}
	out := &semaphorev1.LookUpPathResponse{Route: &semaphorev1.RouteLookup{Ruled: true}}
	out.Route.Link, err = n.Peers.kernel.RouteTo(to, from)
	if err != nil {
		out.Route.Error = err.Error()
	}
	if req.GetKubeProxy() {
		out.KubeProxy = proxyHealth(ctx)
	}
	cluster, want := n.remoteOf(to)
	if want == nil {
		return out, nil
	}
	out.Cluster, out.Interface, out.ClearPackets = cluster, naming.Device(cluster), n.Dropped()
	out.DeviceProblem, out.ConfirmedAt = n.Problem(cluster), semaphorev1.Time(n.Confirmed(cluster))
	out.Desired = wanted(want, to)
	d, err := n.Peers.kernel.Device(out.Interface)
	if err != nil {
		out.DeviceProblem = err.Error()
	}
	if err != nil || d == nil {
		return out, nil
	}
	out.DeviceExists, out.DeviceUp, out.Mtu = true, d.Up, uint32(d.MTU)
	out.Route.Ruled = to.Is4() && !d.UnruledV4 || to.Is6() && !d.UnruledV6
	peer, allowed := holderOf(d, to)
	if peer == nil {
		return out, nil
	}
	node := want.Nodes([]wgtypes.Key{peer.PublicKey})[0]
	out.Present = &semaphorev1.PathPeer{Node: node, AllowedIp: allowed.String()}
	if peer.Endpoint != nil {
		out.Present.Endpoint = peer.Endpoint.String()
	}
	out.Session = n.session(cluster, want, d, peer, want.Peers[node].GetWireguard().GetCalls())
	if req.GetMeasure() {
		out.Measurement = measure(ctx, want, peer, d.MTU)
	}
	return out, nil
}

// Locate says how a remote node is programmed on this node: desired, and a peer in the kernel. Other kinds of objects
// have nothing on a node. It never returns an error.
func (n *Lookup) Locate(_ context.Context, req *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
	of, out := req.GetObject(), &debug.Places{}
	if of.GetKind() != semaphorev1.Kind_KIND_NODE {
		return &out.LocateResponse, nil
	}
	for _, cluster := range n.Peers.desired.Clusters() {
		want := n.Peers.desired.Network(cluster)
		if want == nil || want.Peers[of.GetName()] == nil {
			continue
		}
		out.Add(n.kernelOf(cluster, of.GetName(), want.Peers[of.GetName()]))
	}
	return &out.LocateResponse, nil
}

func (n *Lookup) kernelOf(cluster, node string, want *semaphorev1.Peer) debug.Place {
	place := debug.Place{Hop: debug.HopKernel, Object: "peer " + cluster + "/" + node, Cluster: cluster,
		State: debug.PlaceWaiting, Confirmed: time.Now()}
	device := naming.Device(cluster)
	d, err := n.Peers.kernel.Device(device)
	if err != nil || d == nil {
		place.Detail = "there is no device " + device
		if err != nil {
			place.State, place.Detail = debug.PlaceFailed, err.Error()
		}
		return place
	}
	i := slices.IndexFunc(d.Peers, func(p wgtypes.Peer) bool {
		return string(p.PublicKey[:]) == string(want.GetWireguard().GetPublicKey())
	})
	if i < 0 {
		place.Detail = device + " has no peer with its key"
		return place
	}
	p := d.Peers[i]
	var has []string
	for _, ip := range p.AllowedIPs {
		has = append(has, ip.String())
	}
	missing := plan.Missing(want.GetAllowedIps(), has)
	place.Detail = fmt.Sprintf("%s: peer with %d allowed IPs", device, len(has))
	if p.LastHandshakeTime.IsZero() {
		place.Detail += ", no handshake yet"
	} else {
		place.Detail += ", last handshake " + p.LastHandshakeTime.UTC().Format("15:04:05Z")
	}
	if place.State = debug.PlaceDone; len(missing) > 0 {
		place.State = debug.PlaceWaiting
		place.Detail += ", without " + strings.Join(missing, " ")
	}
	return place
}

// remoteOf returns the remote of an address, by the subnets of its device or the prefixes of its peers.
func (n *Lookup) remoteOf(to netip.Addr) (string, *plan.Desired) {
	for _, cluster := range n.Peers.desired.Clusters() {
		want := n.Peers.desired.Network(cluster)
		if want == nil {
			continue // it was removed meanwhile
		}
		if _, ok := longest(want.Device.GetPodSubnets(), to); ok || wanted(want, to) != nil {
			return cluster, want
		}
	}
	return "", nil
}

func longest(prefixes []string, to netip.Addr) (best netip.Prefix, found bool) {
	for _, text := range prefixes {
		p, err := netip.ParsePrefix(text)
		if err == nil && p.Contains(to) && (!found || p.Bits() > best.Bits()) {
			best, found = p, true
		}
	}
	return best, found
}

// wanted returns the peer that the broker desires for an address; nil for none.
func wanted(want *plan.Desired, to netip.Addr) *semaphorev1.PathPeer {
	var out *semaphorev1.PathPeer
	bits := -1
	for node, p := range want.Peers {
		if prefix, ok := longest(p.GetAllowedIps(), to); ok && prefix.Bits() > bits {
			bits = prefix.Bits()
			out = &semaphorev1.PathPeer{Node: node, Endpoint: p.GetWireguard().GetAddress(), AllowedIp: prefix.String()}
		}
	}
	return out
}

// holderOf returns the peer to which the kernel sends packets to an address (cryptokey routing, whitepaper, section 2).
func holderOf(d *kernel.Device, to netip.Addr) (holder *wgtypes.Peer, by netip.Prefix) {
	for i := range d.Peers {
		for _, n := range d.Peers[i].AllowedIPs {
			p := kernel.PrefixOf(&n)
			if p.Contains(to) && (holder == nil || p.Bits() > by.Bits()) {
				holder, by = &d.Peers[i], p
			}
		}
	}
	return holder, by
}

func (n *Lookup) session(cluster string, want *plan.Desired, d *kernel.Device,
	peer *wgtypes.Peer, calls bool) *semaphorev1.PathSession {
	n.Peers.Observe(cluster, want.Device.GetPersistentKeepalive().AsDuration(), d.Peers)
	out := &semaphorev1.PathSession{
		LastHandshake: semaphorev1.Time(peer.LastHandshakeTime),
		ReceivedBytes: uint64(max(peer.ReceiveBytes, 0)), SentBytes: uint64(max(peer.TransmitBytes, 0)),
	}
	state, since, reason := n.Peers.Session(cluster, peer.PublicKey)
	if peer.Endpoint == nil && calls {
		state, since = Silent.String(), peer.LastHandshakeTime
		reason = "it has no address, and has not called this node yet"
		if n.Calls(cluster) {
			reason = fmt.Sprintf("both have no address at which the other could reach it: one of them needs a candidate "+
				"(annotation %s on its Node)", naming.ReachableAt)
		}
	}
	out.State, out.SilentSince, out.Reason = semaphorev1.SessionStateOf(state), semaphorev1.Time(since), reason
	return out
}

func measure(ctx context.Context, want *plan.Desired, peer *wgtypes.Peer,
	needed int) *semaphorev1.PathMeasurement {
	out := &semaphorev1.PathMeasurement{Needed: uint32(needed)}
	switch {
	case want.Device.GetProbePort() == 0:
		out.Problem = "the remote is configured without a port for probes"
		return out
	case peer.Endpoint == nil:
		out.Problem = "the peer has no endpoint"
		return out
	}
	r, err := MeasurePath(ctx, netip.AddrPortFrom(kernel.EndpointOf(peer).Addr(), uint16(want.Device.GetProbePort())),
		min(plan.LeastMTU, needed), needed)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	out.Answered, out.Carries = r.Answered, uint32(r.Carries)
	if r.Answered {
		out.RoundTrip = durationpb.New(r.RoundTrip)
	}
	return out
}

// proxyHealth asks kube-proxy for its health. It answers 503 if it could not set its rules for a while, with the same
// body (k8s.io/kubernetes/pkg/proxy/healthcheck).
func proxyHealth(ctx context.Context) *semaphorev1.ProxyHealth {
	ctx, cancel := context.WithTimeout(ctx, proxyWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, kubeProxy, nil)
	if err != nil {
		return &semaphorev1.ProxyHealth{Problem: err.Error()}
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return &semaphorev1.ProxyHealth{Problem: err.Error()}
	}
	defer answer.Body.Close()
	out := &semaphorev1.ProxyHealth{Answered: true, Healthy: answer.StatusCode == http.StatusOK}
	if !out.Healthy {
		out.Problem = fmt.Sprintf("%s answers %s", kubeProxy, answer.Status)
	}
	var body struct {
		LastUpdated time.Time `json:"lastUpdated"`
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err == nil && json.Unmarshal(data, &body) == nil {
		out.LastUpdated = semaphorev1.Time(body.LastUpdated)
	}
	return out
}
