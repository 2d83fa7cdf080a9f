package finding

// Objects that a broker refuses, completely or in part.
var (
	Malformed = Define(Refusals, Error, "malformed",
		"the message lacks what its kind needs, or contradicts itself")
	UnknownKind = Define(Refusals, Error, "unknown-kind", "this version does not support the kind")
	InvalidName = Define(Refusals, Error, "invalid-name",
		"a name, namespace, UID, hostname or port name that Kubernetes would reject")
	TooLarge              = Define(Refusals, Error, "too-large", "one object exceeds a limit of one object")
	InvalidCIDR           = Define(Refusals, Error, "invalid-cidr", "a pod CIDR is not a canonical prefix")
	CIDROutsidePodSubnets = Define(Refusals, Error, "cidr-outside-pod-subnets",
		"a pod CIDR lies outside the configured pod subnets of the remote")
	InvalidPublicKey   = Define(Refusals, Error, "invalid-public-key", "not a usable Curve25519 public key")
	InvalidEndpoint    = Define(Refusals, Error, "invalid-endpoint", "a WireGuard endpoint is not a literal IP:port")
	EndpointNotAllowed = Define(Refusals, Error, "endpoint-not-allowed",
		"a WireGuard endpoint is at an address that no node of the remote can have")
	InvalidPort    = Define(Refusals, Error, "invalid-port", "a port or protocol does not exist, or is a duplicate")
	InvalidSetting = Define(Refusals, Warning, "invalid-setting",
		"a Service's setting is out of bounds or unknown; the rest of the Service is accepted")
	InvalidExport = Define(Refusals, Warning, "invalid-export",
		"labels or annotations of a ServiceExport are reserved or too many; the Service is imported without them")
	InvalidAddressType = Define(Refusals, Error, "invalid-address-type",
		"an EndpointSlice is neither of IPv4 nor of IPv6")
	InvalidIP = Define(Refusals, Error, "invalid-ip",
		"not an IP address, or not in canonical form (IPv4-mapped, with a zone)")
	IPOutsidePodSubnets = Define(Refusals, Error, "ip-outside-pod-subnets",
		"an address lies outside the configured pod subnets of the remote")
	KindNotTaken = Define(Refusals, Error, "kind-not-taken",
		"the own broker does not accept this kind from the own cluster's exporter")
	OverQuota = Define(Refusals, Error, "over-quota",
		"the object exceeds a limit of the remote; the replica decides it", Act{Side: Both})
)

// Objects that an exporter does not export, or not completely.
var (
	BadAnnotation = Define(Exports, Error, "bad-annotation", "a node's tunnel endpoint is invalid")
	BadPodCIDR    = Define(Exports, Error, "bad-pod-cidr",
		"a node's pod CIDR or block is invalid, outside the pod subnets, or overlaps another node's")
	ExportTo = Define(Exports, Error, "export-to",
		"the annotation cannot be parsed, or names clusters that are not configured")
	ServiceType       = Define(Exports, Error, "service-type", "the Service has a type without endpoints")
	OutsidePodSubnets = Define(Exports, Error, "outside-pod-subnets",
		"an IP of a pod or an endpoint lies outside the pod subnets")
	OutsideNode = Define(Exports, Error, "outside-node",
		"IPs of endpoints and pods lie outside the prefixes that are exported of their node",
		Act{Command: "kubectl get blockaffinities,ipamconfigurations", Alert: "SemaphoreRemoteAddressesOutsideNodes"})
	ServiceSettings = Define(Exports, Warning, "service-settings",
		"a field, an annotation or a label of a Service is invalid and ignored")
	SetLabels = Define(Exports, Error, "set-labels",
		"a pod has labels of several domains that put it into different sets")
	StrayBlocks = Define(Exports, Warning, "stray-blocks", "Calico assigned blocks to a node that does not exist")
	Unsendable  = Define(Exports, Error, "unsendable", "the object is too large, or contains invalid UTF-8")
)

// Events on Services in the exporting cluster.
var (
	Offered    = Define(Offers, OK, "Offered", "clusters have confirmed the Service")
	NotOffered = Define(Offers, Warning, "NotOffered", "no other cluster receives the Service")
	Refused    = Define(Offers, Warning, "Refused", "a broker refuses the Service, or another object")
)

