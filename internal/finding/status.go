package finding

// Problems of a part itself.
var (
	NotReady = define(Status, Error, "NotReady", "the part does not do its work yet",
		Act{Command: "kubectl -n semaphore get pods"})
	NoLeader = define(Status, Error, "NoLeader", "no replica leads",
		Act{Command: "kubectl -n semaphore get leases,pods", Alert: "SemaphoreNoLeader"})
	LeaseFailed = define(Status, Error, "LeaseFailed", "the Lease of the leader election cannot be read or renewed",
		Act{Command: "kubectl -n semaphore get leases -o yaml"})
	UnknownCode = define(Status, Error, "UnknownCode", "an agent reports a finding that its broker does not know",
		Act{Command: "semaphorectl status -o wide"})
)

// Remotes, and the streams between clusters.
var (
	Stale = define(Status, Error, "Stale", "nothing was heard of a remote for more than 15 s",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreRemoteStale",
			Condition: "Connected"})
	KindStale = define(Status, Error, "KindStale", "a remote is heard, but not about one kind of objects",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreRemoteStale"})
	NeverConnected = define(Status, Error, "NeverConnected", "the exporter of a remote has not connected yet",
		Act{Side: Remote, Command: "semaphorectl check --context CLUSTER", Alert: "SemaphoreRemoteDisconnected",
			Condition: "Connected"})
	Disconnected = define(Status, Error, "Disconnected", "there is no stream to a cluster, or from it",
		Act{Side: Both, Command: "semaphorectl check", Alert: "SemaphoreExporterDisconnected", Condition: "Exporting"})
	RemotesUnread = define(Status, Error, "RemotesUnread", "RemoteClusters are not followed, or one is lost",
		Act{Command: "kubectl get remoteclusters"})
	RemotesUnwritten = define(Status, Warning, "RemotesUnwritten",
		"what RemoteClusters say cannot be stored, or their status cannot be written",
		Act{Command: "kubectl -n semaphore get configmaps,roles"})
	StoredRestored = define(Status, Warning, "StoredRestored",
		"somebody changed or deleted what a part stores in a ConfigMap, and the part restored it",
		Act{Command: "kubectl -n semaphore get configmaps --show-managed-fields -o yaml"})
	TrustBundleUnusable = define(Status, Error, "TrustBundleUnusable",
		"the trust bundle of a RemoteCluster cannot be used",
		Act{Command: "kubectl get remoteclusters -o yaml"})
)

