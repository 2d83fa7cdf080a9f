package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RemoteCluster is another cluster that this one is connected to. Its name is the other cluster's name, which is the
// same in every cluster that knows it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=remoteclusters,scope=Cluster,shortName=remote;remotes,categories=semaphore
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The summary of all conditions."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="The reason of the summary: that of the first condition that is false."
// +kubebuilder:printcolumn:name="Last Heard",type=date,JSONPath=`.status.lastHeard`,description="How long ago the remote cluster's exporter sent something, as of the last write of the status, once a minute."
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="The spec is in effect."
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`,description="The remote cluster's exporter is connected to this cluster's broker."
// +kubebuilder:printcolumn:name="Exporting",type=string,JSONPath=`.status.conditions[?(@.type=="Exporting")].status`,description="This cluster's exporter is connected to the remote cluster's broker."
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.objects.nodes`
// +kubebuilder:printcolumn:name="Services",type=integer,JSONPath=`.status.objects.services`
// +kubebuilder:printcolumn:name="Set Members",type=integer,JSONPath=`.status.objects.setMembers`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.status.listenPort`,priority=1,description="The UDP port of this cluster's nodes for the remote."
// +kubebuilder:printcolumn:name="Broker",type=string,JSONPath=`.spec.broker.address`,priority=1
// +kubebuilder:printcolumn:name="Encryption",type=string,JSONPath=`.spec.encryption`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="metadata.name: it is the remote cluster's name: use 1 to 63 lower-case letters, digits, '-' and '.', such as \"c2\" or \"eu-1.example.com\""
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'global'",message="metadata.name: \"global\" means all clusters in names such as echo.shop.svc.cluster.global: use another name for the cluster, in all clusters"
type RemoteCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RemoteClusterSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "NotReported", message: "the broker of this cluster has not reported yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RemoteClusterStatus `json:"status,omitempty"`
}

// RemoteClusterList is a list of RemoteClusters.
//
// +kubebuilder:object:root=true
type RemoteClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RemoteCluster `json:"items"`
}

// Subnet is a CIDR such as "10.2.0.0/16".
//
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",messageExpression="'\"' + self + '\" is no CIDR: use one such as 10.2.0.0/16 or fd00:2::/48'"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self) == cidr(self).masked()",messageExpression="self + ' has bits set outside its mask: write the address of the network, such as 10.2.0.0/16'"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() > 0",messageExpression="self + ' is everything: name the subnets of the remote cluster'"
type Subnet string