// Services of remotes that have no mirror, or another than was exported: the codes of a metric.
var (
	TooLong  = Define(Services, Error, "TooLong", "the name of the Service's mirror would be too long")
	Settings = Define(Services, Warning, "Settings",
		"another cluster, which comes first, decides the global service's settings")
	Hostname = Define(Services, Warning, "Hostname", "pods of two clusters have one hostname in a global service")
	Denied   = Define(Services, Error, "Denied", "nothing is imported into the namespace of the exported Service")
	Conflict = Define(Services, Warning, "Conflict",
		"exports of one name differ, and the one that was first observed decides")
)

// Services that a broker accepted, and that have no mirror, or another than was exported: its answer to their exporter.
var (
	OutcomeTooLong    = Define(Outcomes, Error, "name-too-long", "the name of the Service's mirror would be too long")
	OutcomeTaken      = Define(Outcomes, Error, "name-taken", "another Service has the name of the Service's mirror")
	OutcomeNotWritten = Define(Outcomes, Error, "not-written", "the apiserver rejects the mirror")
	OutcomeDiffers    = Define(Outcomes, Warning, "differs",
		"another cluster, which comes first, decides the global service's settings")
	OutcomeDenied = Define(Outcomes, Error, "denied",
		"nothing is imported into the namespace of the Service")
	OutcomeConflict = Define(Outcomes, Warning, "conflict",
		"exports of one name differ, and the one that was first observed decides")
)

// Events of the broker. Its Event on a refused object is Refused.
var (
	NotMirrored          = Define(Events, Error, "NotMirrored", "no Service exists for one that a remote exports")
	GlobalServiceDiffers = Define(Events, Warning, "GlobalServiceDiffers",
		"a global service has other settings than a remote exports")
	NoSet       = Define(Events, Error, "NoSet", "no network set exists for a set that a remote exports")
	PeerRefused = Define(Events, Error, "PeerRefused",
		"a node lost a key, an address or a prefix to another node", Act{Side: Both,
			Command: "kubectl get nodes -o yaml"})
	NameTaken   = Define(Events, Error, "NameTaken", "another object, which is not the broker's, has the name")
	WriteFailed = Define(Events, Error, "WriteFailed", "the apiserver rejects a write",
		Act{Command: "kubectl -n semaphore get events", Alert: "SemaphoreWritesFail"})
	Contested = Define(Events, Warning, "Contested",
		"another writer changes an object each time that the broker restores it")
	Restored = Define(Events, Warning, "Restored",
		"somebody changed or deleted an object, and the broker restored it")
	HeldBack = Define(Events, Warning, "HeldBack", "the brake retains what a remote has withdrawn",
		Act{Side: Remote, Command: "semaphorectl brake release CLUSTER", Alert: "SemaphoreWithdrawalHeld",
			Condition: "Healthy"})
	ClusterGone = Define(Events, Warning, "ClusterGone",
		"a remote is stale, and its nodes do not talk through the tunnels either",
		Act{Side: Remote, Command: "kubectl --context CLUSTER get nodes", Alert: "SemaphoreClusterGone"})
	ClusterBack        = Define(Events, OK, "ClusterBack", "a remote that was gone is heard, or its nodes talk, again")
	LabelDomainsDiffer = Define(Events, Warning, "LabelDomainsDiffer",
		"a remote finds the pods of sets by other labels than this cluster", Act{Side: Both, Command: "semaphorectl check"})
	DrainUnreadable = Define(Events, Warning, "DrainUnreadable", "a drain in the ConfigMap of drains is malformed")
	NotTakenOver    = Define(Events, Warning, "NotTakenOver", "an object of an earlier tool could not be taken over")
	LeftAlone       = Define(Events, Warning, "LeftAlone",
		"objects of an earlier tool stay as they are, because the broker cannot take them over")
)

