package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// surveyor reads the properties of a cluster. It creates objects only as a dry run.
type surveyor struct {
	*fleet.Objects
	out *Cluster
	// kubeadm is kubeadm's configuration of the cluster, nil if kubeadm did not create it.
	kubeadm *kubeadm
	daemons []string
}

type kubeadm struct {
	ClusterName string
	Networking  struct{ PodSubnet, ServiceSubnet string }
}

const notKnown = "not known"

// Survey reads the properties of a cluster. It fails only if the apiserver does not tell its version; it names other
// objects that it cannot read, and continues with the rest.
func Survey(ctx context.Context, c *fleet.Cluster) (*Cluster, error) {
	unnamed := *c.Objects // its finding names the cluster
	unnamed.Name = ""
	s := &surveyor{Objects: &unnamed, out: &Cluster{Context: c.Context, CNI: notKnown}}
	if err := s.versionAndClock(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Context, fleet.Plain(err))
	}
	s.readNodes(ctx)
	s.readKubeadm(ctx)
	s.readCNI(ctx)
	s.readCalico(ctx)
	s.readPodSubnets()
	s.readServiceSubnets(ctx)
	s.readProxy(ctx)
	s.readDNS(ctx)
	s.readTypes(ctx)
	s.readRights(ctx, c.Namespace)
	s.propose(c.Context)
	return s.out, nil
}

// unread names an object that could not be read, and its fact; it is no error that a cluster does not have it.
func (s *surveyor) unread(fact Fact, err error) {
	if err != nil && !apierrors.IsNotFound(err) {
		s.out.Unread = append(s.out.Unread, Unread{fact, err.Error()})
	}
}

// versionAndClock asks an apiserver for its version; its answer has the time, to the second.
func (s *surveyor) versionAndClock(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(s.Config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("/version").String(), nil)
	if err != nil {
		return err
	}
	sent := time.Now()
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, answer.Status)
	}
	var version struct{ GitVersion string }
	if err := json.NewDecoder(answer.Body).Decode(&version); err != nil {
		return fmt.Errorf("%s: %w", request.URL, err)
	}
	s.out.Version = version.GitVersion
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		s.unread("", fmt.Errorf("the apiserver's clock: its answer has the date %q", answer.Header.Get("Date")))
		return nil
	}
	ahead := date.Sub(sent)
	if ahead.Abs() <= time.Since(sent)+time.Second {
		ahead = 0
	}
	s.out.Clock = &ahead
	return nil
}

// providers, by the prefix of a node's providerID.
var providers = map[string]string{"aws": "AWS", "gce": "Google Cloud", "azure": "Azure", "kind": "kind", "k3s": "K3s",
	"digitalocean": "DigitalOcean", "openstack": "OpenStack", "hcloud": "Hetzner"}

func (s *surveyor) readNodes(ctx context.Context) {
	var all []netip.Addr
	nodes, err := fleet.List[corev1.Node](ctx, s.Objects, fleet.NodesGVR, "", metav1.ListOptions{})
	for i := range nodes {
		n := &nodes[i]
		node := Node{Name: n.Name, Kernel: n.Status.NodeInfo.KernelVersion, OS: n.Status.NodeInfo.OSImage,
			Created: n.CreationTimestamp.Time}
		_, node.ControlPlane = n.Labels["node-role.kubernetes.io/control-plane"]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil {
				node.InternalIPs = append(node.InternalIPs, ip)
			}
		}
		node.PodCIDRs, _ = Prefixes(n.Spec.PodCIDRs)
		node.Calls = callsOf(n.Annotations)
		all = append(all, node.InternalIPs...)
		s.out.Nodes = append(s.out.Nodes, node)
		scheme, _, found := strings.Cut(n.Spec.ProviderID, "://")
		if found && s.out.Provider == "" {
			s.out.Provider = providers[scheme]
		}
		if name := n.Labels["alpha.eksctl.io/cluster-name"]; name != "" {
			s.out.Names = append(s.out.Names, NameOf(name))
		}
	}
	s.unread(FactNodes, err)
	s.out.IPs = Subnets{Prefixes: Cover(all), From: "InternalIPs of nodes; a guess"}
}

