package finding

// Objects that a broker refuses, completely or in part.
var (
	Malformed = define(Refusals, Error, "malformed",
		"the message lacks what its kind needs, or contradicts itself")
	UnknownKind = define(Refusals, Error, "unknown-kind", "this version does not support the kind")
	InvalidName = define(Refusals, Error, "invalid-name",
		"a name, namespace, UID, hostname or port name that Kubernetes would reject")
	TooLarge              = define(Refusals, Error, "too-large", "one object exceeds a limit of one object")
	InvalidCIDR           = define(Refusals, Error, "invalid-cidr", "a pod CIDR is not a canonical prefix")
	CIDROutsidePodSubnets = define(Refusals, Error, "cidr-outside-pod-subnets",
		"a pod CIDR lies outside the configured pod subnets of the remote")
	InvalidPublicKey   = define(Refusals, Error, "invalid-public-key", "not a usable Curve25519 public key")
	InvalidEndpoint    = define(Refusals, Error, "invalid-endpoint", "a WireGuard endpoint is not a literal IP:port")
	EndpointNotAllowed = define(Refusals, Error, "endpoint-not-allowed",
		"a WireGuard endpoint is at an address that no node of the remote can have")
	InvalidPort    = define(Refusals, Error, "invalid-port", "a port or protocol does not exist, or is a duplicate")
	InvalidSetting = define(Refusals, Warning, "invalid-setting",
		"a Service's setting is out of bounds or unknown; the rest of the Service is accepted")
	InvalidExport = define(Refusals, Warning, "invalid-export",
		"labels or annotations of a ServiceExport are reserved or too many; the Service is imported without them")
	InvalidAddressType = define(Refusals, Error, "invalid-address-type",
		"an EndpointSlice is neither of IPv4 nor of IPv6")
	InvalidIP = define(Refusals, Error, "invalid-ip",
		"not an IP address, or not in canonical form (IPv4-mapped, with a zone)")
	IPOutsidePodSubnets = define(Refusals, Error, "ip-outside-pod-subnets",
		"an address lies outside the configured pod subnets of the remote")
	KindNotTaken = define(Refusals, Error, "kind-not-taken",
		"the own broker does not accept this kind from the own cluster's exporter")
	OverQuota = define(Refusals, Error, "over-quota",
		"the object exceeds a limit of the remote; the replica decides it", Act{Side: Both})
)

// Objects that an exporter does not export, or not completely.
var (
	BadAnnotation = define(Exports, Error, "bad-annotation", "a node's tunnel endpoint is invalid")
	BadPodCIDR    = define(Exports, Error, "bad-pod-cidr",
		"a node's pod CIDR or block is invalid, outside the pod subnets, or overlaps another node's")
	ExportTo = define(Exports, Error, "export-to",
		"the annotation cannot be parsed, or names clusters that are not configured")
	ServiceType       = define(Exports, Error, "service-type", "the Service has a type without endpoints")
	OutsidePodSubnets = define(Exports, Error, "outside-pod-subnets",
		"an IP of a pod or an endpoint lies outside the pod subnets")
	OutsideNode = define(Exports, Error, "outside-node",
		"IPs of endpoints and pods lie outside the prefixes that are exported of their node",
		Act{Command: "kubectl get blockaffinities,ipamconfigurations", Alert: "SemaphoreRemoteAddressesOutsideNodes"})
	ServiceSettings = define(Exports, Warning, "service-settings",
		"a field, an annotation or a label of a Service is invalid and ignored")
	SetLabels = define(Exports, Error, "set-labels",
		"a pod has labels of several domains that put it into different sets")
	StrayBlocks = define(Exports, Warning, "stray-blocks", "Calico assigned blocks to a node that does not exist")
	Unsendable  = define(Exports, Error, "unsendable", "the object is too large, or contains invalid UTF-8")
)

// Events on Services in the exporting cluster.
var (
	Offered    = define(Offers, OK, "Offered", "clusters have confirmed the Service")
	NotOffered = define(Offers, Warning, "NotOffered", "no other cluster receives the Service")
	Refused    = define(Offers, Warning, "Refused", "a broker refuses the Service, or another object")
)

