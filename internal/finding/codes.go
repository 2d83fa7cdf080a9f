package finding

// Objects that a broker refuses, completely or in part.
var (
	Malformed = define(Refusals, Error, "Malformed",
		"the message lacks what its kind needs, or contradicts itself")
	UnknownKind = define(Refusals, Error, "UnknownKind", "this version does not support the kind")
	InvalidName = define(Refusals, Error, "InvalidName",
		"a name, namespace, UID, hostname or port name that Kubernetes would reject")
	TooLarge              = define(Refusals, Error, "TooLarge", "one object exceeds a limit of one object")
	InvalidCIDR           = define(Refusals, Error, "InvalidCIDR", "a pod CIDR is not a canonical prefix")
	CIDROutsidePodSubnets = define(Refusals, Error, "CIDROutsidePodSubnets",
		"a pod CIDR lies outside the configured pod subnets of the remote",
		Act{Side: Both, Command: "kubectl get remotecluster CLUSTER -o jsonpath={.spec.podSubnets}"})
	InvalidPublicKey   = define(Refusals, Error, "InvalidPublicKey", "not a usable Curve25519 public key")
	InvalidEndpoint    = define(Refusals, Error, "InvalidEndpoint", "a WireGuard endpoint is not a literal IP:port")
	EndpointNotAllowed = define(Refusals, Error, "EndpointNotAllowed",
		"a WireGuard endpoint is at an address that no node of the remote can have",
		Act{Side: Both, Command: "kubectl get remotecluster CLUSTER -o jsonpath={.spec.nodeSubnets}"})
	InvalidPort    = define(Refusals, Error, "InvalidPort", "a port or protocol does not exist, or is a duplicate")
	InvalidSetting = define(Refusals, Warning, "InvalidSetting",
		"a Service's setting is out of bounds or unknown; the rest of the Service is accepted")
	InvalidExport = define(Refusals, Warning, "InvalidExport",
		"labels or annotations of a ServiceExport are reserved or too many; the Service is imported without them")
	InvalidAddressType = define(Refusals, Error, "InvalidAddressType",
		"an EndpointSlice is neither of IPv4 nor of IPv6")
	InvalidIP = define(Refusals, Error, "InvalidIP",
		"not an IP address, or not in canonical form (IPv4-mapped, with a zone)")
	IPOutsidePodSubnets = define(Refusals, Error, "IPOutsidePodSubnets",
		"an address lies outside the configured pod subnets of the remote",
		Act{Side: Both, Command: "kubectl get remotecluster CLUSTER -o jsonpath={.spec.podSubnets}"})
	KindNotAccepted = define(Refusals, Error, "KindNotAccepted",
		"the own broker does not accept this kind from the own cluster's exporter")
	OverLimit = define(Refusals, Error, "OverLimit",
		"the remote exports more objects than its limits allow", Act{Side: Both})
)

// Objects that an exporter does not export, or not completely.
var (
	InvalidNodeEndpoint = define(Exports, Error, "InvalidNodeEndpoint", "a node's tunnel endpoint is invalid")
	InvalidNodePodCIDR  = define(Exports, Error, "InvalidNodePodCIDR",
		"a node's pod CIDR or block is invalid, outside the pod subnets, or overlaps another node's")
	InvalidExportTo = define(Exports, Error, "InvalidExportTo",
		"the annotation cannot be parsed, or names clusters that are not configured")
	UnsupportedServiceType = define(Exports, Error, "UnsupportedServiceType", "the Service has a type without endpoints")
	IPOutsideOwnPodSubnets = define(Exports, Error, "IPOutsideOwnPodSubnets",
		"an IP of a pod or an endpoint lies outside the pod subnets")
	IPOutsideNode = define(Exports, Error, "IPOutsideNode",
		"IPs of endpoints and pods lie outside the prefixes that are exported of their node",
		Act{Command: "kubectl get blockaffinities,ipamconfigurations", Alert: "SemaphoreRemoteAddressesOutsideNodes"})
	InvalidServiceSetting = define(Exports, Warning, "InvalidServiceSetting",
		"a field, an annotation or a label of a Service is invalid and ignored")
	SetLabelsContradict = define(Exports, Error, "SetLabelsContradict",
		"a pod has labels of several domains that put it into different sets")
	StrayBlocks = define(Exports, Warning, "StrayBlocks", "Calico assigned blocks to a node that does not exist")
	Unsendable  = define(Exports, Error, "Unsendable", "the object is too large, or contains invalid UTF-8")
)