// callsOf returns the clusters for which the annotations of a node say that nothing reaches it, "*" for all.
func callsOf(annotations map[string]string) (calls []string) {
	for key, value := range annotations {
		if !naming.IsReachableAt(key) || strings.TrimSpace(value) != naming.Nowhere {
			continue
		}
		cluster, one := strings.CutSuffix(key, "."+naming.ReachableAt)
		if !one {
			cluster = "*"
		}
		calls = append(calls, cluster)
	}
	slices.Sort(calls)
	return calls
}

func (s *surveyor) readKubeadm(ctx context.Context) {
	data, err := s.ConfigMap(ctx, fleet.System, "kubeadm-config")
	if s.unread(FactPods, err); data == nil {
		return // most clusters have none, and its content is found elsewhere too
	}
	var k kubeadm
	if err := yaml.Unmarshal([]byte(data["ClusterConfiguration"]), &k); err == nil {
		s.kubeadm = &k
	}
}

// Why tunnels cannot work beside a CNI: docs/platforms.md#other-cnis has their needs.
const (
	ownIPAM = "it assigns the pods' IPs itself, and no object says which of them are on which node"
	eBPF    = "its eBPF programs forward packets of pods past the kernel's routes, and so past the tunnels"
	ovs     = "Open vSwitch forwards packets of pods past the kernel's routes, and so past the tunnels"
)

var cnis = []struct{ daemon, name, excludes string }{
	{"calico-node", "Calico", ""}, {"canal", "Calico (canal)", ""}, {"rke2-canal", "Calico (canal)", ""},
	{"cilium", "Cilium", eBPF}, {"anetd", "GKE Dataplane V2", eBPF}, {"kube-flannel", "flannel", ""},
	{"aws-node", "the AWS VPC CNI", ownIPAM}, {"azure-cns", "Azure CNI", ownIPAM},
	{"antrea-agent", "Antrea", ""}, {"weave-net", "Weave Net", ""}, {"kube-router", "kube-router", ""},
	{"kindnet", "kindnet", ""}, {"ovnkube-node", "OVN-Kubernetes", ovs},
}

// readCNI finds the CNIs by their DaemonSets. Calico may be there for policies alone, beside another CNI.
func (s *surveyor) readCNI(ctx context.Context) {
	daemons, err := fleet.List[metav1.PartialObjectMetadata](ctx, s.Objects, fleet.DaemonSetsGVR, "", metav1.ListOptions{})
	for i := range daemons {
		s.daemons = append(s.daemons, daemons[i].Name)
	}
	s.unread(FactCNI, err)
	for _, cni := range cnis {
		if !slices.ContainsFunc(s.daemons, func(d string) bool {
			return d == cni.daemon || strings.HasPrefix(d, cni.daemon+"-")
		}) {
			continue
		}
		if s.out.CNI == notKnown {
			s.out.CNI = cni.name
		}
		if s.out.Excluded == "" && cni.excludes != "" {
			s.out.Excluded = cni.name + ": " + cni.excludes
		}
	}
}

func (s *surveyor) readCalico(ctx context.Context) {
	client, err := kube.Calico(s.Config)
	if errors.Is(err, kube.ErrNoCalico) {
		return
	}
	if err != nil {
		s.unread(FactCalico, fmt.Errorf("Calico: %w", err))
		return
	}
	c := &Calico{}
	s.out.Calico = c
	if s.out.CNI == notKnown {
		s.out.CNI = "Calico"
	}
	if c.Pools, c.PoolResource, err = s.IPPools(ctx); err != nil {
		s.unread(FactPods, fmt.Errorf("IPPools of Calico: %w", err))
	}
	if err == nil || len(c.Pools) > 0 {
		s.pools(c)
	}
	if c.IPAM, err = s.IPAM(ctx); c.Blocks {
		s.unread(FactStrict, err)
	} else {
		s.unread(FactBlocks, err)
	}
	type felixConfiguration struct {
		Spec struct {
			WireGuard bool   `json:"wireguardEnabled"`
			BPF       bool   `json:"bpfEnabled"`
			Pattern   string `json:"bpfL3IfacePattern"`
		} `json:"spec"`
	}
	felix, err := fleet.Get[felixConfiguration](ctx, s.Objects,
		client.GroupVersion.WithResource("felixconfigurations"), "", "default")
	s.unread("", err)
	if felix != nil {
		c.WireGuard, c.BPF, c.BPFL3Interfaces = felix.Spec.WireGuard, felix.Spec.BPF, felix.Spec.Pattern
	}
}