// Services of remotes that have no mirror, or another than was exported: the codes of a metric.
var (
	TooLong  = define(Services, Error, "TooLong", "the name of the Service's mirror would be too long")
	Settings = define(Services, Warning, "Settings",
		"another cluster, which comes first, decides the global service's settings")
	Hostname = define(Services, Warning, "Hostname", "pods of two clusters have one hostname in a global service")
	Denied   = define(Services, Error, "Denied", "nothing is imported into the namespace of the exported Service")
	Conflict = define(Services, Warning, "Conflict",
		"exports of one name differ, and the one that was first observed decides")
	OwnName = define(Services, Warning, "OwnName",
		"a Service asks for endpoints of other clusters under its own name, and does not get them as it asks")
)

// Services that a broker accepted, and that have no mirror, or another than was exported: its answer to their exporter.
var (
	OutcomeTooLong    = define(Outcomes, Error, "name-too-long", "the name of the Service's mirror would be too long")
	OutcomeTaken      = define(Outcomes, Error, "name-taken", "another Service has the name of the Service's mirror")
	OutcomeNotWritten = define(Outcomes, Error, "not-written", "the apiserver rejects the mirror")
	OutcomeDiffers    = define(Outcomes, Warning, "differs",
		"another cluster, which comes first, decides the global service's settings")
	OutcomeDenied = define(Outcomes, Error, "denied",
		"nothing is imported into the namespace of the Service")
	OutcomeOwnName = define(Outcomes, Warning, "own-name",
		"the Service's own name does not lead to other clusters as it asks")
	OutcomeConflict = define(Outcomes, Warning, "conflict",
		"exports of one name differ, and the one that was first observed decides")
)

// Events of the broker. Its Event on a refused object is Refused.
var (
	NotMirrored          = define(Events, Error, "NotMirrored", "no Service exists for one that a remote exports")
	GlobalServiceDiffers = define(Events, Warning, "GlobalServiceDiffers",
		"a global service has other settings than a remote exports")
	NoSet       = define(Events, Error, "NoSet", "no network set exists for a set that a remote exports")
	PeerRefused = define(Events, Error, "PeerRefused",
		"a node lost a key, an address or a prefix to another node", Act{Side: Both,
			Command: "kubectl get nodes -o yaml"})
	NameTaken   = define(Events, Error, "NameTaken", "another object, which is not the broker's, has the name")
	WriteFailed = define(Events, Error, "WriteFailed", "the apiserver rejects a write",
		Act{Command: "kubectl -n semaphore get events", Alert: "SemaphoreWritesFail"})
	Contested = define(Events, Warning, "Contested",
		"another writer changes an object each time that the broker restores it")
	Restored = define(Events, Warning, "Restored",
		"somebody changed or deleted an object, and the broker restored it")
	SourceRefused = define(Events, Error, "SourceRefused",
		"another cluster, with the certificate of one that stands, is refused",
		Act{Side: Both, Command: "kubectl describe remotecluster CLUSTER", Condition: "Healthy"})
	HeldBack = define(Events, Warning, "HeldBack", "the brake retains what a remote has withdrawn",
		Act{Side: Remote, Command: "semaphorectl release CLUSTER", Alert: "SemaphoreWithdrawalHeld",
			Condition: "Healthy"})
	ClusterGone = define(Events, Warning, "ClusterGone",
		"a remote is stale, and its nodes do not answer handshakes either",
		Act{Side: Remote, Command: "kubectl --context CLUSTER get nodes", Alert: "SemaphoreClusterGone"})
	ServedElsewhere = define(Events, Warning, "ServedElsewhere",
		"the own name of a Service leads to endpoints of other clusters, because the own one has too few",
		Act{Command: "kubectl describe service NAME", Alert: "SemaphoreServedByOtherCluster"})
	ServedHere         = define(Events, OK, "ServedHere", "the own name of a Service leads to its own cluster alone again")
	ClusterBack        = define(Events, OK, "ClusterBack", "a remote that was gone is heard, or its nodes talk, again")
	LabelDomainsDiffer = define(Events, Warning, "LabelDomainsDiffer",
		"a remote finds the pods of sets by other labels than this cluster", Act{Side: Both, Command: "semaphorectl check"})
	EndpointMoved = define(Events, Warning, "EndpointMoved",
		"the published endpoint of a node changed to another of its addresses", Act{Command: "kubectl get nodes -o wide"})
	DrainUnreadable = define(Events, Warning, "DrainUnreadable", "a drain in the ConfigMap of drains is malformed")
	NotTakenOver    = define(Events, Warning, "NotTakenOver", "an object of an earlier tool could not be taken over")
	LeftAlone       = define(Events, Warning, "LeftAlone",
		"objects of an earlier tool stay as they are, because the broker cannot take them over")
)