// Events on Services in the exporting cluster.
var (
	Offered      = define(Offers, OK, "Offered", "clusters have confirmed the Service")
	NotOffered   = define(Offers, Warning, "NotOffered", "no other cluster receives the Service", Act{Alert: NoAlert})
	NotConfirmed = define(Offers, Warning, "NotConfirmed", "no cluster has confirmed the Service yet", Act{Alert: NoAlert})
	Refused      = define(Offers, Error, "Refused", "a broker refuses an object", Act{Condition: "Healthy"})
)

// Services of remotes that have no mirror, or another than was exported. They are the reasons of the broker's Events,
// the values of a metric's label, and the broker's answer to the exporter of the Service.
var (
	NameTooLong = define(Services, Error, "NameTooLong", "the name of the Service's mirror would be too long")
	NameTaken   = define(Services, Error, "NameTaken",
		"another object has the name of a Service, an EndpointSlice or a set that the broker would write")
	NamespaceDenied = define(Services, Error, "NamespaceDenied",
		"nothing is imported into the namespace of the exported Service")
	SettingsDiffer = define(Services, Warning, "SettingsDiffer",
		"another cluster, which comes first, decides the global service's settings")
	HostnameTwice = define(Services, Warning, "HostnameTwice",
		"pods of two clusters have one hostname in a global service")
	OwnName = define(Services, Warning, "OwnName",
		"a Service asks for endpoints of other clusters under its own name, and does not get them as it asks")
	ExportsConflict = define(Services, Warning, "ExportsConflict",
		"exports of one name differ, and the one that was first observed decides")
)

// Events of the broker. Its Event on a refused object is Refused.
var (
	NoSet       = define(Events, Error, "NoSet", "no network set exists for a set that a remote exports")
	PeerRefused = define(Events, Error, "PeerRefused",
		"a node lost a key, an address or a prefix to another node", Act{Side: Both,
			Command: "kubectl get nodes -o yaml"})
	BothUnreachable = define(Events, Error, "BothUnreachable",
		"two nodes both have no address at which the other could reach it", Act{Side: Both,
			Command: "kubectl get nodes -o yaml"})
	WriteFailed = define(Events, Error, "WriteFailed", "the apiserver rejects a write",
		Act{Command: "kubectl -n semaphore get events", Alert: "SemaphoreWritesFail"})
	Contested = define(Events, Warning, "Contested",
		"another writer changes an object each time that the broker restores it")
	Restored = define(Events, Warning, "Restored",
		"somebody changed or deleted an object, and the broker restored it", Act{Alert: NoAlert})
	SourceRefused = define(Events, Error, "SourceRefused",
		"another cluster, with the certificate of one that stands, is refused",
		Act{Side: Both, Command: "kubectl describe remotecluster CLUSTER", Condition: "Healthy"})
	Retained = define(Events, Warning, "Retained", "the brake retains objects that a remote has withdrawn",
		Act{Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreObjectsRetained",
			Condition: "Healthy"})
	ClusterGone = define(Events, Error, "ClusterGone",
		"a remote is stale, and its nodes do not answer handshakes either",
		Act{Side: Remote, Command: "kubectl --context CLUSTER get nodes", Alert: "SemaphoreClusterGone"})
	ServedElsewhere = define(Events, Warning, "ServedElsewhere",
		"the own name of a Service leads to endpoints of other clusters, because the own one has too few, or to none",
		Act{Command: "kubectl -n NAMESPACE describe service NAME", Alert: "SemaphoreServedByOtherCluster"})
	ServedTogether = define(Events, OK, "ServedTogether",
		"the own name of a Service leads to endpoints of other clusters beside those of its own")
	ServedHere         = define(Events, OK, "ServedHere", "the own name of a Service leads to its own cluster alone again")
	ClusterBack        = define(Events, OK, "ClusterBack", "a remote that was gone is heard, or its nodes talk, again")
	LabelDomainsDiffer = define(Events, Warning, "LabelDomainsDiffer",
		"a remote finds the pods of sets by other labels than this cluster", Act{Side: Both, Command: "semaphorectl check"})
	EndpointMoved = define(Events, Warning, "EndpointMoved",
		"the published endpoint of a node changed to another of its addresses",
		Act{Command: "kubectl get nodes -o wide", Alert: NoAlert})
	DrainUnreadable = define(Events, Warning, "DrainUnreadable", "a drain in the ConfigMap of drains is malformed",
		Act{Alert: NoAlert})
	NotTakenOver = define(Events, Warning, "NotTakenOver", "an object of an earlier tool could not be taken over",
		Act{Alert: NoAlert})
	LeftAlone = define(Events, Warning, "LeftAlone",
		"objects of an earlier tool stay as they are, because the broker cannot take them over", Act{Alert: NoAlert})
)