// pools takes the subnets of the cluster's pods from its pools.
func (s *surveyor) pools(c *Calico) {
	var encapsulations []string
	for _, p := range c.Pools {
		if p.Disabled || p.Managed { // those of remote clusters' pods are disabled
			continue
		}
		s.out.Pods.Prefixes = append(s.out.Pods.Prefixes, p.CIDR)
		c.NATOutgoing = c.NATOutgoing || p.NATOutgoing
		encapsulations = append(encapsulations, p.Encapsulations...)
	}
	slices.Sort(encapsulations)
	c.Encapsulation = cmp.Or(strings.Join(slices.Compact(encapsulations), ", "), "none")
	s.out.Pods.From = "IPPools of Calico"
}

// readPodSubnets reads them from other sources than Calico: kubeadm, or the nodes. A better source that could not be
// read may have others.
func (s *surveyor) readPodSubnets() {
	if len(s.out.Pods.Prefixes) > 0 || !s.out.Knows(FactCalico, FactPods) {
		return
	}
	if s.kubeadm != nil {
		s.out.Pods = parsed(s.kubeadm.Networking.PodSubnet, "podSubnet of kubeadm")
	}
	if len(s.out.Pods.Prefixes) == 0 {
		var all []netip.Prefix
		for _, n := range s.out.Nodes {
			all = append(all, n.PodCIDRs...)
		}
		slices.SortFunc(all, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
		s.out.Pods = Subnets{Prefixes: slices.Compact(all), From: "podCIDRs of nodes; a guess, as nodes come"}
	}
}

func parsed(list, from string) Subnets {
	out := Subnets{From: from}
	out.Prefixes, _ = Prefixes(strings.Split(list, ",")) // what another one means is not known
	for i, p := range out.Prefixes {
		out.Prefixes[i] = p.Masked()
	}
	return out
}

// validIPs matches the apiserver's refusal of a Service address outside of its ranges.
var validIPs = regexp.MustCompile(`[Tt]he range of valid IPs is ([0-9a-fA-F.:/]+)`)

// readServiceSubnets reads the objects that have them, since Kubernetes 1.33; before, the apiserver's refusal of an
// address outside of them, in a dry run.
func (s *surveyor) readServiceSubnets(ctx context.Context) {
	type serviceCIDR struct {
		Spec struct {
			CIDRs []string `json:"cidrs"`
		} `json:"spec"`
	}
	cidrs, err := fleet.List[serviceCIDR](ctx, s.Objects,
		schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}, "",
		metav1.ListOptions{})
	s.unread(FactServices, err)
	for _, c := range cidrs {
		s.out.Services.Prefixes = append(s.out.Services.Prefixes, parsed(strings.Join(c.Spec.CIDRs, ","), "").Prefixes...)
		s.out.Services.From = "ServiceCIDRs"
	}
	if err == nil && len(s.out.Services.Prefixes) > 0 {
		return
	}
	if s.kubeadm != nil {
		if s.out.Services = parsed(s.kubeadm.Networking.ServiceSubnet,
			"serviceSubnet of kubeadm"); len(s.out.Services.Prefixes) > 0 {
			return
		}
	}
	for _, outside := range []string{"192.0.2.1", "2001:db8::1"} {
		service := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"generateName": "semaphore-",
				"namespace": "default"},
			"spec": map[string]any{"clusterIP": outside, "ports": []any{map[string]any{"port": int64(443)}}},
		}}
		_, err := s.Client.Resource(fleet.ServicesGVR).Namespace("default").
			Create(ctx, service, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			continue
		}
		if m := validIPs.FindStringSubmatch(err.Error()); m != nil {
			s.out.Services.Prefixes = append(s.out.Services.Prefixes, parsed(m[1], "").Prefixes...)
			s.out.Services.From = "the apiserver's refusal of another address"
		}
	}
}