// Links of the path from one pod to another, as explain examines them.
var (
	PathName = define(Paths, Error, "path-name",
		"the name means no Service that the remote exports, or no pod")
	PathDNS = define(Paths, Error, "path-dns",
		"the cluster's CoreDNS does not answer names of the remote's Services")
	PathMirror = define(Paths, Error, "path-mirror",
		"the mirror Service is missing, belongs to someone else, or lacks the port")
	PathSlices = define(Paths, Error, "path-slices",
		"no endpoint of the mirror is in use: none is ready, or they are drained, or the remote is gone")
	PathKubeProxy = define(Paths, Error, "path-kube-proxy",
		"kube-proxy on the client's node does not work")
	PathRoute = define(Paths, Error, "path-route",
		"packets to the pod are not routed into the device to its cluster")
	PathDevice = define(Paths, Error, "path-device",
		"the WireGuard device on the client's node is missing, down or not usable")
	PathPeer = define(Paths, Error, "path-peer",
		"no WireGuard peer, or the wrong one, has the pod's IP among its allowed IPs")
	PathHandshake = define(Paths, Error, "path-handshake",
		"the two nodes send each other packets, and WireGuard gets no answer")
	PathMTU = define(Paths, Error, "path-mtu",
		"the path between the two nodes carries smaller packets than the device sends")
	PathFarNode = define(Paths, Error, "path-far-node",
		"the pod's node is not ready, or does not send the answers back through the tunnel")
	PathPool = define(Paths, Error, "path-pool",
		"Calico on the client's node changes the source IP of packets to the pod")
	PathSet = define(Paths, Error, "path-set",
		"a policy admits network sets only, and none holds the other pod's IP")
	PathPolicyOut = define(Paths, Error, "path-policy-out",
		"a policy of the client's cluster does not let the packet out")
	PathPolicyIn = define(Paths, Error, "path-policy-in",
		"a policy of the pod's cluster does not let the packet in")
)

// Check: files and certificates.
var (
	Config        = define(Checks, OK, "config", "the configuration file is valid")
	ConfigInvalid = define(Checks, Error, "config-invalid",
		"the configuration has an unknown key or an invalid value")
	CertificateUnreadable = define(Checks, Error, "certificate-unreadable",
		"the file is missing, or contains no certificate")
	CertificateName = define(Checks, Error, "certificate-name",
		"the certificate is another part's, or of another cluster")
	CertificateChain = define(Checks, Error, "certificate-chain", "no root of its own cluster signed the certificate")
	KeyUnusable      = define(Checks, Error, "key-unusable", "the key does not belong to the certificate")
	KeyOpen          = define(Checks, Warning, "key-open", "everybody on the machine can read the key")
	BundleMissing    = define(Checks, Error, "bundle-missing", "the roots of a cluster are missing")
	BundleUnreadable = define(Checks, Error, "bundle-unreadable", "the roots of a cluster are malformed")
	BundleOfAnother  = define(Checks, Error, "bundle-of-another-cluster",
		"a root in the bundle belongs to another cluster")
	RootIsNoAuthority    = define(Checks, Error, "root-is-no-authority", "a root is no certificate of an authority")
	Clock                = define(Checks, OK, "clock", "this machine's clock is synchronised")
	ClockNotSynchronised = define(Checks, Warning, "clock-not-synchronised", "this machine's clock is not synchronised")
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
		Good:    define(Checks, OK, code, what+" is valid"),
		NotYet:  define(Checks, Error, code+"-not-yet-valid", what+" is not valid yet: a clock is behind"),
		Expired: define(Checks, Error, code+"-expired", what+" has expired"),
		ExpiresSoon: define(Checks, Warning, code+"-expires-soon",
			what+" is in the last fifth of its life, or its last 30 days"),
	}
}