// Links of the path from one pod to another, as explain examines them.
var (
	PathName = define(Paths, Error, "PathName",
		"the name means no Service that the remote exports, or no pod")
	PathDNS = define(Paths, Error, "PathDNS",
		"the cluster's CoreDNS does not answer names of the remote's Services")
	PathMirror = define(Paths, Error, "PathMirror",
		"the mirror Service is missing, belongs to someone else, or lacks the port")
	PathSlices = define(Paths, Error, "PathSlices",
		"no endpoint of the mirror is in use: none is ready, or they are drained, or the remote is gone")
	PathKubeProxy = define(Paths, Error, "PathKubeProxy",
		"kube-proxy on the client's node does not work")
	PathRoute = define(Paths, Error, "PathRoute",
		"packets to the pod are not routed into the device to its cluster")
	PathDevice = define(Paths, Error, "PathDevice",
		"the WireGuard device on the client's node is missing, down or not usable")
	PathPeer = define(Paths, Error, "PathPeer",
		"no WireGuard peer, or the wrong one, has the pod's IP among its allowed IPs")
	PathHandshake = define(Paths, Error, "PathHandshake",
		"the two nodes send each other packets, and WireGuard gets no answer")
	PathMTU = define(Paths, Error, "PathMTU",
		"the path between the two nodes carries smaller packets than the device sends")
	PathFarNode = define(Paths, Error, "PathFarNode",
		"the pod's node is not ready, or does not send the answers back through the tunnel")
	PathPool = define(Paths, Error, "PathPool",
		"Calico on the client's node changes the source IP of packets to the pod")
	PathSet = define(Paths, Error, "PathSet",
		"a policy admits network sets only, and none holds the other pod's IP")
	PathPolicyOut = define(Paths, Error, "PathPolicyOut",
		"a policy of the client's cluster does not let the packet out")
	PathPolicyIn = define(Paths, Error, "PathPolicyIn",
		"a policy of the pod's cluster does not let the packet in")
)

// Check: files and certificates.
var (
	ConfigValid   = define(Checks, OK, "ConfigValid", "the configuration file is valid")
	ConfigInvalid = define(Checks, Error, "ConfigInvalid",
		"the configuration has an unknown key or an invalid value")
	RemotesNotChecked = define(Checks, NotChecked, "RemotesNotChecked",
		"the RemoteClusters were not read, or there was no configuration to judge them by")
	CertificateUnreadable = define(Checks, Error, "CertificateUnreadable",
		"the file is missing, or contains no certificate")
	CertificateNameWrong = define(Checks, Error, "CertificateNameWrong",
		"the certificate is another part's, or of another cluster")
	CertificateUntrusted = define(Checks, Error, "CertificateUntrusted",
		"no root of its own cluster signed the certificate")
	KeyUnusable            = define(Checks, Error, "KeyUnusable", "the key does not belong to the certificate")
	KeyOpen                = define(Checks, Warning, "KeyOpen", "everybody on the machine can read the key")
	BundleMissing          = define(Checks, Error, "BundleMissing", "the roots of a cluster are missing")
	BundleUnreadable       = define(Checks, Error, "BundleUnreadable", "the roots of a cluster are malformed")
	BundleOfAnotherCluster = define(Checks, Error, "BundleOfAnotherCluster",
		"a root in the bundle belongs to another cluster")
	RootIsNoAuthority    = define(Checks, Error, "RootIsNoAuthority", "a root is no certificate of an authority")
	ClockSynchronised    = define(Checks, OK, "ClockSynchronised", "this machine's clock is synchronised")
	ClockNotSynchronised = define(Checks, Warning, "ClockNotSynchronised", "this machine's clock is not synchronised")
)

// Validity has the codes for the time of one sort of certificates.
type Validity struct{ Good, NotYet, Expired, ExpiresSoon Code }