func (s *surveyor) readProxy(ctx context.Context) {
	data, err := s.ConfigMap(ctx, fleet.System, "kube-proxy")
	s.unread("", err)
	var config struct{ Mode string }
	switch {
	case err == nil && data != nil && yaml.Unmarshal([]byte(data["config.conf"]), &config) == nil:
		s.out.KubeProxy = cmp.Or(config.Mode, "iptables")
	case slices.Contains(s.daemons, "kube-proxy"):
		s.out.KubeProxy = "there, mode not known"
	case err != nil || !s.out.Knows(FactCNI):
		s.out.KubeProxy = notKnown
	default:
		s.out.KubeProxy = "not found"
	}
}

// corefileImport matches the line by which a Corefile imports files, also into a server block.
var corefileImport = regexp.MustCompile(`(?m)^\s*import\s+(\S+)\s*$`)

func (s *surveyor) readDNS(ctx context.Context) {
	s.out.DNS.NodeLocal = slices.ContainsFunc(s.daemons,
		func(d string) bool { return strings.HasPrefix(d, "node-local-dns") })
	data, err := s.ConfigMap(ctx, fleet.System, fleet.CoreDNS)
	s.unread(FactCoreDNS, err)
	if data != nil {
		s.out.DNS.ConfigMap = fleet.System + "/" + fleet.CoreDNS
		if m := corefileImport.FindStringSubmatch(data["Corefile"]); m != nil {
			s.out.DNS.Import = m[1]
		}
	}
}

// readTypes reads whether the cluster serves types that an installation uses where they exist.
func (s *surveyor) readTypes(ctx context.Context) {
	serves := func(fact Fact, of ...schema.GroupVersionResource) bool {
		list, err := s.First(ctx, of, "", metav1.ListOptions{Limit: 1})
		s.unread(fact, err)
		return list != nil
	}
	s.out.MCS = serves(FactMCS, fleet.MCS("serviceexports")...) && serves(FactMCS, fleet.MCS("serviceimports")...)
	s.out.PodMonitors = serves(FactPodMonitors, schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1",
		Resource: "podmonitors"})
}

// readRights asks the apiserver for the caller's rights that an installation needs beyond those of the parts, which are
// in a namespace; an administrator has them. A review is not stored.
func (s *surveyor) readRights(ctx context.Context, namespace string) {
	for _, right := range []struct{ verb, group, resource, namespace string }{
		{"create", "", "namespaces", ""}, {"create", "", "secrets", namespace},
		{"create", "apps", "deployments", namespace},
		{"create", "apps", "daemonsets", namespace}, {"create", "rbac.authorization.k8s.io", "clusterroles", ""},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", ""},
		{"create", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""},
	} {
		review := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": map[string]any{"resourceAttributes": map[string]any{"verb": right.verb, "group": right.group,
				"resource": right.resource, "namespace": right.namespace}},
		}}
		answer, err := s.Client.Resource(schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1",
			Resource: "selfsubjectaccessreviews"}).
			Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			s.unread(FactRights, fmt.Errorf("your rights: %w", err))
			return
		}
		if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !allowed {
			s.out.Lacks = append(s.out.Lacks, right.verb+" "+right.resource)
		}
	}
}

// propose sorts names for the cluster: the name in a cloud or kubeadm, then the context.
func (s *surveyor) propose(context string) {
	names := s.out.Names
	if s.kubeadm != nil && s.kubeadm.ClusterName != "kubernetes" {
		names = append(names, NameOf(s.kubeadm.ClusterName))
	}
	names = append(names, NameOf(context))
	s.out.Names = nil
	for _, name := range names {
		if name != "" && !slices.Contains(s.out.Names, name) {
			s.out.Names = append(s.out.Names, name)
		}
	}
	if s.out.Provider == "" &&
		slices.ContainsFunc(s.out.Nodes, func(n Node) bool { return strings.Contains(n.OS, "CoreOS") }) {
		s.out.Provider = "OpenShift or CoreOS"
	}
}