// A broker.
var (
	NoAgent = define(Status, Error, "NoAgent", "no agent is attached on a node",
		Act{Command: "kubectl -n semaphore get pods -o wide --field-selector spec.nodeName=NODE"})
	SilentPairs = define(Status, Error, "SilentPairs", "pairs of nodes do not talk",
		Act{Side: Both, Command: "semaphorectl status --agent NODE", Alert: "SemaphorePeersSilent"})
	NoTunnel = define(Status, Warning, "NoTunnel",
		"ready endpoints of a remote are not used, because no tunnel leads to their nodes",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER"})
	CalicoUnserved = define(Status, Error, "CalicoUnserved", "the types of Calico are not served",
		Act{Command: "kubectl api-resources --api-group=projectcalico.org"})
	MCSUnserved = define(Status, Error, "MCSUnserved", "the Multi-Cluster Services API is not served",
		Act{Command: "kubectl api-resources --api-group=multicluster.x-k8s.io"})
	ClusterPropertyWrong = define(Status, Warning, "ClusterPropertyWrong",
		"the About API knows the cluster by another name, or cannot be read",
		Act{Command: "kubectl get clusterproperties"})
	CoreDNSNotCurrent = define(Status, Warning, "CoreDNSNotCurrent",
		"the broker cannot keep its server blocks of CoreDNS current",
		Act{Command: "kubectl -n kube-system get configmap coredns -o yaml"})
	CoreDNSLost = define(Status, Error, "CoreDNSLost",
		"somebody removed the server blocks of CoreDNS that semaphorectl added: no name of a remote Service resolves",
		Act{Command: "kubectl -n kube-system get configmap coredns -o yaml"})
	NotLed = define(Status, Error, "NotLed", "calls may not reach the replica that leads",
		Act{Command: "kubectl -n semaphore get endpointslices"})
	NodeNetworksUnknown = define(Status, Error, "NodeNetworksUnknown",
		"the subnets of nodes' pods, or addresses for their devices, are not known",
		Act{Command: "kubectl get blockaffinities,ipamblocks"})
	PeerTooLarge = define(Status, Error, "PeerTooLarge", "a peer has too many subnets to be sent to agents",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER"})
	PeersNotStored = define(Status, Warning, "PeersNotStored", "the peers cannot be stored for the next broker, or read",
		Act{Command: "kubectl -n semaphore get configmaps,roles"})
	DrainsFailed = define(Status, Error, "DrainsFailed", "drains cannot be read or written",
		Act{Command: "semaphorectl get drains"})
	NodeUnwritten = define(Status, Error, "NodeUnwritten", "a node cannot be annotated",
		Act{Command: "kubectl describe node NODE"})
	Leftovers = define(Status, Warning, "Leftovers", "objects of an earlier tool are not removed yet",
		Act{Command: "kubectl -n semaphore get endpointslices,endpoints"})
	TokenUnreviewed = define(Status, Error, "TokenUnreviewed", "the token of an agent cannot be reviewed",
		Act{Command: "kubectl -n semaphore logs deploy/semaphore-broker"})
)

// An object that another writer wrote or changed.
var (
	Leaving = define(Status, Warning, "Leaving", "a finalizer of somebody else keeps an object that was deleted",
		Act{Command: "kubectl get KIND NAME -o yaml"})
	Unreadable = define(Status, Warning, "Unreadable", "a custom resource has a field that cannot be read",
		Act{Command: "kubectl get KIND NAME -o yaml"})
)

// An exporter, and a broker's watch.
var (
	WatchFailed = define(Status, Error, "WatchFailed", "a watch of the own cluster fails",
		Act{Command: "semaphorectl status"})
	NoSource = define(Status, Warning, "NoSource", "the exporter cannot detect an apiserver that lags",
		Act{Command: "kubectl auth can-i get namespaces/kube-system --as system:serviceaccount:semaphore:semaphore-exporter"})
	ConditionsUnwritten = define(Status, Warning, "ConditionsUnwritten",
		"the conditions of ServiceExports cannot be written",
		Act{Command: "kubectl auth can-i update serviceexports/status " +
			"--as system:serviceaccount:semaphore:semaphore-exporter -A"})
	OutcomesOmitted = define(Status, Warning, "OutcomesOmitted",
		"a broker has outcomes of more services of a cluster than it sends",
		Act{Side: Both, Command: "semaphorectl status --context CLUSTER"})
	ApiserverLags = define(Status, Error, "ApiserverLags",
		"the apiserver returns older objects than the exporter published",
		Act{Command: "kubectl get --raw /readyz?verbose", Alert: "SemaphoreApiserverLags"})
)

// An agent, its devices and its node.
var (
	DeviceStale = define(Status, Error, "DeviceStale", "no broker confirms what a device is to be",
		Act{Command: "kubectl -n semaphore get pods -l app.kubernetes.io/component=broker"})
	DeviceFailed = define(Status, Error, "DeviceFailed", "a device, its routes or its addresses are not as desired",
		Act{Command: "semaphorectl status --agent NODE"})
	NoWireGuard = define(Status, Error, "NoWireGuard",
		"a node's kernel has no WireGuard, and its agent has no container that runs it",
		Act{Command: "semaphorectl install --components userspace-wireguard"})
	DeviceUnreadable = define(Status, Error, "DeviceUnreadable", "a device does not exist, or cannot be read",
		Act{Command: "ip -details link show type wireguard", Alert: NoAlert})
	PeerCountDiffers = define(Status, Warning, "PeerCountDiffers", "a device has another number of peers than desired",
		Act{Command: "semaphorectl status --agent NODE", Alert: "SemaphorePeersMissing"})
	PeersContradict = define(Status, Error, "PeersContradict", "peers of a device are invalid, or contradict each other",
		Act{Side: Both, Command: "semaphorectl status -o wide"})
	DeviceContested = define(Status, Error, "DeviceContested", "another program keeps changing a device",
		Act{Command: "wg show"})
	KeyFileProblem = define(Status, Error, "KeyFileProblem",
		"the file of a device's private key is damaged, open or not saved",
		Act{Command: "ls -l /var/lib/semaphore-wireguard", Alert: "SemaphoreKeyFileProblem"})
	OrphanDevice = define(Status, Warning, "OrphanDevice", "a device exists for a cluster that the broker does not name",
		Act{Command: "kubectl get remoteclusters"})
	ClearHold = define(Status, Warning, "ClearHold", "a permissive remote is not sent to through the tunnel yet",
		Act{Command: "semaphorectl status --agent NODE"})
	SubnetsFileProblem = define(Status, Error, "SubnetsFileProblem",
		"the node's subnets file is not usable, or lacks a remote that the node guards",
		Act{Command: "kubectl -n semaphore get configmaps"})
	Unguarded = define(Status, Error, "Unguarded", "the guard against clear packets cannot be set",
		Act{Command: "nft list table inet semaphore"})
	RouteSourceMissing = define(Status, Error, "RouteSourceMissing", "the source of the node's routes is no address of it",
		Act{Command: "ip address"})
	NodeDropsPackets = define(Status, Error, "NodeDropsPackets", "a setting of the node's kernel drops packets",
		Act{Command: "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding"})
	NodeUnread = define(Status, Error, "NodeUnread", "routes, settings or counts of the node cannot be read",
		Act{Command: "semaphorectl status --agent NODE"})
	ShadowRoute = define(Status, Error, "ShadowRoute", "a route of another program leads packets past a device",
		Act{Command: "ip route show table all"})
	ClockSetBack = define(Status, Error, "ClockSetBack",
		"the node's clock was set back, and peers ignore its handshakes",
		Act{Command: "semaphorectl status --agent NODE"})
	StateFileFailed = define(Status, Warning, "StateFileFailed", "the agent's state file cannot be read or written",
		Act{Command: "df /var/lib/semaphore-wireguard"})
)

// semaphorectl, of a whole mesh.
var (
	Unreached = define(Status, Error, "Unreached", "semaphorectl cannot ask a part, or its cluster",
		Act{Side: Both, Command: "kubectl --context CONTEXT -n semaphore get deployments,daemonsets,pods", Alert: NoAlert})
	ClusterNameTaken = define(Status, Error, "ClusterNameTaken", "two clusters have, or would have, one name",
		Act{Side: Both, Command: "kubectl config get-contexts", Alert: NoAlert})
	VersionSkew = define(Status, Warning, "VersionSkew", "parts of the mesh have different versions",
		Act{Side: Both, Command: "semaphorectl status -o wide", Alert: NoAlert})
)