// Check: the time of certificates.
var (
	Certificate         = validity("Certificate", "the part's own certificate")
	Root                = validity("Root", "a root certificate")
	ListenerCertificate = validity("ListenerCertificate", "the certificate that a listener showed")
)

func validity(code Code, what string) Validity {
	return Validity{
		Good:    define(Checks, OK, code+"Valid", what+" is valid"),
		NotYet:  define(Checks, Error, code+"NotYetValid", what+" is not valid yet: a clock is behind"),
		Expired: define(Checks, Error, code+"Expired", what+" has expired"),
		ExpiresSoon: define(Checks, Warning, code+"ExpiresSoon",
			what+" is in the last fifth of its life, and at most its last 30 days"),
	}
}

// Check: connections.
var (
	AddressUnknown      = define(Checks, Error, "AddressUnknown", "the name of the address is not in DNS")
	PortClosed          = define(Checks, Error, "PortClosed", "the machine answers, and nothing listens on the port")
	PortUnreachable     = define(Checks, Error, "PortUnreachable", "no answer: firewall, route or wrong address")
	NotTLS              = define(Checks, Error, "NotTLS", "a listener does not speak TLS")
	TLSOld              = define(Checks, Error, "TLSOld", "a listener does not speak TLS 1.3")
	TLSFailed           = define(Checks, Error, "TLSFailed", "the TLS handshake failed")
	TLSSilent           = define(Checks, Error, "TLSSilent", "a listener does not answer the TLS handshake")
	TLSCut              = define(Checks, Error, "TLSCut", "the connection ended during the TLS handshake")
	ListenerNameWrong   = define(Checks, Error, "ListenerNameWrong", "another part or cluster listens at the address")
	ListenerUntrusted   = define(Checks, Error, "ListenerUntrusted", "no known root signed the listener's certificate")
	ListenerNotVerified = define(Checks, Warning, "ListenerNotVerified", "there were no roots to verify the listener with")
	CertificateNotShown = define(Checks, Warning, "CertificateNotShown",
		"there was no certificate to show to the listener")
	RefusedByListener = define(Checks, Error, "RefusedByListener", "the listener rejects our certificate")
	SilentAfterTLS    = define(Checks, Warning, "SilentAfterTLS", "the listener agreed on TLS and sends nothing")
	ConnectionAgreed  = define(Checks, OK, "ConnectionAgreed", "both sides agreed on TLS 1.3")
)

// Check: CoreDNS, Calico and policies.
var (
	CoreDNSComplete     = define(Checks, OK, "CoreDNSComplete", "the Corefile has the server blocks of the remotes")
	CoreDNSBlockMissing = define(Checks, Warning, "CoreDNSBlockMissing",
		"the Corefile lacks the server block of a cluster")
	CoreDNSBlockDiffers = define(Checks, Warning, "CoreDNSBlockDiffers",
		"a server block of the Corefile rewrites names differently")
	CoreDNSUnreadable = define(Checks, Warning, "CoreDNSUnreadable", "the Corefile cannot be read")
	CoreDNSNotRead    = define(Checks, NotChecked, "CoreDNSNotRead",
		"the Corefile, or whether it should have blocks, was not read")
	PoolsHarmless = define(Checks, OK, "PoolsHarmless", "no IPPool assigns or announces IPs of remote pods")
	PoolEnabled   = define(Checks, Error, "PoolEnabled",
		"an enabled IPPool assigns a remote's IPs to pods of this cluster")
	PoolExported = define(Checks, Warning, "PoolExported", "BGP announces routes to a remote's pods")
	PoolMissing  = define(Checks, Warning, "PoolMissing",
		"no IPPool has a remote's IPs, so Calico applies SNAT to packets to them")
	AffinityStrict    = define(Checks, OK, "AffinityStrict", "nodes assign IPs of their own blocks only")
	AffinityNotStrict = define(Checks, Warning, "AffinityNotStrict", "nodes may assign IPs of other nodes' blocks")
	CalicoNotRead     = define(Checks, NotChecked, "CalicoNotRead",
		"pools and IPAM were not read, for want of rights")
	CalicoUnreadable     = define(Checks, Warning, "CalicoUnreadable", "pools and IPAM cannot be read")
	PoliciesNameClusters = define(Checks, OK, "PoliciesNameClusters", "no rule admits a set of any remote")
	PolicyWithoutCluster = define(Checks, Warning, "PolicyWithoutCluster", "a rule admits a set of any remote")
	PoliciesNotRead      = define(Checks, NotChecked, "PoliciesNotRead",
		"the policies were not read, for want of rights")
	PoliciesUnreadable = define(Checks, Warning, "PoliciesUnreadable", "the policies cannot be read")
	PolicyKeysAgree    = define(Checks, OK, "PolicyKeysAgree", "admission policies judge by the broker's subnets")
	PolicyKeysDiffer   = define(Checks, Error, "PolicyKeysDiffer",
		"admission policies judge by other subnets than the broker's")
	PolicyKeysUnreadable = define(Checks, NotChecked, "PolicyKeysUnreadable",
		"what admission policies judge by cannot be read")
	RemotePodSubnetsDiffer = define(Checks, Error, "RemotePodSubnetsDiffer",
		"admission policies judge endpoints under own names by other subnets than a RemoteCluster's")
)

