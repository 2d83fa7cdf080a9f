package finding

// What is wrong with a part itself.
var (
	NotReady = define(Status, Error, "not-ready", "the part does not do its work yet",
		Act{Command: "kubectl -n semaphore get pods", Alert: "SemaphoreNoLeader"})
	NoLeader = define(Status, Error, "no-leader", "no replica leads",
		Act{Command: "kubectl -n semaphore get leases,pods", Alert: "SemaphoreNoLeader"})
	LeaseProblem = define(Status, Error, "lease", "the Lease of the leader election cannot be read or renewed",
		Act{Command: "kubectl -n semaphore get leases -o yaml"})
	UnknownCode = define(Status, Error, "unknown-code", "an agent reports a finding that its broker does not know",
		Act{Command: "semaphorectl status -o wide"})
)

// Remotes, and the streams between clusters.
var (
	Stale = define(Status, Error, "stale", "nothing was heard of a remote for more than 15 s",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreRemoteStale",
			Condition: "Connected"})
	KindStale = define(Status, Error, "kind-stale", "a remote is heard, but not about one kind of objects",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreRemoteStale"})
	NeverHeard = define(Status, Error, "never-heard", "nothing was ever heard of a remote",
		Act{Side: Remote, Command: "semaphorectl check --context CLUSTER", Alert: "SemaphoreRemoteDisconnected",
			Condition: "Connected"})
	NotConnected = define(Status, Error, "not-connected", "there is no stream to a cluster, or from it",
		Act{Side: Both, Command: "semaphorectl check", Alert: "SemaphoreExporterDisconnected", Condition: "Exporting"})
	NotAccepted = define(Status, Error, "not-accepted", "a RemoteCluster is not in effect",
		Act{Command: "kubectl describe remotecluster CLUSTER", Condition: "Accepted"})
	RemotesUnread = define(Status, Error, "remotes-unread", "RemoteClusters are not followed, or one is lost",
		Act{Command: "kubectl get remoteclusters"})
	RemotesUnwritten = define(Status, Warning, "remotes-unwritten",
		"what RemoteClusters say cannot be stored, or their status cannot be written",
		Act{Command: "kubectl -n semaphore get configmaps,roles"})
	StoredRestored = define(Status, Warning, "stored-restored",
		"somebody changed or deleted what a part stores in a ConfigMap, and the part restored it",
		Act{Command: "kubectl -n semaphore get configmaps --show-managed-fields -o yaml"})
	TrustBundle = define(Status, Error, "trust-bundle", "the trust bundle of a RemoteCluster cannot be used",
		Act{Command: "kubectl get remoteclusters -o yaml"})
)