// Links of the path from one pod to another, as explain examines them.
var (
	PathName = Define(Paths, Error, "path-name",
		"the name means no Service that the remote exports, or no pod")
	PathDNS = Define(Paths, Error, "path-dns",
		"the cluster's CoreDNS does not answer names of the remote's Services")
	PathMirror = Define(Paths, Error, "path-mirror",
		"the mirror Service is missing, belongs to someone else, or lacks the port")
	PathSlices = Define(Paths, Error, "path-slices",
		"no endpoint of the mirror is in use: none is ready, or they are drained, or the remote is gone")
	PathKubeProxy = Define(Paths, Error, "path-kube-proxy",
		"kube-proxy on the client's node does not work")
	PathRoute = Define(Paths, Error, "path-route",
		"packets to the pod are not routed into the device to its cluster")
	PathDevice = Define(Paths, Error, "path-device",
		"the WireGuard device on the client's node is missing, down or not usable")
	PathPeer = Define(Paths, Error, "path-peer",
		"no WireGuard peer, or the wrong one, has the pod's IP among its allowed IPs")
	PathHandshake = Define(Paths, Error, "path-handshake",
		"the two nodes send each other packets, and WireGuard gets no answer")
	PathMTU = Define(Paths, Error, "path-mtu",
		"the path between the two nodes carries smaller packets than the device sends")
	PathFarNode = Define(Paths, Error, "path-far-node",
		"the pod's node is not ready, or does not send the answers back through the tunnel")
	PathPool = Define(Paths, Error, "path-pool",
		"Calico on the client's node changes the source IP of packets to the pod")
	PathSet = Define(Paths, Error, "path-set",
		"a policy admits network sets only, and none holds the other pod's IP")
	PathPolicyOut = Define(Paths, Error, "path-policy-out",
		"a policy of the client's cluster does not let the packet out")
	PathPolicyIn = Define(Paths, Error, "path-policy-in",
		"a policy of the pod's cluster does not let the packet in")
)

// Check: files and certificates.
var (
	Config        = Define(Checks, OK, "config", "the configuration file is valid")
	ConfigInvalid = Define(Checks, Error, "config-invalid",
		"the configuration has an unknown key or an invalid value")
	CertificateUnreadable = Define(Checks, Error, "certificate-unreadable",
		"the file is missing, or contains no certificate")
	CertificateName = Define(Checks, Error, "certificate-name",
		"the certificate is another part's, or of another cluster")
	CertificateChain = Define(Checks, Error, "certificate-chain", "no root of its own cluster signed the certificate")
	KeyUnusable      = Define(Checks, Error, "key-unusable", "the key does not belong to the certificate")
	KeyOpen          = Define(Checks, Warning, "key-open", "everybody on the machine can read the key")
	BundleMissing    = Define(Checks, Error, "bundle-missing", "the roots of a cluster are missing")
	BundleUnreadable = Define(Checks, Error, "bundle-unreadable", "the roots of a cluster are malformed")
	BundleOfAnother  = Define(Checks, Error, "bundle-of-another-cluster",
		"a root in the bundle belongs to another cluster")
	RootIsNoAuthority    = Define(Checks, Error, "root-is-no-authority", "a root is no certificate of an authority")
	Clock                = Define(Checks, OK, "clock", "this machine's clock is synchronised")
	ClockNotSynchronised = Define(Checks, Warning, "clock-not-synchronised", "this machine's clock is not synchronised")
)

// Validity has the codes for the time of one sort of certificates.
type Validity struct{ Good, NotYet, Expired, ExpiresSoon Code }

// Check: the time of certificates.
var (
	Certificate = validity("certificate", "the part's own certificate")
	Root        = validity("root", "a root certificate")
	Peer        = validity("peer", "the certificate that a listener showed")
)

func validity(code Code, what string) Validity {
	return Validity{
		Good:    Define(Checks, OK, code, what+" is valid"),
		NotYet:  Define(Checks, Error, code+"-not-yet-valid", what+" is not valid yet: a clock is behind"),
		Expired: Define(Checks, Error, code+"-expired", what+" has expired"),
		ExpiresSoon: Define(Checks, Warning, code+"-expires-soon",
			what+" is in the last fifth of its life, or its last 30 days"),
	}
}