// check --pre: what a cluster is like before anything is installed.
var (
	SubnetsDisjoint = define(Preflights, OK, "SubnetsDisjoint", "the subnets of two clusters do not overlap")
	SubnetsUnknown  = define(Preflights, Error, "SubnetsUnknown",
		"neither Calico nor kubeadm nor the nodes say which subnets the cluster has")
	KubernetesOld = define(Preflights, Error, "KubernetesOld", "Kubernetes is older than 1.30")
	RightMissing  = define(Preflights, Error, "RightMissing", "a right that the installation needs is missing")
	NotRead       = define(Preflights, Warning, "NotRead", "a fact could not be read, and was not judged")
	ClocksDiffer  = define(Preflights, Warning, "ClocksDiffer", "clocks differ by more than two minutes")
	NoCalico      = define(Preflights, Warning, "NoCalico", "the CNI is not Calico, which policies of sets need")
	CNIExcluded   = define(Preflights, Error, "CNIExcluded", "tunnels cannot work beside the CNI")
	NoPodCIDRs    = define(Preflights, Error, "NoPodCIDRs", "the IPs of a node's pods are not known")
	NoInternalIP  = define(Preflights, Error, "NoInternalIP", "a node has no InternalIP, at which tunnels end")
	NoCoreDNS     = define(Preflights, Warning, "NoCoreDNS", "there is no ConfigMap kube-system/coredns")
	NodeLocalDNS  = define(Preflights, OK, "NodeLocalDNS", "NodeLocal DNSCache runs")
	CalicoEBPF    = define(Preflights, Warning, "CalicoEBPF",
		"Calico's eBPF dataplane does not handle semaphore's devices")
	CalicoWireGuard        = define(Preflights, OK, "CalicoWireGuard", "Calico encrypts between the nodes of the cluster")
	KernelWithoutWireGuard = define(Preflights, Warning, "KernelWithoutWireGuard", "a node's kernel is older than 5.6")
)

// check --traffic: what traffic between pods of two clusters shows.
var (
	NotLinked         = define(Traffic, Error, "NotLinked", "one of two clusters has no remote for the other")
	PodUnreachable    = define(Traffic, Error, "PodUnreachable", "a pod gets no answer from the IP of a remote pod")
	AnotherPodAnswers = define(Traffic, Error, "AnotherPodAnswers", "another pod answers than the one that was asked")
	SourceRewritten   = define(Traffic, Error, "SourceRewritten",
		"a remote pod sees another address than that of the pod that asks")
	NotEncrypted = define(Traffic, Error, "NotEncrypted",
		"packets passed, and not through the WireGuard devices of both nodes")
	LargePayloadLost   = define(Traffic, Error, "LargePayloadLost", "small requests are answered, large ones are not")
	MirrorMissing      = define(Traffic, Error, "MirrorMissing", "a Service that is offered did not become one here")
	ServiceUnreachable = define(Traffic, Error, "ServiceUnreachable", "a pod gets no answer by a remote Service's name")
	NameUnresolved     = define(Traffic, Error, "NameUnresolved", "the DNS name of a remote Service does not resolve")
	SetMissing         = define(Traffic, Error, "SetMissing", "a labelled pod is in no set of the other cluster")
	PolicyRefuses      = define(Traffic, Error, "PolicyRefuses", "a policy that admits a set refuses its pod")
	PolicyIgnored      = define(Traffic, Error, "PolicyIgnored", "a policy that admits a set admits other pods too")
	LeftBehind         = define(Traffic, Error, "LeftBehind", "an object that check --traffic made was not removed")
)