// Check: connections.
var (
	AddressUnknown  = define(Checks, Error, "address-unknown", "the name of the address is not in DNS")
	PortClosed      = define(Checks, Error, "port-closed", "the machine answers, and nothing listens on the port")
	PortUnreachable = define(Checks, Error, "port-unreachable", "no answer: firewall, route or wrong address")
	NotTLS          = define(Checks, Error, "not-tls", "a listener does not speak TLS")
	TLSOld          = define(Checks, Error, "tls-old", "a listener does not speak TLS 1.3")
	TLSFailed       = define(Checks, Error, "tls-failed", "the TLS handshake failed")
	TLSSilent       = define(Checks, Error, "tls-silent", "a listener does not answer the TLS handshake")
	TLSCut          = define(Checks, Error, "tls-cut", "the connection ended during the TLS handshake")
	PeerName        = define(Checks, Error, "peer-name", "another part or cluster listens at the address")
	PeerUntrusted   = define(Checks, Error, "peer-untrusted", "no known root signed the listener's certificate")
	PeerNotVerified = define(Checks, Warning, "peer-not-verified", "there were no roots to verify the listener with")
	NotShown        = define(Checks, Warning, "not-shown", "there was no certificate to show to the listener")
	RefusedByPeer   = define(Checks, Error, "refused-by-peer", "the listener rejects our certificate")
	SilentAfterTLS  = define(Checks, Warning, "silent-after-tls", "the listener agreed on TLS and sends nothing")
	Connection      = define(Checks, OK, "connection", "both sides agreed on TLS 1.3")
)

// Check: CoreDNS, Calico and policies.
var (
	CoreDNS        = define(Checks, OK, "coredns", "the Corefile has the server blocks of the remotes")
	CoreDNSMissing = define(Checks, Warning, "coredns-missing", "the Corefile lacks the server block of a cluster")
	CoreDNSDiffers = define(Checks, Warning, "coredns-differs",
		"a server block of the Corefile rewrites names differently")
	CoreDNSUnreadable = define(Checks, Warning, "coredns-unreadable", "the Corefile cannot be read")
	CoreDNSNotRead    = define(Checks, NotChecked, "coredns-not-read",
		"the Corefile, or whether it should have blocks, was not read")
	Pools       = define(Checks, OK, "pools", "no IPPool assigns or announces IPs of remote pods")
	PoolEnabled = define(Checks, Error, "pool-enabled",
		"an enabled IPPool assigns a remote's IPs to pods of this cluster")
	PoolExported = define(Checks, Warning, "pool-exported", "BGP announces routes to a remote's pods")
	PoolMissing  = define(Checks, Warning, "pool-missing",
		"no IPPool has a remote's IPs, so Calico applies SNAT to packets to them")
	StrictAffinity    = define(Checks, OK, "strict-affinity", "nodes assign IPs of their own blocks only")
	AffinityNotStrict = define(Checks, Warning, "affinity-not-strict", "nodes may assign IPs of other nodes' blocks")
	CalicoNotRead     = define(Checks, NotChecked, "calico-not-read",
		"pools and IPAM were not read, for want of rights")
	CalicoUnreadable     = define(Checks, Warning, "calico-unreadable", "pools and IPAM cannot be read")
	Policies             = define(Checks, OK, "policies", "no rule admits a set of any remote")
	PolicyWithoutCluster = define(Checks, Warning, "policy-without-cluster", "a rule admits a set of any remote")
	PoliciesNotRead      = define(Checks, NotChecked, "policies-not-read",
		"the policies were not read, for want of rights")
	PoliciesUnreadable = define(Checks, Warning, "policies-unreadable", "the policies cannot be read")
	PolicyKeys         = define(Checks, OK, "policy-keys", "admission policies judge by the broker's subnets")
	PolicyKeysDiffer   = define(Checks, Error, "policy-keys-differ",
		"admission policies judge by other subnets than the broker's")
	PolicyKeysUnreadable = define(Checks, NotChecked, "policy-keys-unreadable",
		"what admission policies judge by cannot be read")
)

// check --traffic: what traffic between pods of two clusters shows.
var (
	NotLinked       = define(Traffic, Error, "not-linked", "one of two clusters has no remote for the other")
	PodUnreachable  = define(Traffic, Error, "pod-unreachable", "a pod gets no answer from the IP of a remote pod")
	AnotherPod      = define(Traffic, Error, "another-pod-answers", "another pod answers than the one that was asked")
	SourceRewritten = define(Traffic, Error, "source-rewritten",
		"a remote pod sees another address than that of the pod that asks")
	NotEncrypted = define(Traffic, Error, "not-encrypted",
		"packets passed, and not through the WireGuard devices of both nodes")
	LargePayloadLost   = define(Traffic, Error, "large-payload-lost", "small requests are answered, large ones are not")
	MirrorMissing      = define(Traffic, Error, "mirror-missing", "a Service that is offered did not become one here")
	ServiceUnreachable = define(Traffic, Error, "service-unreachable", "a pod gets no answer by a remote Service's name")
	NameUnknown        = define(Traffic, Error, "name-unknown", "the DNS name of a remote Service does not resolve")
	SetMissing         = define(Traffic, Error, "set-missing", "a labelled pod is in no set of the other cluster")
	PolicyRefuses      = define(Traffic, Error, "policy-refuses", "a policy that admits a set refuses its pod")
	PolicyIgnored      = define(Traffic, Error, "policy-ignored", "a policy that admits a set admits other pods too")
	LeftBehind         = define(Traffic, Error, "left-behind", "an object that check --traffic made was not removed")
)