// Check: connections.
var (
	AddressUnknown  = Define(Checks, Error, "address-unknown", "the name of the address is not in DNS")
	PortClosed      = Define(Checks, Error, "port-closed", "the machine answers, and nothing listens on the port")
	PortUnreachable = Define(Checks, Error, "port-unreachable", "no answer: firewall, route or wrong address")
	NotTLS          = Define(Checks, Error, "not-tls", "a listener does not speak TLS")
	TLSOld          = Define(Checks, Error, "tls-old", "a listener does not speak TLS 1.3")
	TLSFailed       = Define(Checks, Error, "tls-failed", "the TLS handshake failed")
	TLSSilent       = Define(Checks, Error, "tls-silent", "a listener does not answer the TLS handshake")
	TLSCut          = Define(Checks, Error, "tls-cut", "the connection ended during the TLS handshake")
	PeerName        = Define(Checks, Error, "peer-name", "another part or cluster listens at the address")
	PeerUntrusted   = Define(Checks, Error, "peer-untrusted", "no known root signed the listener's certificate")
	PeerNotVerified = Define(Checks, Warning, "peer-not-verified", "there were no roots to verify the listener with")
	NotShown        = Define(Checks, Warning, "not-shown", "there was no certificate to show to the listener")
	RefusedByPeer   = Define(Checks, Error, "refused-by-peer", "the listener rejects our certificate")
	SilentAfterTLS  = Define(Checks, Warning, "silent-after-tls", "the listener agreed on TLS and sends nothing")
	Connection      = Define(Checks, OK, "connection", "both sides agreed on TLS 1.3")
)

// Check: CoreDNS, Calico and policies.
var (
	CoreDNS        = Define(Checks, OK, "coredns", "the Corefile has the server blocks of the remotes")
	CoreDNSMissing = Define(Checks, Warning, "coredns-missing", "the Corefile lacks the server block of a cluster")
	CoreDNSDiffers = Define(Checks, Warning, "coredns-differs",
		"a server block of the Corefile rewrites names differently")
	CoreDNSUnreadable = Define(Checks, Warning, "coredns-unreadable", "the Corefile cannot be read")
	CoreDNSNotRead    = Define(Checks, OK, "coredns-not-read",
		"the Corefile was not read, because no cluster is reached")
	Pools       = Define(Checks, OK, "pools", "no IPPool assigns or announces IPs of remote pods")
	PoolEnabled = Define(Checks, Error, "pool-enabled",
		"an enabled IPPool assigns a remote's IPs to pods of this cluster")
	PoolExported = Define(Checks, Warning, "pool-exported", "BGP announces routes to a remote's pods")
	PoolMissing  = Define(Checks, Warning, "pool-missing",
		"no IPPool has a remote's IPs, so Calico applies SNAT to packets to them")
	StrictAffinity       = Define(Checks, OK, "strict-affinity", "nodes assign IPs of their own blocks only")
	AffinityNotStrict    = Define(Checks, Warning, "affinity-not-strict", "nodes may assign IPs of other nodes' blocks")
	CalicoNotRead        = Define(Checks, OK, "calico-not-read", "pools and IPAM were not read, for want of rights")
	CalicoUnreadable     = Define(Checks, Warning, "calico-unreadable", "pools and IPAM cannot be read")
	Policies             = Define(Checks, OK, "policies", "no rule admits a set of any remote")
	PolicyWithoutCluster = Define(Checks, Warning, "policy-without-cluster", "a rule admits a set of any remote")
	PoliciesNotRead      = Define(Checks, OK, "policies-not-read", "the policies were not read, for want of rights")
	PoliciesUnreadable   = Define(Checks, Warning, "policies-unreadable", "the policies cannot be read")
)

// Verify: what traffic between pods of two clusters shows.
var (
	NotLinked       = Define(Traffic, Error, "not-linked", "one of two clusters has no remote for the other")
	PodUnreachable  = Define(Traffic, Error, "pod-unreachable", "a pod gets no answer from the IP of a remote pod")
	AnotherPod      = Define(Traffic, Error, "another-pod-answers", "another pod answers than the one that was asked")
	SourceRewritten = Define(Traffic, Error, "source-rewritten",
		"a remote pod sees another address than that of the pod that asks")
	NotEncrypted = Define(Traffic, Error, "not-encrypted",
		"packets passed, and not through the WireGuard devices of both nodes")
	LargePayloadLost   = Define(Traffic, Error, "large-payload-lost", "small requests are answered, large ones are not")
	MirrorMissing      = Define(Traffic, Error, "mirror-missing", "a Service that is offered did not become one here")
	ServiceUnreachable = Define(Traffic, Error, "service-unreachable", "a pod gets no answer by a remote Service's name")
	NameUnknown        = Define(Traffic, Error, "name-unknown", "the DNS name of a remote Service does not resolve")
	SetMissing         = Define(Traffic, Error, "set-missing", "a labelled pod is in no set of the other cluster")
	PolicyRefuses      = Define(Traffic, Error, "policy-refuses", "a policy that admits a set refuses its pod")
	PolicyIgnored      = Define(Traffic, Error, "policy-ignored", "a policy that admits a set admits other pods too")
	LeftBehind         = Define(Traffic, Error, "left-behind", "an object that verify made was not removed")
)