// Causes that keep semaphorectl install and link from writing.
var (
	ClusterNameMissing = define(Installs, Error, "ClusterNameMissing",
		"nothing that was found can be the name of the cluster")
	ClusterNameDiffers = define(Installs, Error, "ClusterNameDiffers", "the cluster has semaphore by another name")
	OtherInstallation  = define(Installs, Error, "OtherInstallation",
		"semaphore is installed there by other means, such as kubectl or Helm, or in another namespace")
	RecordLost = define(Installs, Error, "RecordLost",
		"semaphorectl installed semaphore there, and the record of how is gone")
	NamespaceEnds  = define(Installs, Error, "NamespaceEnds", "the namespace of the parts is being deleted")
	NamespaceTaken = define(Installs, Error, "NamespaceTaken",
		"the namespace of the parts is there already and does not say that it is semaphore's")
	PolicyWithoutCalico = define(Installs, Error, "PolicyWithoutCalico",
		"the feature policy is wanted where the CNI is not Calico")
	FeatureRemoved = define(Installs, Error, "FeatureRemoved",
		"a feature is to be taken away, whose objects, devices and routes would stay")
	FeatureInUse = define(Installs, Error, "FeatureInUse",
		"a cluster is read for a feature that is not named, and its objects would stay as they are")
	NoNodeSubnets = define(Installs, Error, "NoNodeSubnets",
		"encryption is to be added, and a RemoteCluster that is in effect has no nodeSubnets, which it needs")
	NoAddress = define(Installs, Error, "NoAddress",
		"other clusters have no address for the broker: its Service has neither a port on the nodes nor a load balancer")
	NodesInside = define(Installs, Error, "NodesInside",
		"nodes of another cluster are inside the subnets that this cluster calls its own")
	NotTheSameCluster = define(Installs, Error, "NotTheSameCluster",
		"a cluster says that it is one that this cluster has already, and does not prove it by its key")
	BoundsUnconfirmed = define(Installs, Error, "BoundsUnconfirmed",
		"a cluster says that it has subnets that need the word of an operator: public or wide ones, other ones than "+
			"before, or those of another remote")
)

// Reasons of the conditions of a RemoteCluster.
var (
	Ready = define(Conditions, OK, "Ready",
		"the spec is in effect, the clusters are connected, and no object is refused or retained")
	NotReported = define(Conditions, NotChecked, "NotReported",
		"the broker or the exporter of this cluster has not reported about the object", Act{Condition: "Ready"})
	Accepted       = define(Conditions, OK, "Accepted", "the spec is in effect")
	SubnetsOverlap = define(Conditions, Error, "SubnetsOverlap",
		"the subnets overlap those of another cluster", Act{Condition: "Accepted"})
	PrefixConflict = define(Conditions, Error, "PrefixConflict",
		"mirrors would have the names of another cluster's", Act{Condition: "Accepted"})
	PortConflict = define(Conditions, Error, "PortConflict",
		"the listen port is that of another remote", Act{Condition: "Accepted"})
	NoFreePort = define(Conditions, Error, "NoFreePort",
		"all ports of wireguard.portRange are taken", Act{Condition: "Accepted"})
	TooManyRemotes = define(Conditions, Error, "TooManyRemotes",
		"what nodes and ConfigMaps hold of remotes has no room for another", Act{Condition: "Accepted"})
	InvalidSpec = define(Conditions, Error, "InvalidSpec",
		"a field has a value that cannot be used", Act{Condition: "Accepted"})
	OwnCluster = define(Conditions, Error, "OwnCluster",
		"the object has the name of this cluster", Act{Condition: "Accepted"})
	NotInEffect = define(Conditions, Error, "NotInEffect",
		"no spec of the object was ever accepted", Act{Alert: NoAlert, Condition: "Connected"})
	Connected       = define(Conditions, OK, "Connected", "exporter and broker are connected")
	NothingTaken    = define(Conditions, OK, "NothingTaken", "spec.podSubnets is absent: nothing is imported")
	NothingExported = define(Conditions, OK, "NothingExported", "spec.broker is absent: nothing is exported")
	Healthy         = define(Conditions, OK, "Healthy", "no object is refused or retained")
)