// Duration is a time with a unit, such as "25s" or "720h".
//
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`
type Duration string

// RemoteClusterSpec is what this cluster imports from the remote cluster, and what it exports to it.
//
// +kubebuilder:validation:XValidation:rule="has(self.podSubnets) || has(self.broker)",message="spec has neither podSubnets nor broker: set podSubnets to take what the remote cluster exports, broker.address to export to it, or both"
// +kubebuilder:validation:XValidation:rule="!has(self.podSubnets) || !has(self.nodeSubnets) || self.podSubnets.all(p, self.nodeSubnets.all(n, !isCIDR(p) || !isCIDR(n) || !(cidr(p).containsCIDR(n) || cidr(n).containsCIDR(p))))",message="nodeSubnets and podSubnets overlap: packets for a tunnel would go into the tunnel; name the subnets of the nodes' InternalIPs only"
// +kubebuilder:validation:XValidation:rule="has(self.servicePrefix) == has(oldSelf.servicePrefix) && (!has(self.servicePrefix) || self.servicePrefix == oldSelf.servicePrefix)",message="servicePrefix is immutable, as names of mirrors begin with it: delete the RemoteCluster and create it again with the other prefix"
type RemoteClusterSpec struct {
	// PodSubnets contain all IPs of the remote cluster's pods. This cluster accepts no other addresses from it.
	// Without them it imports nothing from the remote cluster.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=set
	PodSubnets []Subnet `json:"podSubnets,omitempty"`

	// NodeSubnets contain the addresses at which the remote cluster's nodes are reached, usually their InternalIPs, and
	// those from which a NAT sends for them. Encryption needs them.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=set
	NodeSubnets []Subnet `json:"nodeSubnets,omitempty"`

	// TrustBundle holds the root certificates of the remote cluster, PEM, as `semaphorectl pki bundle` prints them.
	// If absent, the broker and the exporter read the bundle from the file or the SPIFFE Workload API that tls of their
	// configuration names.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	// +kubebuilder:validation:XValidation:rule="!self.contains('PRIVATE KEY')",message="trustBundle holds a private key: it has certificates only, which are public; replace that key, because everybody who may read this object has it"
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="trustBundle holds no certificate: use the PEM text that semaphorectl pki bundle prints for the remote cluster"
	TrustBundle string `json:"trustBundle,omitempty"`

	// Broker is the broker of the remote cluster. Without it this cluster exports nothing to it.
	// +optional
	Broker *Broker `json:"broker,omitempty"`

	// ServicePrefix is the first part of the names of mirrors of the remote cluster's Services. If absent, it is the name
	// of this object, or a hash of that name if it has a dot or more than 32 characters. Immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="servicePrefix begins the names of Services: use lower-case letters, digits and '-', a letter first, such as \"c2\""
	// +kubebuilder:validation:XValidation:rule="self != 'gl' && !self.startsWith('gl-')",message="servicePrefix: names of global services begin with \"gl\": use another"
	ServicePrefix string `json:"servicePrefix,omitempty"`

	// SourceID is the UID of the remote cluster's namespace kube-system. The broker refuses the exporter of a cluster with
	// another one. If absent, the first cluster that connects stands: set it to let a cluster in that was built again.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$')",message="sourceID: use what kubectl get namespace kube-system -o jsonpath={.metadata.uid} prints in the remote cluster"
	SourceID string `json:"sourceID,omitempty"`

	// Encryption decides about packets to and from the remote cluster's pods that are not encrypted. strict drops them.
	// permissive passes and counts them: use it while you turn encryption on or off. clear passes them and encrypts none:
	// use it before you remove encryption. The broker's configuration has the default.
	// +optional
	// +kubebuilder:validation:Enum=strict;permissive;clear
	Encryption string `json:"encryption,omitempty"`

	// WireGuard configures the nodes' device for the remote cluster.
	// +optional
	WireGuard *WireGuard `json:"wireguard,omitempty"`

	// Size sets the limits that Limits does not: small for up to 50 nodes, medium for up to 500, large for up to 5,000.
	// medium if absent.
	// +optional
	// +kubebuilder:validation:Enum=small;medium;large
	Size string `json:"size,omitempty"`

	// Limits bound what is imported from the remote cluster, each in place of that of its size.
	// +optional
	Limits *Limits `json:"limits,omitempty"`

	// Export says which Services and pods of this cluster the remote cluster receives. Without it, all offered ones.
	// +optional
	Export *Export `json:"export,omitempty"`
}

// BrokerAddress is host:port of a listener for exporters.
//
// +kubebuilder:validation:MaxLength=260
// +kubebuilder:validation:XValidation:rule="self.matches('^([^:\\\\[\\\\]/ ]+|\\\\[[0-9a-fA-F:.]+\\\\]):([1-9][0-9]{0,4})$') && int(self.matches('^.*:[0-9]{1,5}$') ? self.substring(self.lastIndexOf(':') + 1) : '0') <= 65535",messageExpression="'\"' + self + '\": use host:port, such as broker.example.org:8443 or [fd00:2::1]:8443'"
type BrokerAddress string

// Broker is the broker to which this cluster exports.
type Broker struct {
	// Address is host:port of the listener for exporters.
	// +required
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^([^:\\\\[\\\\]/ ]+|\\\\[[0-9a-fA-F:.]+\\\\]):([1-9][0-9]{0,4})$') && int(self.matches('^.*:[0-9]{1,5}$') ? self.substring(self.lastIndexOf(':') + 1) : '0') <= 65535",messageExpression="'\"' + self + '\": use host:port, such as broker.example.org:8443 or [fd00:2::1]:8443'"
	Address string `json:"address"`

	// OtherAddresses lead to the same broker. The exporter tries them in turn when one does not answer, so that no
	// single node of the remote cluster matters.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=set
	OtherAddresses []BrokerAddress `json:"otherAddresses,omitempty"`
}

// AddressFamily is a family of IP addresses.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type AddressFamily string

// WireGuard configures the nodes' device for the remote cluster.
type WireGuard struct {
	// ListenPort is the UDP port of the device on this cluster's nodes. Without it the broker assigns the lowest free port
	// of its range; status.listenPort has it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	ListenPort int32 `json:"listenPort,omitempty"`

	// MTU of the device in bytes; each node derives it if it is absent or 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == 0 || (self >= 1280 && self <= 65455)",message="mtu: use 1280 to 65455 bytes, or leave it out so that each node derives it"
	MTU int32 `json:"mtu,omitempty"`

	// ProbePort is the UDP port on which the remote cluster's nodes answer probes of the path; 0 for none; 7774 if absent.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	ProbePort *int32 `json:"probePort,omitempty"`

	// AddressFamily is the family of the endpoints of both clusters' nodes.
	// +optional
	AddressFamily AddressFamily `json:"addressFamily,omitempty"`

	// PersistentKeepalive is the interval of packets that keep a NAT open; absent or 0s for off, except on nodes that
	// nothing reaches, which have 25s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+(\\\\.[0-9]+)?(ns|us|ms|s|m|h))+$') || (duration(self) <= duration('65535s') && duration(self).getMilliseconds() % 1000 == 0)",messageExpression="self + ': use 0s to 65535s, whole seconds'"
	PersistentKeepalive Duration `json:"persistentKeepalive,omitempty"`

	// KeyMaxAge is the age at which each node replaces its key for the remote cluster; absent or 0s for never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+(\\\\.[0-9]+)?(ns|us|ms|s|m|h))+$') || duration(self) == duration('0s') || duration(self) >= duration('1h')",messageExpression="self + ': use 1h or more, or leave it out for never'"
	KeyMaxAge Duration `json:"keyMaxAge,omitempty"`
}

// Limit is a maximum. Its key names what it counts.
//
// +kubebuilder:validation:Minimum=1
// +kubebuilder:validation:Maximum=100000000
type Limit int32

// Limits bound what is imported from a remote cluster; docs/configuration.md has those of each size, and their cost.
type Limits struct {
	// Nodes is the maximum number of nodes of the remote cluster.
	// +optional
	Nodes Limit `json:"nodes,omitempty"`
	// PodCIDRs is the maximum number of pod CIDRs of all its nodes together.
	// +optional
	PodCIDRs Limit `json:"podCIDRs,omitempty"`
	// PodCIDRsPerNode is the maximum number of pod CIDRs of one node.
	// +optional
	PodCIDRsPerNode Limit `json:"podCIDRsPerNode,omitempty"`
	// Services is the maximum number of Services that it offers.
	// +optional
	Services Limit `json:"services,omitempty"`
	// PortsPerService is the maximum number of ports of a Service, and of an EndpointSlice.
	// +optional
	PortsPerService Limit `json:"portsPerService,omitempty"`
	// ClusterIPs is the maximum number of Services with a cluster IP that the broker creates for the remote cluster.
	// +optional
	ClusterIPs Limit `json:"clusterIPs,omitempty"`
	// Exports is the maximum number of its Services that it exports by ServiceExports.
	// +optional
	Exports Limit `json:"exports,omitempty"`
	// EndpointSlices is the maximum number of EndpointSlices of all its Services together.
	// +optional
	EndpointSlices Limit `json:"endpointSlices,omitempty"`
	// Endpoints is the maximum number of addresses in all its EndpointSlices together.
	// +optional
	Endpoints Limit `json:"endpoints,omitempty"`
	// EndpointsPerService is the maximum number of addresses of one Service.
	// +optional
	EndpointsPerService Limit `json:"endpointsPerService,omitempty"`
	// SetMembers is the maximum number of its pods in sets.
	// +optional
	SetMembers Limit `json:"setMembers,omitempty"`
	// SetIPs is the maximum number of addresses of all its pods in sets.
	// +optional
	SetIPs Limit `json:"setIPs,omitempty"`
	// IPsPerSet is the maximum number of addresses of one set.
	// +optional
	IPsPerSet Limit `json:"ipsPerSet,omitempty"`
	// MebibytesPerKind is the maximum encoded size of all its objects of one kind, in MiB.
	// +optional
	MebibytesPerKind Limit `json:"mebibytesPerKind,omitempty"`
	// KibibytesPerSecond is the maximum rate of bytes that are read from its streams, and of bytes that are written to
	// the apiserver for it, in KiB per second.
	// +optional
	KibibytesPerSecond Limit `json:"kibibytesPerSecond,omitempty"`
	// ChangesPerSecond is the maximum rate of changes that are read from its streams.
	// +optional
	ChangesPerSecond Limit `json:"changesPerSecond,omitempty"`
	// StreamsPerMinute is how often its exporter may open a stream, per minute.
	// +optional
	StreamsPerMinute Limit `json:"streamsPerMinute,omitempty"`
}

// ExportKind is a kind of objects that can be offered or withheld.
//
// +kubebuilder:validation:Enum=services;policy
type ExportKind string

// Export says what this cluster exports to the remote cluster.
type Export struct {
	// Rules decide for Services, with their EndpointSlices, and pods of sets. The first rule that matches an object
	// decides; an object that none matches is offered.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Rules []ExportRule `json:"rules,omitempty"`
}

// ExportRule offers some Services and pods to the remote cluster, or withholds them.
type ExportRule struct {
	// Kinds that the rule matches; both if absent.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	Kinds []ExportKind `json:"kinds,omitempty"`
	// Namespaces that the rule matches; all if absent.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:MinLength=1
	// +listType=set
	Namespaces []string `json:"namespaces,omitempty"`
	// Selector of the labels of Services and pods that the rule matches; all if absent.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Action is Offer or Withhold.
	// +required
	Action ExportAction `json:"action"`
}

// ExportAction is the action of an ExportRule.
//
// +kubebuilder:validation:Enum=Offer;Withhold
type ExportAction string

// The actions.
const (
	Offer    ExportAction = "Offer"
	Withhold ExportAction = "Withhold"
)

// Types of conditions of a RemoteCluster.
const (
	// ConditionReady is the summary of the others.
	ConditionReady = "Ready"
	// ConditionAccepted is true when the newest spec is in effect. If it is false, the last accepted spec stays in effect.
	ConditionAccepted = "Accepted"
	// ConditionConnected is true while the remote cluster's exporter is connected to this cluster's broker.
	ConditionConnected = "Connected"
	// ConditionExporting is true while this cluster's exporter is connected to the remote cluster's broker.
	ConditionExporting = "Exporting"
	// ConditionHealthy is true when the broker knows of no problem with the remote cluster, unknown until that connects.
	ConditionHealthy = "Healthy"
)

// RemoteClusterStatus is what this cluster's broker and exporter report.
type RemoteClusterStatus struct {
	// Conditions are Accepted, Connected, Exporting and Healthy, and their summary Ready. Ready is true if the spec is in
	// effect, the clusters are connected in each direction that the spec names, and no object is refused or retained. It
	// is false with the reason of the first condition that is false, and unknown while this cluster's broker or exporter
	// has not reported about this generation of the object.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// ObservedGeneration is the generation of the object that the broker has seen.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// ListenPort is the UDP port of this cluster's nodes for the remote cluster.
	// +optional
	ListenPort int32 `json:"listenPort,omitempty"`

	// MTU is the smallest, in bytes, that a node's device for the remote cluster has; absent until a node reports it.
	// +optional
	MTU int32 `json:"mtu,omitempty"`

	// SourceID is the UID of the namespace kube-system of the cluster that stands for the remote; absent until it
	// connects.
	// +optional
	SourceID string `json:"sourceID,omitempty"`

	// LastHeard is the time of the last message from the remote cluster's exporter, as of the last write of this status.
	// While messages arrive, it is written once a minute.
	// +optional
	LastHeard *metav1.Time `json:"lastHeard,omitempty"`

	// Objects counts the objects that the remote cluster exports and this one accepts.
	// +optional
	Objects *Objects `json:"objects,omitempty"`

	// Refused counts the objects of the remote cluster that this one refuses.
	// +optional
	Refused int32 `json:"refused,omitempty"`

	// Problem is the code and the key of the first refused object by kind and name, such as
	// "InvalidPort service/shop/echo". docs/troubleshooting.md explains the codes.
	// +optional
	Problem string `json:"problem,omitempty"`

	// Retained counts the objects that the brake retains although the remote cluster withdrew them;
	// `semaphorectl status` shows them.
	// +optional
	Retained int32 `json:"retained,omitempty"`
}

// Objects has the numbers of accepted objects by kind.
type Objects struct {
	// Nodes of the remote cluster.
	Nodes int32 `json:"nodes"`
	// Services that the remote cluster offers.
	Services int32 `json:"services"`
	// EndpointSlices of these Services.
	EndpointSlices int32 `json:"endpointSlices"`
	// SetMembers are the pods in sets.
	SetMembers int32 `json:"setMembers"`
}