// A broker.
var (
	NoAgent = define(Status, Error, "no-agent", "no agent is attached on a node",
		Act{Command: "kubectl -n semaphore get pods -o wide --field-selector spec.nodeName=NODE",
			Alert: "SemaphoreAgentDisconnected"})
	SilentPairs = define(Status, Error, "silent-pairs", "pairs of nodes do not talk",
		Act{Side: Both, Command: "semaphorectl status --agent NODE", Alert: "SemaphorePeersSilent"})
	NoTunnel = define(Status, Warning, "NoTunnel",
		"ready endpoints of a remote are not used, because no tunnel leads to their nodes",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER"})
	CalicoUnserved = define(Status, Error, "calico", "the types of Calico are not served",
		Act{Command: "kubectl api-resources --api-group=projectcalico.org"})
	MCSUnserved = define(Status, Error, "mcs-unserved", "the Multi-Cluster Services API is not served",
		Act{Command: "kubectl api-resources --api-group=multicluster.x-k8s.io"})
	ClusterProperty = define(Status, Warning, "cluster-property",
		"the About API knows the cluster by another name, or cannot be read",
		Act{Command: "kubectl get clusterproperties"})
	CoreDNSNotCurrent = define(Status, Warning, "coredns-not-current",
		"the broker cannot keep its server blocks of CoreDNS current",
		Act{Command: "kubectl -n kube-system get configmap coredns -o yaml"})
	CoreDNSLost = define(Status, Error, "coredns-lost",
		"somebody removed the server blocks of CoreDNS that semaphorectl added: no name of a remote Service resolves",
		Act{Command: "kubectl -n kube-system get configmap coredns -o yaml"})
	NotLed = define(Status, Error, "not-led", "calls may not reach the replica that leads",
		Act{Command: "kubectl -n semaphore get endpointslices"})
	NodeNetworks = define(Status, Error, "node-networks",
		"the subnets of nodes' pods, or addresses for their devices, are not known",
		Act{Command: "kubectl get blockaffinities,ipamblocks"})
	PeerTooLarge = define(Status, Error, "peer-too-large", "a peer has too many subnets to be sent to agents",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER"})
	StandingPeers = define(Status, Warning, "standing-peers", "the peers cannot be stored for the next broker, or read",
		Act{Command: "kubectl -n semaphore get configmaps,roles"})
	Drains = define(Status, Error, "drains", "drains cannot be read or written",
		Act{Command: "semaphorectl get drains"})
	NodeUnwritten = define(Status, Error, "node-unwritten", "a node cannot be annotated",
		Act{Command: "kubectl describe node NODE"})
	Leftovers = define(Status, Warning, "leftovers", "objects of an earlier tool are not removed yet",
		Act{Command: "kubectl -n semaphore get endpointslices,endpoints"})
	TokenUnreviewed = define(Status, Error, "token-unreviewed", "the token of an agent cannot be reviewed",
		Act{Command: "kubectl -n semaphore logs deploy/semaphore-broker"})
)

// An object that somebody else wrote or changed.
var (
	Leaving = define(Status, Warning, "leaving", "a finalizer of somebody else keeps an object that was deleted",
		Act{Command: "kubectl get KIND NAME -o yaml"})
	Unreadable = define(Status, Warning, "unreadable", "a custom resource has a field that cannot be read",
		Act{Command: "kubectl get KIND NAME -o yaml"})
)

// An exporter.
var (
	NotFollowed = define(Status, Error, "not-followed", "a watch of the own cluster fails",
		Act{Command: "kubectl -n semaphore logs deploy/semaphore-exporter"})
	NoSource = define(Status, Warning, "no-source", "the exporter cannot detect an apiserver that lags",
		Act{Command: "kubectl auth can-i get namespaces/kube-system --as system:serviceaccount:semaphore:semaphore-exporter"})
	ConditionsUnwritten = define(Status, Warning, "conditions-unwritten",
		"the conditions of ServiceExports cannot be written",
		Act{Command: "kubectl auth can-i update serviceexports/status " +
			"--as system:serviceaccount:semaphore:semaphore-exporter -A"})
	OutcomesOmitted = define(Status, Warning, "outcomes-omitted",
		"a broker has outcomes of more services of a cluster than it sends",
		Act{Side: Both, Command: "semaphorectl status --context CLUSTER"})
	ApiserverLags = define(Status, Error, "apiserver-lags",
		"the apiserver returns older objects than the exporter published",
		Act{Command: "kubectl get --raw /readyz?verbose", Alert: "SemaphoreApiserverLags"})
)

// An agent, its devices and its node.
var (
	DeviceStale = define(Status, Error, "device-stale", "no broker confirms what a device is to be",
		Act{Command: "kubectl -n semaphore get pods -l app.kubernetes.io/component=broker",
			Alert: "SemaphoreAgentDisconnected"})
	DeviceFailed = define(Status, Error, "device-failed", "a device, its routes or its addresses are not as desired",
		Act{Command: "semaphorectl status --agent NODE"})
	DeviceUnreadable = define(Status, Error, "device-unreadable", "a device does not exist, or cannot be read",
		Act{Command: "ip -details link show type wireguard"})
	PeerCount = define(Status, Warning, "peer-count", "a device has another number of peers than desired",
		Act{Command: "semaphorectl status --agent NODE", Alert: "SemaphorePeersMissing"})
	PeersContradict = define(Status, Error, "double-key", "peers of a device are invalid, or contradict each other",
		Act{Side: Both, Command: "semaphorectl status -o wide"})
	DeviceContested = define(Status, Error, "contest", "another program keeps changing a device",
		Act{Command: "wg show"})
	KeyFile = define(Status, Error, "key-file", "the file of a device's private key is damaged, open or not saved",
		Act{Command: "ls -l /var/lib/semaphore-wireguard", Alert: "SemaphoreKeyFileProblem"})
	OrphanDevice = define(Status, Warning, "orphan-device", "a device exists for a cluster that the broker does not name",
		Act{Command: "kubectl get remoteclusters"})
	ClearHold = define(Status, Warning, "clear-hold", "a permissive remote is not sent to through the tunnel yet",
		Act{Command: "semaphorectl status --agent NODE"})
	SubnetsFile = define(Status, Error, "subnets-file",
		"the node's subnets file is not usable, or lacks a remote that the node guards",
		Act{Command: "kubectl -n semaphore get configmaps"})
	Unguarded = define(Status, Error, "unguarded", "the guard against clear packets cannot be set",
		Act{Command: "nft list table inet semaphore"})
	RouteSource = define(Status, Error, "route-source", "the source of the node's routes is no address of it",
		Act{Command: "ip address"})
	NodeSettings = define(Status, Error, "node-settings", "a setting of the node's kernel drops packets",
		Act{Command: "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding"})
	NodeUnread = define(Status, Error, "node-unread", "routes, settings or counts of the node cannot be read",
		Act{Command: "semaphorectl status --agent NODE"})
	ShadowRoute = define(Status, Error, "shadow-route", "a route of another program leads packets past a device",
		Act{Command: "ip route show table all"})
	ClockSetBack = define(Status, Error, "clock-set-back",
		"the node's clock was set back, and peers ignore its handshakes",
		Act{Command: "semaphorectl status --agent NODE"})
	AgentCache = define(Status, Warning, "agent-cache", "the agent's state file cannot be read or written",
		Act{Command: "df /var/lib/semaphore-wireguard"})
)

// semaphorectl, of a whole mesh.
var (
	Unreached = define(Status, Error, "unreached", "semaphorectl cannot ask a part, or its cluster",
		Act{Side: Both, Command: "kubectl --context CONTEXT -n semaphore get pods"})
	OneName = define(Status, Error, "one-name", "clusters of several contexts say that they have one name",
		Act{Side: Both, Command: "kubectl config get-contexts"})
	VersionSkew = define(Status, Warning, "version-skew", "parts of the mesh have different versions",
		Act{Side: Both, Command: "semaphorectl status -o wide"})
)
