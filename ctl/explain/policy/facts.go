package policy

import (
	"net/netip"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Facts are the known facts about two pods and everything between them. A nil pointer is unknown; NotRead has the
// reason. Facts about a name are nil if the question was about a pod or an address.
type Facts struct {
	Now time.Time
	// Source and Target are the two pods. If the question was about a Service, Target is one of its pods.
	Source, Target Pod
	// Port is that of the target, such as "8080/TCP"; empty for any.
	Port   string
	Name   *Name
	DNS    *DNS
	Mirror *Mirror
	Slices *Slices
	Proxy  *semaphorev1.ProxyHealth
	// There is the way from the source's node to the target, and Back that from the target's node to the source.
	There, Back *Way
	TargetNode  *Node
	// Apart means that both nodes have no address at which the other could reach it.
	Apart bool
	// Pools are Calico's on the source's side, and TargetPools on the target's.
	Pools, TargetPools *Pools
	// Sets are the sets in the target's cluster that hold the source.
	Sets *Sets
	// Egress is the verdict of the policies of the source's cluster on a packet, and Ingress that of the target's.
	Egress, Ingress *Result
	// NotRead is why facts are unknown, by the link for which they are needed.
	NotRead map[finding.Code][]string
}

type Pod struct {
	// Cluster is the name of its cluster; empty for unknown. Namespace and Name are empty for an address alone.
	Cluster, Namespace, Name string
	Node                     string
	IP                       netip.Addr
	HostNetwork              bool
	// Ports are those that its containers declare, such as "8080/TCP". A container may listen on others.
	Ports []string
	// Problem is why the pod cannot be an end, such as that it has no IP; empty for none.
	Problem string
}

// String is such as "c1/shop/client (10.1.40.130)".
func (p Pod) String() string {
	name := p.IP.String()
	if p.Name != "" {
		name = p.Namespace + "/" + p.Name
		if p.Cluster != "" {
			name = p.Cluster + "/" + name
		}
		if p.IP.IsValid() {
			name += " (" + p.IP.String() + ")"
		}
	}
	return name
}

type Name struct {
	// Text is the name of the question; Remote, Namespace and Service are its parts, Remote "global" for a global
	// service and "clusterset.local" for an imported one.
	Text, Remote, Namespace, Service string
	// Known means that the broker of the source's cluster has a remote of that name.
	Known bool
	// Source is the Service in its own cluster; nil for unknown.
	Source *Exported
	// Import is the ServiceImport in the source's cluster; nil except for a name in clusterset.local, and for unknown.
	Import *Import
	// Own is set for a Service of the source's own cluster, whose own name leads to other clusters, too.
	Own *Own
}

type Import struct {
	Exists bool
	// NoNamespace means that its namespace does not exist, without which there is no import.
	NoNamespace bool
	// Clusters export it. NotReady is why it is not ready; empty if it is.
	Clusters []string
	NotReady string
	// Exports are the ServiceExports of that name, in the clusters that were asked.
	Exports []Export
}

type Export struct {
	Cluster string
	// Problems are the conditions with the wrong status.
	Problems []string
}

// Exported is a Service in its own cluster.
type Exported struct {
	Exists bool
	// Selected means that its labels offer it as a mirror; Refused is why it is not exported anyway.
	Selected bool
	Refused  string
	// Ready is how many of its endpoints are ready there; negative for unknown.
	Ready int
}

// DNS is the configuration of DNS in the source's cluster.
type DNS struct {
	// Where is the ConfigMap with the server blocks.
	Where string
	// Zone is the domain to serve. Missing means that no server block serves it, Differs is a line that the block
	// lacks; Unreadable is why that is unknown.
	Zone, Differs, Unreadable string
	Missing                   bool
	// Ready and Servers count the endpoints of the cluster's DNS Service; Servers is negative for unknown.
	Ready, Servers int
}

// Mirror is the Service that represents the remote one.
type Mirror struct {
	Namespace, Name string
	Exists, Owned   bool
	Created         time.Time
	ClusterIP       string
	Headless        bool
	// Ports are texts such as "8080/TCP". Port is that of the question; empty for none.
	Ports []string
	Port  string
	// Problem is the broker's report about it. Write is what delays the broker's write of it or of its slices, since when
	// and until when, as trace has it; empty if nothing does.
	Problem, Write string
}

type Slices struct {
	Total, Ready int
	// Drains are the drains in effect that cover the Service or its cluster, such as "cluster c2".
	Drains []string
	// Gone are remotes that the broker considers gone.
	Gone []string
	// NoTunnel names the nodes whose ready endpoints are not used, because no tunnel leads to them, and why.
	NoTunnel []string
	// Away means that the broker says that the remote's exporter is not connected; LastHeard is the age of its endpoints
	// here, zero for unknown.
	Away      bool
	LastHeard time.Time
	// Chosen is the endpoint for which the rest of the chain is judged.
	Chosen netip.Addr
}

// Way is the way of a node's packets to an address of a remote, as its agent answers.
type Way struct {
	Node string
	*semaphorev1.LookUpPathResponse
}

func (w *Way) state() semaphorev1.SessionState { return w.GetSession().GetState() }

type Node struct {
	Name   string
	Ready  bool
	Reason string
	Since  time.Time
	// AgentProblem is why the node's agent does not answer.
	AgentProblem string
}

// Pools are Calico's IPPools of one cluster, as far as they decide about a packet.
type Pools struct {
	// NATOutgoing means that the own pod is in a pool whose packets to addresses outside all pools get the node's IP as
	// their source.
	NATOutgoing bool
	// Covering is the pool that has the other pod's IP; empty for none. Enabled means that it also assigns IPs here.
	Covering string
	Enabled  bool
}

// Sets are the sets in the target's cluster that contain the source.
type Sets struct {
	// Names are such as "c1/shop/client". LastHeard is the age of the newest, zero for unknown.
	Names     []string
	LastHeard time.Time
	// Labelled means that the source has a label that puts it into a set.
	Labelled bool
}