// What keeps semaphorectl install and link from writing.
var (
	NameMissing       = define(Installs, Error, "name-missing", "nothing that was found can be the name of the cluster")
	OtherName         = define(Installs, Error, "other-name", "the cluster has semaphore by another name")
	OtherInstallation = define(Installs, Error, "other-installation",
		"semaphore is installed there by other means, such as kubectl or Helm")
	RecordLost = define(Installs, Error, "record-lost",
		"semaphorectl installed semaphore there, and the record of how is gone")
	NamespaceEnds  = define(Installs, Error, "namespace-ends", "the namespace of the parts is being deleted")
	NamespaceTaken = define(Installs, Error, "namespace-taken",
		"the namespace of the parts is there already and does not say that it is semaphore's")
	PolicyWithoutCalico = define(Installs, Error, "policy-without-calico",
		"the feature policy is wanted where the CNI is not Calico")
	FeatureRemoved = define(Installs, Error, "feature-removed",
		"a feature is to be taken away, whose objects, devices and routes would stay")
	NoNodeSubnets = define(Installs, Error, "no-node-subnets",
		"encryption is to be added, and a RemoteCluster that is in effect has no nodeSubnets, which it needs")
	NoAddress = define(Installs, Error, "no-address",
		"other clusters have no address for the broker: its Service has neither a port on the nodes nor a load balancer")
	NodesInside = define(Installs, Error, "nodes-inside",
		"nodes of another cluster are inside the subnets that this cluster calls its own")
	NotTheSameCluster = define(Installs, Error, "not-the-same-cluster",
		"a cluster says that it is one that this cluster has already, and does not prove it by its key")
	BoundsUnconfirmed = define(Installs, Error, "bounds-unconfirmed",
		"a cluster says that it has subnets that need the word of an operator: public or wide ones, other ones than "+
			"before, or those of another remote")
)

// Reasons of the conditions of a RemoteCluster.
var (
	Accepted        = define(Conditions, OK, "Accepted", "the spec is in effect")
	SubnetsConflict = define(Conditions, Error, "SubnetsConflict",
		"the subnets overlap those of another cluster", Act{Condition: "Accepted"})
	PrefixConflict = define(Conditions, Error, "PrefixConflict",
		"mirrors would have the names of another cluster's", Act{Condition: "Accepted"})
	PortConflict = define(Conditions, Error, "PortConflict",
		"the listen port is that of another remote", Act{Condition: "Accepted"})
	NoFreePort = define(Conditions, Error, "NoFreePort",
		"all ports of wireguard.portRange are taken", Act{Condition: "Accepted"})
	InvalidSpec = define(Conditions, Error, "InvalidSpec",
		"a field has a value that cannot be used", Act{Condition: "Accepted"})
	OwnCluster = define(Conditions, Error, "OwnCluster",
		"the object has the name of this cluster", Act{Condition: "Accepted"})
	NotInEffect = define(Conditions, Error, "NotInEffect",
		"no spec of the object was ever accepted", Act{Condition: "Connected"})
	Connected      = define(Conditions, OK, "Connected", "exporter and broker are connected")
	NothingTaken   = define(Conditions, OK, "NothingTaken", "spec.podSubnets is absent: nothing is imported")
	NeverConnected = define(Conditions, Error, "NeverConnected",
		"the exporter of the remote cluster has not connected yet", Act{Condition: "Connected", Side: Both})
	Disconnected = define(Conditions, Error, "Disconnected",
		"exporter and broker of the two clusters are not connected", Act{Condition: "Connected", Side: Both})
	NothingExported = define(Conditions, OK, "NothingExported", "spec.broker is absent: nothing is exported")
	Healthy         = define(Conditions, OK, "Healthy", "no object is refused or retained")
	ObjectsRetained = define(Conditions, Warning, "ObjectsRetained",
		"the brake retains objects that the remote cluster withdrew", Act{Condition: "Healthy", Side: Remote})
	ObjectsRefused = define(Conditions, Error, "ObjectsRefused",
		"objects of the remote cluster are refused", Act{Condition: "Healthy", Side: Remote})
)