// What keeps semaphorectl install and link from writing.
var (
	NameMissing       = Define(Installs, Error, "name-missing", "nothing that was found can be the name of the cluster")
	OtherName         = Define(Installs, Error, "other-name", "the cluster has semaphore by another name")
	OtherInstallation = Define(Installs, Error, "other-installation",
		"semaphore is installed there by other means, such as kubectl or Helm")
	NamespaceEnds  = Define(Installs, Error, "namespace-ends", "the namespace of the parts is being deleted")
	NamespaceTaken = Define(Installs, Error, "namespace-taken",
		"the namespace of the parts is there already and does not say that it is semaphore's")
	PolicyWithoutCalico = Define(Installs, Error, "policy-without-calico",
		"the feature policy is wanted where the CNI is not Calico")
	FeatureRemoved = Define(Installs, Error, "feature-removed",
		"a feature is to be taken away, whose objects, devices and routes would stay")
	NoAddress = Define(Installs, Error, "no-address",
		"other clusters have no address for the broker: its Service has neither a port on the nodes nor a load balancer")
	NodesInside = Define(Installs, Error, "nodes-inside",
		"nodes of another cluster are inside the subnets that this cluster calls its own")
)

// Reasons of the conditions of a RemoteCluster.
var (
	Accepted        = Define(Conditions, OK, "Accepted", "the spec is in effect")
	SubnetsConflict = Define(Conditions, Error, "SubnetsConflict",
		"the subnets overlap those of another cluster", Act{Condition: "Accepted"})
	PrefixConflict = Define(Conditions, Error, "PrefixConflict",
		"mirrors would have the names of another cluster's", Act{Condition: "Accepted"})
	PortConflict = Define(Conditions, Error, "PortConflict",
		"the listen port is that of another remote", Act{Condition: "Accepted"})
	NoFreePort = Define(Conditions, Error, "NoFreePort",
		"all ports of wireguard.portRange are taken", Act{Condition: "Accepted"})
	InvalidSpec = Define(Conditions, Error, "InvalidSpec",
		"a field has a value that cannot be used", Act{Condition: "Accepted"})
	OwnCluster = Define(Conditions, Error, "OwnCluster",
		"the object has the name of this cluster", Act{Condition: "Accepted"})
	NotInEffect = Define(Conditions, Error, "NotInEffect",
		"no spec of the object was ever accepted", Act{Condition: "Connected"})
	Connected      = Define(Conditions, OK, "Connected", "exporter and broker are connected")
	NothingTaken   = Define(Conditions, OK, "NothingTaken", "spec.podSubnets is absent: nothing is imported")
	NeverConnected = Define(Conditions, Error, "NeverConnected",
		"the exporter of the remote cluster has not connected yet", Act{Condition: "Connected", Side: Both})
	Disconnected = Define(Conditions, Error, "Disconnected",
		"exporter and broker of the two clusters are not connected", Act{Condition: "Connected", Side: Both})
	NothingExported = Define(Conditions, OK, "NothingExported", "spec.broker is absent: nothing is exported")
	Healthy         = Define(Conditions, OK, "Healthy", "no object is refused or retained")
	ObjectsRetained = Define(Conditions, Warning, "ObjectsRetained",
		"the brake retains objects that the remote cluster withdrew", Act{Condition: "Healthy", Side: Remote})
	ObjectsRefused = Define(Conditions, Error, "ObjectsRefused",
		"objects of the remote cluster are refused", Act{Condition: "Healthy", Side: Remote})
)
