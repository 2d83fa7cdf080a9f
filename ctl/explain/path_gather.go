package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// side is one cluster for which there is a context.
type side struct {
	cluster *fleet.Cluster
	// objects are those of the cluster, in errors by its name in semaphore.
	objects *fleet.Objects
	name    string
	// broker is the status of its broker, which leads and works; nil with the reason in brokerErr.
	broker    *semaphorev1.GetStatusResponse
	brokerErr error
}

type pathGatherer struct {
	*explainer
	sides []*side
	// away is why a context is not among the sides, a text each.
	away  []string
	facts *policy.Facts
	// source and target are the clusters of both ends; target is nil without a context of it.
	source, target *side
	sourcePod      *corev1.Pod
	// protocol and port are those of the question, the port of the pod; 0 for any.
	protocol string
	port     uint16
	mirror   *corev1.Service
	slices   []fleet.EndpointSlice

	notReadMu sync.Mutex // the links are looked at side by side
}

// gather collects the facts of the path between two ends. Without the source's pod it returns an error.
func (e *explainer) gather(ctx context.Context, from, to end) (*policy.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	clusters, err := e.target.Access.Clusters()
	if err != nil {
		return nil, err
	}
	g := &pathGatherer{explainer: e, facts: &policy.Facts{NotRead: map[finding.Code][]string{}}, protocol: "TCP"}
	if err := g.findSides(ctx, clusters); err != nil {
		return nil, err
	}
	if to.port != "" {
		if g.port, g.protocol, err = parsePort(to.port); err != nil {
			return nil, fmt.Errorf("TO: %w", err)
		}
	}
	if err := g.findSource(ctx, from); err != nil {
		return nil, err
	}
	if err := g.findTarget(ctx, to); err != nil {
		return nil, err
	}
	g.along(ctx)
	if g.port != 0 {
		g.facts.Port = fmt.Sprintf("%d/%s", g.port, g.protocol)
	}
	g.facts.Now = time.Now()
	return g.facts, nil
}

// sideWithin bounds the time in which a cluster says which one it is, so that time is left for the others.
const sideWithin = 10 * time.Second

// findSides asks all clusters which one they are. Those that do not answer are away, unless none does.
func (g *pathGatherer) findSides(ctx context.Context, clusters []*fleet.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, sideWithin)
	defer cancel()
	sides, failed := fleet.All(clusters, func(c *fleet.Cluster) (*side, error) { return newSide(ctx, c) })
	for i, s := range sides {
		if s != nil {
			g.sides = append(g.sides, s)
		} else {
			g.away = append(g.away, "context "+strings.ReplaceAll(failed[i].Error(), "\n", "; "))
		}
	}
	if len(g.sides) == 0 {
		return errors.Join(failed...)
	}
	return nil
}

// without says why a cluster cannot be asked: no context leads to it, or one that may lead to it does not answer.
func (g *pathGatherer) without(cluster string) string {
	if len(g.away) == 0 {
		return "no --context is of " + cluster
	}
	return "no --context that answers is of " + cluster + "; " + strings.Join(g.away, "; ")
}

// noSuch is the error for an end that no cluster has that was asked.
func (g *pathGatherer) noSuch(end, text, what string) error {
	var names []string
	for _, s := range g.sides {
		names = append(names, s.name)
	}
	err := fmt.Errorf("%s %s: no such %s in %s", end, text, what, strings.Join(names, ", "))
	if len(g.away) > 0 {
		return fmt.Errorf("%w; not asked: %s", err, strings.Join(g.away, "; "))
	}
	return fmt.Errorf("%w: give --context for its cluster", err)
}

func newSide(ctx context.Context, c *fleet.Cluster) (*side, error) {
	s := &side{cluster: c}
	s.heard(c.Status(ctx, fleet.Broker, "", askWithin))
	if s.name == "" {
		exporter, _ := c.Status(ctx, fleet.Exporter, "", askWithin) // a standby says it, too
		if s.name = exporter.GetCluster(); s.name == "" {
			return nil, fmt.Errorf("%s: neither broker nor exporter says which cluster it is: %w", c.Context, s.brokerErr)
		}
	}
	named := *c.Objects
	named.Name = s.name
	s.objects = &named
	return s, nil
}

// heard sets what a broker says. One that does not lead, or does not work yet, says only which cluster it is.
func (s *side) heard(broker *semaphorev1.GetStatusResponse, err error) {
	s.name = broker.GetCluster()
	if s.brokerErr = cmp.Or(err, fleet.Works(broker)); s.brokerErr == nil {
		s.broker = broker
	}
}

// askWithin is how long a part may take for an answer without a measurement.
const askWithin = 5 * time.Second

func (g *pathGatherer) notRead(code finding.Code, format string, args ...any) {
	g.notReadMu.Lock()
	defer g.notReadMu.Unlock()
	g.facts.NotRead[code] = append(g.facts.NotRead[code], fmt.Sprintf(format, args...))
}

func (g *pathGatherer) side(cluster string) *side {
	i := slices.IndexFunc(g.sides, func(s *side) bool { return s.name == cluster })
	if i < 0 {
		return nil
	}
	return g.sides[i]
}

// findNamed finds an object by its name; nil if no cluster that may be meant has it.
func findNamed[T any](ctx context.Context, g *pathGatherer, resource schema.GroupVersionResource, e end) (
	*side, *T, error) {
	for _, s := range g.sides {
		if e.cluster != "" && s.name != e.cluster {
			continue
		}
		found, err := fleet.Get[T](ctx, s.objects, resource, e.namespace, e.name)
		if found != nil || err != nil {
			return s, found, err
		}
	}
	return nil, nil, nil
}

// podAt returns the pod with an IP in one of some clusters; nil if none has one. It selects by the first IP of pods,
// and reads all where no cluster has it.
func podAt(ctx context.Context, sides []*side, ip netip.Addr) (*side, *corev1.Pod, error) {
	s, pod, err := podWith(ctx, sides, ip, firstIP+ip.String())
	if pod == nil && err == nil {
		s, pod, err = podWith(ctx, sides, ip, "")
	}
	return s, pod, err
}

// firstIP selects pods by their first IP. An apiserver selects by no other.
const firstIP = "status.podIP="

func podWith(ctx context.Context, sides []*side, ip netip.Addr, selector string) (*side, *corev1.Pod, error) {
	for _, s := range sides {
		pods, err := fleet.List[corev1.Pod](ctx, s.objects, fleet.PodsGVR, "", metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return nil, nil, err
		}
		for i := range pods {
			if p := &pods[i]; p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && !p.Spec.HostNetwork &&
				slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: ip.String()}) {
				return s, p, nil
			}
		}
	}
	return nil, nil, nil
}

func (g *pathGatherer) findSource(ctx context.Context, e end) (err error) {
	switch {
	case e.host != "":
		return fmt.Errorf("FROM %s: packets come from a pod: use [CLUSTER/]NAMESPACE/NAME", e.text)
	case e.address.IsValid():
		g.source, g.sourcePod, err = podAt(ctx, g.sides, e.address)
	default:
		g.source, g.sourcePod, err = findNamed[corev1.Pod](ctx, g, fleet.PodsGVR, e)
		if err == nil && g.sourcePod == nil {
			g.source, g.sourcePod, err = g.podBehind(ctx, e)
		}
	}
	if err != nil {
		return fmt.Errorf("FROM %w", err)
	}
	if g.sourcePod == nil {
		return g.noSuch("FROM", e.text, "pod")
	}
	g.facts.Source = podFacts(g.source.name, g.sourcePod, netip.Addr{})
	return nil
}

func (g *pathGatherer) podBehind(ctx context.Context, e end) (*side, *corev1.Pod, error) {
	s, service, err := findNamed[corev1.Service](ctx, g, fleet.ServicesGVR, e)
	if service == nil || err != nil {
		return nil, nil, err
	}
	slices, err := s.slicesOf(ctx, service.Namespace, service.Name)
	if err != nil {
		return nil, nil, err
	}
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Ready() && endpoint.TargetRef != nil && endpoint.TargetRef.Kind == "Pod" {
				of := endpoint.TargetRef
				pod, err := fleet.Get[corev1.Pod](ctx, s.objects, fleet.PodsGVR, of.Namespace, of.Name)
				return s, pod, err
			}
		}
	}
	return nil, nil, nil
}

func (s *side) slicesOf(ctx context.Context, namespace, service string) ([]fleet.EndpointSlice, error) {
	all, err := fleet.List[fleet.EndpointSlice](ctx, s.objects, fleet.SlicesGVR, namespace,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	slices.SortFunc(all, func(a, b fleet.EndpointSlice) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return all, err
}

// readyOf returns how many endpoints of slices are ready, of how many.
func readyOf(of []fleet.EndpointSlice) (ready, all int) {
	for _, slice := range of {
		for i := range slice.Endpoints {
			if all++; slice.Endpoints[i].Ready() {
				ready++
			}
		}
	}
	return ready, all
}

// podFacts returns the facts of a pod. like is an address of the requested family, the zero value for any.
func podFacts(cluster string, p *corev1.Pod, like netip.Addr) policy.Pod {
	out := policy.Pod{Cluster: cluster, Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName,
		HostNetwork: p.Spec.HostNetwork}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && !out.IP.IsValid() && (!like.IsValid() || a.Is4() == like.Is4()) {
			out.IP = a
		}
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range c.Ports {
			out.Ports = append(out.Ports, fmt.Sprintf("%d/%s", port.ContainerPort, cmp.Or(port.Protocol, corev1.ProtocolTCP)))
		}
	}
	running := slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil
	})
	switch {
	case !out.IP.IsValid():
		out.Problem = "it has no IP; it is " + string(p.Status.Phase)
	case !running:
		out.Problem = "no container of it runs; it is " + string(p.Status.Phase)
	}
	return out
}

// findTarget finds the destination of the packets: a Service of a remote, a pod or an address.
func (g *pathGatherer) findTarget(ctx context.Context, e end) error {
	if e.host != "" {
		if g.isOwnDomain(e.host) {
			if err := g.findOwn(ctx, e); err != nil || g.facts.Name != nil {
				return err
			}
			return fmt.Errorf("TO %s: it is no Service of %s whose own name leads to other clusters: semaphore is not "+
				"between them", e.text, g.source.name)
		}
		return g.byService(ctx, e.host, e.cluster, e.namespace, e.name)
	}
	var s *side
	var pod *corev1.Pod
	var err error
	if e.address.IsValid() {
		if s, pod, err = podWith(ctx, g.sides, e.address, firstIP+e.address.String()); err == nil && pod == nil {
			if service, err := g.clusterIP(ctx, e.address); service != nil || err != nil {
				return g.byMirror(ctx, service, err)
			}
			s, pod, err = podWith(ctx, g.sides, e.address, "")
		}
		if err == nil && pod == nil {
			g.facts.Target = policy.Pod{IP: e.address}
			return nil
		}
	} else if s, pod, err = findNamed[corev1.Pod](ctx, g, fleet.PodsGVR, e); err == nil && pod == nil {
		if err := g.findOwn(ctx, e); err != nil || g.facts.Name != nil {
			return err
		}
		of, service, err := findNamed[corev1.Service](ctx, g, fleet.ServicesGVR, e)
		switch {
		case err != nil:
			return fmt.Errorf("TO %w", err)
		case service == nil && e.cluster != "" && g.side(e.cluster) == nil:
			// The other cluster cannot be asked; its Services are known here by their mirrors, and its pods are not.
			if err := g.byService(ctx, e.text, e.cluster, e.namespace, e.name); err != nil || g.mirror != nil {
				return err
			}
			return fmt.Errorf("TO %s: %s has no mirror of such a Service, and %s; if it is a pod, give its IP, and if it is a "+
				"Service, its name in the DNS: %s.%s.svc.cluster.%s", e.text, g.source.name, g.without(e.cluster), e.name,
				e.namespace, e.cluster)
		case service == nil:
			return g.noSuch("TO", e.text, "pod or Service")
		case of == g.source:
			return fmt.Errorf("TO %s: it is a Service of %s, as is FROM: semaphore is not between them", e.text, of.name)
		}
		host := e.name + "." + e.namespace + ".svc.cluster." + of.name
		return g.byService(ctx, host, of.name, e.namespace, e.name)
	}
	switch {
	case err != nil:
		return fmt.Errorf("TO %w", err)
	case s == g.source:
		return fmt.Errorf("TO %s: it is a pod of %s, as is FROM: semaphore is not between them; of another cluster use "+
			"CLUSTER/NAMESPACE/NAME", e.text, s.name)
	}
	g.target, g.facts.Target = s, podFacts(s.name, pod, g.facts.Source.IP)
	return nil
}

// clusterIP returns the Service of the source's cluster that has an address; nil for none.
func (g *pathGatherer) clusterIP(ctx context.Context, ip netip.Addr) (*corev1.Service, error) {
	all, err := fleet.List[corev1.Service](ctx, g.source.objects, fleet.ServicesGVR, "", metav1.ListOptions{})
	for i := range all {
		if slices.Contains(all[i].Spec.ClusterIPs, ip.String()) {
			return &all[i], err
		}
	}
	return nil, err
}

// byMirror continues with the Service that a mirror represents.
func (g *pathGatherer) byMirror(ctx context.Context, service *corev1.Service, err error) error {
	if err != nil {
		return fmt.Errorf("TO %w", err)
	}
	remote := service.Labels[naming.LabelSourceCluster]
	if service.Labels[naming.LabelManagedBy] != naming.ManagedByBroker {
		if err := g.readOwn(ctx, service); err != nil {
			return fmt.Errorf("TO %w", err)
		}
		if g.facts.Name != nil {
			g.byOwn(ctx)
			return nil
		}
		return fmt.Errorf("TO: Service %s/%s of %s has that address, and is no mirror of a remote Service",
			service.Namespace,
			service.Name, g.source.name)
	}
	namespace, name := service.Annotations[naming.AnnotationSourceNamespace],
		service.Annotations[naming.AnnotationSourceName]
	switch {
	case service.Labels[naming.LabelImported] != "":
		remote = coredns.ClusterSetDomain
	case remote == "":
		remote = naming.GlobalCluster
	}
	return g.byService(ctx, name+"."+namespace+".svc."+block(remote, "", "", "").Zone(), remote, namespace, name)
}

// byService collects the facts between a name and an endpoint.
func (g *pathGatherer) byService(ctx context.Context, text, remote, namespace, name string) error {
	g.facts.Name = &policy.Name{Text: text, Remote: remote, Namespace: namespace, Service: name,
		Known: policy.Several(remote) || g.source.broker == nil || slices.ContainsFunc(g.source.broker.GetLinks(),
			func(l *semaphorev1.LinkStatus) bool { return l.GetCluster() == remote })}
	g.facts.Target.Cluster = remote
	g.target = g.side(remote)
	if err := g.findMirror(ctx, remote, namespace, name); err != nil {
		g.notRead(finding.PathMirror, "%v", err)
	}
	if remote == coredns.ClusterSetDomain {
		g.imported(ctx)
	} else {
		g.exported(ctx)
	}
	g.readDNS(ctx)
	if g.mirror == nil {
		return nil
	}
	if err := g.readSlices(ctx); err != nil {
		g.notRead(finding.PathSlices, "%v", err)
	}
	return nil
}

// findMirror finds the Service that represents a remote one: by its annotations, or by the name that it would have.
func (g *pathGatherer) findMirror(ctx context.Context, remote, namespace, name string) error {
	selector := naming.LabelManagedBy + "=" + naming.ManagedByBroker
	all, err := g.source.objects.Services(ctx, "", selector)
	if err != nil {
		return err
	}
	prefix, in := usualPrefix(remote), g.explainer.target.Access.Namespace
	m := &policy.Mirror{}
	for i := range all {
		s := &all[i]
		if !represents(s, remote) {
			continue
		}
		sourceNamespace, sourceName := s.Annotations[naming.AnnotationSourceNamespace],
			s.Annotations[naming.AnnotationSourceName]
		if before, ok := strings.CutSuffix(s.Name, naming.Mirror("", sourceNamespace, sourceName)); ok && sourceName != "" {
			prefix, in = before, s.Namespace
		} else if remote == coredns.ClusterSetDomain { // its name may have a hash
			in = s.Namespace
		}
		if sourceNamespace == namespace && sourceName == name {
			g.mirror = s
			break
		}
	}
	m.Namespace, m.Name, m.Owned = in, naming.Mirror(prefix, namespace, name), true
	if remote == coredns.ClusterSetDomain {
		m.Name = naming.Import(namespace, name)
	}
	if g.mirror == nil {
		foreign, err := fleet.Get[corev1.Service](ctx, g.source.objects, fleet.ServicesGVR, m.Namespace, m.Name)
		if err != nil {
			return err
		}
		if foreign != nil {
			m.Exists, m.Owned, m.Created = true, false, foreign.CreationTimestamp.Time
		}
	} else {
		m = g.mirrorOf(g.mirror)
	}
	for _, problem := range g.source.broker.GetProblems() {
		if isAbout(problem, m.Name) || isAbout(problem, namespace+"/"+name) || g.isAboutSlice(problem, m.Name) {
			m.Problem = problem
		}
	}
	g.facts.Mirror = m
	if in != "" {
		g.facts.DNS = &policy.DNS{Zone: block(remote, prefix, in, "").Zone()}
	}
	return nil
}

// isAboutSlice reports whether a problem is about a slice of a Service, which is SERVICE-CLUSTER-NUMBER.
func (g *pathGatherer) isAboutSlice(problem, service string) bool {
	clusters := []string{g.source.name}
	for _, link := range g.source.broker.GetLinks() {
		clusters = append(clusters, link.GetCluster())
	}
	return slices.ContainsFunc(clusters, func(cluster string) bool {
		return strings.Contains(problem, " "+service+"-"+naming.ClusterLabel(cluster)+"-")
	})
}

// isAbout reports whether a problem has the name of an object, and not only a longer one.
func isAbout(problem, name string) bool {
	return regexp.MustCompile(`(?:^|[^\w./-])` + regexp.QuoteMeta(name) + `(?:$|[^\w-])`).MatchString(problem)
}

// mirrorOf returns the facts of a Service that leads to a remote one.
func (g *pathGatherer) mirrorOf(s *corev1.Service) *policy.Mirror {
	m := &policy.Mirror{Namespace: s.Namespace, Name: s.Name, Exists: true, Owned: true,
		Created: s.CreationTimestamp.Time, ClusterIP: s.Spec.ClusterIP, Headless: s.Spec.ClusterIP == corev1.ClusterIPNone}
	for _, p := range s.Spec.Ports {
		m.Ports = append(m.Ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	if g.port != 0 && !m.Headless { // the pods of a headless Service are asked at any port
		m.Port = fmt.Sprintf("%d/%s", g.port, g.protocol)
	}
	return m
}

// usualPrefix begins the names of mirrors of a remote, or of services of several clusters, unless the RemoteCluster has
// another.
func usualPrefix(remote string) string {
	switch remote {
	case naming.GlobalCluster:
		return naming.GlobalPrefix
	case coredns.ClusterSetDomain:
		return naming.ImportPrefix
	}
	return naming.ClusterLabel(remote)
}

// represents reports whether a Service of the broker represents one of a remote, or of several clusters.
func represents(s *corev1.Service, remote string) bool {
	switch remote {
	case naming.GlobalCluster:
		return s.Labels[naming.LabelGlobal] != ""
	case coredns.ClusterSetDomain:
		return s.Labels[naming.LabelImported] != ""
	}
	return s.Labels[naming.LabelSourceCluster] == remote
}

// block returns the server block that answers a name.
func block(remote, prefix, mirrorNamespace, domain string) coredns.Block {
	if remote == coredns.ClusterSetDomain {
		return coredns.ClusterSet(mirrorNamespace, domain)
	}
	return coredns.Block{Cluster: remote, Prefix: prefix, MirrorNamespace: mirrorNamespace, ClusterDomain: domain}
}

// exported reads the Service in its own cluster.
func (g *pathGatherer) exported(ctx context.Context) {
	n := g.facts.Name
	if g.target == nil {
		if n.Remote != naming.GlobalCluster {
			g.notRead(finding.PathName, "%s", g.without(n.Remote))
		}
		return
	}
	service, err := fleet.Get[corev1.Service](ctx, g.target.objects, fleet.ServicesGVR, n.Namespace, n.Service)
	if err != nil {
		g.notRead(finding.PathName, "%v", err)
		return
	}
	n.Source = &policy.Exported{Exists: service != nil, Ready: -1}
	if service == nil {
		return
	}
	key, value, _ := strings.Cut(naming.DefaultMirrorSelector, "=")
	// The exporter may select Services by other labels. An existing mirror proves that it did.
	n.Source.Selected = service.Labels[key] == value || g.mirror != nil
	exporter, err := g.target.cluster.Status(ctx, fleet.Exporter, "", askWithin)
	if err = cmp.Or(err, fleet.Works(exporter)); err != nil {
		g.notRead(finding.PathName, "the exporter of %s: %v", g.target.name, err)
	} else if g.mirror == nil {
		for _, problem := range exporter.GetProblems() {
			if isAbout(problem, n.Namespace+"/"+n.Service) {
				n.Source.Refused = problem
			}
		}
	}
	all, err := g.target.slicesOf(ctx, n.Namespace, n.Service)
	if err != nil {
		return
	}
	n.Source.Ready, _ = readyOf(all)
}

// readDNS reads the configuration of CoreDNS in the source's cluster.
func (g *pathGatherer) readDNS(ctx context.Context) {
	d, m := g.facts.DNS, g.facts.Mirror
	if d == nil || g.coredns == dns.NoCorefile {
		g.facts.DNS = nil
		return
	}
	remote := g.facts.Name.Remote
	prefix := strings.TrimSuffix(m.Name, naming.Mirror("", g.facts.Name.Namespace, g.facts.Name.Service))
	want := block(remote, prefix, m.Namespace, g.domain)
	d.Zone, d.Servers = want.Zone(), -1
	where := strings.Split(g.coredns, "/")
	if len(where) < 2 {
		d.Unreadable = "--coredns " + g.coredns + " is no NAMESPACE/NAME"
		return
	}
	d.Where = "ConfigMap " + where[0] + "/" + where[1]
	text, err := g.source.objects.Corefile(ctx, g.coredns)
	switch {
	case apierrors.IsNotFound(err):
		d.Unreadable = "it does not exist: name the ConfigMap with --coredns"
	case err != nil:
		d.Unreadable = err.Error()
	default:
		for _, f := range coredns.Compare(text, []coredns.Block{want}) {
			d.Missing, d.Differs = f.Missing, f.Line
		}
	}
	all, err := g.source.slicesOf(ctx, "kube-system", "kube-dns")
	if err != nil || len(all) == 0 {
		return // elsewhere than most have it
	}
	d.Ready, d.Servers = readyOf(all)
}

// readSlices reads the endpoints of the mirror, and chooses one.
func (g *pathGatherer) readSlices(ctx context.Context) (err error) {
	if g.slices, err = g.source.slicesOf(ctx, g.mirror.Namespace, g.mirror.Name); err != nil {
		return err
	}
	all, ready := g.count()
	own := g.source.name // clusterOf names it for all slices of a mirror
	out := &policy.Slices{Total: all[own], Ready: len(ready[own])}
	n := g.facts.Name
	out.Drains = g.drains(n.Namespace, n.Service, func(cluster string) bool {
		return cluster == "" || cluster == n.Remote || policy.Several(n.Remote)
	})
	if gone := g.mirror.Annotations[naming.AnnotationGoneClusters]; gone != "" {
		out.Gone = strings.Split(gone, ",")
	}
	of := n.Remote
	if policy.Several(of) {
		of = ""
	}
	out.NoTunnel = g.noTunnel(of)
	for _, l := range g.source.broker.GetLinks() {
		if l.GetCluster() != n.Remote {
			continue
		}
		out.Away = !l.GetConnected()
		for _, k := range l.GetKinds() {
			if k.GetKind() == semaphorev1.Kind_KIND_ENDPOINT_SLICE && k.GetLastHeard() != nil {
				out.LastHeard = k.GetLastHeard().AsTime()
			}
		}
	}
	g.facts.Slices = out
	g.targetPort()
	return g.choose(ctx, ready[own])
}

// drains returns the drains that concern a Service: of the clusters that covers selects, and of nodes with endpoints.
func (g *pathGatherer) drains(namespace, name string, covers func(cluster string) bool) (all []string) {
	for _, d := range g.source.broker.GetDrains() {
		if t := d.GetTarget(); covers(t.GetCluster()) && (t.GetNode() == "" || g.anyIn(d.GetPrefixes())) &&
			(t.GetService() == "" || t.GetNamespace() == namespace && t.GetService() == name) {
			all = append(all, show.TargetName(t))
		}
	}
	return all
}

// anyIn reports whether the mirror has an endpoint in one of the prefixes.
func (g *pathGatherer) anyIn(prefixes []string) bool {
	for _, text := range prefixes {
		prefix, err := netip.ParsePrefix(text)
		for _, s := range g.slices {
			for _, e := range s.Endpoints {
				for _, address := range e.Addresses {
					if at, no := netip.ParseAddr(address); no == nil && (err != nil || prefix.Contains(at)) {
						return true
					}
				}
			}
		}
	}
	return false
}

// targetPort maps the port of the mirror to that of the pods. If none was given and there is only one, it is that one.
func (g *pathGatherer) targetPort() {
	ports := g.mirror.Spec.Ports
	if g.port == 0 && len(ports) != 1 || g.port != 0 && g.mirror.Spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	for _, p := range ports {
		if g.port != 0 && (p.Port != int32(g.port) || string(p.Protocol) != g.protocol) {
			continue
		}
		for _, slice := range g.slices {
			for _, of := range slice.Ports {
				if of.Name != nil && *of.Name == p.Name && of.Port != nil {
					g.port, g.protocol = uint16(*of.Port), string(p.Protocol)
					return
				}
			}
		}
	}
}

// choose has packets go to the first of the ready addresses, and to its pod.
func (g *pathGatherer) choose(ctx context.Context, ready []netip.Addr) error {
	if len(ready) == 0 {
		return nil
	}
	g.facts.Slices.Chosen = slices.MinFunc(ready, netip.Addr.Compare)
	g.facts.Target.IP = g.facts.Slices.Chosen
	of := g.sides
	if g.target != nil {
		of = []*side{g.target}
	}
	s, pod, err := podAt(ctx, of, g.facts.Target.IP)
	if pod != nil {
		g.target, g.facts.Target = s, podFacts(s.name, pod, g.facts.Target.IP)
	}
	return err
}

// along collects the facts between the two pods.
func (g *pathGatherer) along(ctx context.Context) {
	f := g.facts
	var group sync.WaitGroup
	if f.Target.IP.IsValid() && f.Source.IP.IsValid() && (f.Target.Cluster == "" ||
		f.Target.Cluster != f.Source.Cluster) {
		group.Go(func() { g.thereAndBack(ctx) })
	} else if f.Name != nil {
		group.Go(func() { g.onlyProxy(ctx) })
	}
	group.Go(func() { g.pools(ctx) })
	switch {
	case f.Name == nil:
	case g.source.broker == nil:
		for _, code := range []finding.Code{finding.PathName, finding.PathSlices} {
			g.notRead(code, "the broker of %s: %v", g.source.name, g.source.brokerErr)
		}
	case f.Mirror != nil:
		group.Go(func() { g.delayed(ctx) })
	}
	group.Wait()
	if f.Target.Cluster == "" && f.There != nil {
		f.Target.Cluster = f.There.GetCluster()
		g.target = g.side(f.There.GetCluster())
	}
	if f.Target.IP.IsValid() {
		g.policies(ctx)
	}
}

// delayed asks the broker of the source's cluster what delays its write of the mirror or of the mirror's slices.
func (g *pathGatherer) delayed(ctx context.Context) {
	n, m := g.facts.Name, g.facts.Mirror
	of := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: n.Namespace, Name: n.Service}
	answer, err := ask(ctx, g.source, fleet.Broker, "", askWithin, func(ctx context.Context, p *fleet.Part) (
		*semaphorev1.LocateResponse, error) {
		return p.Locate(ctx, &semaphorev1.LocateRequest{Object: of})
	})
	if err != nil {
		g.notRead(finding.PathMirror, "%s: %v", g.source.name, err)
	}
	for _, at := range answer.GetPlaces() {
		if at.GetHop() == debug.HopWrite && at.GetState() != debug.PlaceDone &&
			at.GetObject() == "service "+m.Namespace+"/"+m.Name {
			m.Write = semaphorev1.PlaceStateName(at.GetState()) + ": " + at.GetDetail()
		}
	}
}

// ask calls a part of a cluster, which has the time of within to answer.
func ask[T any](ctx context.Context, s *side, part, node string, within time.Duration,
	call func(context.Context, *fleet.Part) (T, error)) (out T, err error) {
	p, err := s.cluster.Part(ctx, part, node)
	if err != nil {
		return out, err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if out, err = call(ctx, p); err != nil {
		err = errors.New(grpcstatus.Convert(err).Message())
	}
	return out, err
}

func (s *side) lookUp(ctx context.Context, node string, req *semaphorev1.LookUpPathRequest) (
	*semaphorev1.LookUpPathResponse, error) {
	// It has time for its measurements.
	return ask(ctx, s, fleet.Agent, node, 4*askWithin, func(ctx context.Context, p *fleet.Part) (
		*semaphorev1.LookUpPathResponse, error) {
		return p.LookUpPath(ctx, req)
	})
}

func (g *pathGatherer) onlyProxy(ctx context.Context) {
	answer, err := g.source.lookUp(ctx, g.facts.Source.Node,
		&semaphorev1.LookUpPathRequest{To: g.facts.Source.IP.String(), KubeProxy: true})
	if err != nil {
		g.notRead(finding.PathKubeProxy, "the agent of %s/%s: %v", g.source.name, g.facts.Source.Node, err)
		return
	}
	g.facts.Proxy = answer.GetKubeProxy()
}

// thereAndBack asks the agents of both nodes.
func (g *pathGatherer) thereAndBack(ctx context.Context) {
	f := g.facts
	var group sync.WaitGroup
	var answer, back *semaphorev1.LookUpPathResponse
	var err, backErr error
	group.Go(func() {
		answer, err = g.source.lookUp(ctx, f.Source.Node, &semaphorev1.LookUpPathRequest{
			To: f.Target.IP.String(), From: f.Source.IP.String(), Measure: true, KubeProxy: f.Name != nil})
	})
	if g.target != nil && f.Target.Node != "" {
		group.Go(func() { f.TargetNode = g.targetNode(ctx) })
		group.Go(func() {
			back, backErr = g.target.lookUp(ctx, f.Target.Node, &semaphorev1.LookUpPathRequest{
				To: f.Source.IP.String(), From: f.Target.IP.String(), Measure: true})
		})
	}
	group.Wait()
	if err != nil {
		for _, code := range []finding.Code{finding.PathKubeProxy, finding.PathRoute, finding.PathDevice, finding.PathPeer,
			finding.PathHandshake, finding.PathMTU} {
			g.notRead(code, "the agent of %s/%s: %v", g.source.name, f.Source.Node, err)
		}
	} else {
		f.There = &policy.Way{Node: f.Source.Node, LookUpPathResponse: answer}
		f.Proxy = answer.GetKubeProxy()
		f.Apart = answer.GetPresent() == nil && g.target != nil &&
			g.source.calls(ctx, f.Source.Node, f.Target.Cluster) && g.target.calls(ctx, f.Target.Node, f.Source.Cluster)
	}
	switch {
	case g.target == nil:
		g.notRead(finding.PathFarNode, "%s", g.without(cmp.Or(f.Target.Cluster, "the cluster of "+f.Target.IP.String())))
	case backErr != nil:
		g.notRead(finding.PathFarNode, "the agent of %s/%s: %v", g.target.name, f.Target.Node, backErr)
		if f.TargetNode != nil {
			f.TargetNode.AgentProblem = backErr.Error()
		}
	case back != nil:
		f.Back = &policy.Way{Node: f.Target.Node, LookUpPathResponse: back}
	}
}

func (g *pathGatherer) targetNode(ctx context.Context) *policy.Node {
	node, err := fleet.Get[corev1.Node](ctx, g.target.objects, fleet.NodesGVR, "", g.facts.Target.Node)
	if err == nil && node == nil {
		err = errors.New("it does not exist")
	}
	if err != nil {
		g.notRead(finding.PathFarNode, "node %s of %s: %v", g.facts.Target.Node, g.target.name, err)
		return nil
	}
	out := &policy.Node{Name: node.Name}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.Reason, out.Since = c.Status == corev1.ConditionTrue, c.Message, c.LastTransitionTime.Time
		}
	}
	return out
}

// calls reports whether a node publishes that the nodes of another cluster cannot reach it.
func (s *side) calls(ctx context.Context, node, other string) bool {
	n, err := fleet.Get[corev1.Node](ctx, s.objects, fleet.NodesGVR, "", node)
	return err == nil && n != nil && n.Annotations[naming.CandidatesAnnotation(other)] == naming.Nowhere
}

func (g *pathGatherer) pools(ctx context.Context) {
	f := g.facts
	if !f.Target.IP.IsValid() {
		return
	}
	var err error
	if f.Pools, err = g.source.poolsOf(ctx, f.Source.IP, f.Target.IP); err != nil {
		g.notRead(finding.PathPool, "%s: %v", g.source.name, err)
	}
	if g.target != nil && g.target != g.source {
		if f.TargetPools, err = g.target.poolsOf(ctx, f.Target.IP, f.Source.IP); err != nil {
			g.notRead(finding.PathPool, "%s: %v", g.target.name, err)
		}
	}
}

// poolsOf reads the pools that decide about packets from an own pod to another.
func (s *side) poolsOf(ctx context.Context, own, other netip.Addr) (*policy.Pools, error) {
	pools, _, err := s.objects.IPPools(ctx)
	if err != nil {
		return nil, err
	}
	out := &policy.Pools{}
	for _, p := range pools {
		if p.CIDR.Contains(own) && p.NATOutgoing {
			out.NATOutgoing = true
		}
		if p.CIDR.Contains(other) {
			out.Covering, out.Enabled = p.Name, !p.Disabled
		}
	}
	return out, nil
}

// policies judges the policies of both sides, and reads the sets.
func (g *pathGatherer) policies(ctx context.Context) {
	f := g.facts
	if f.Source.Cluster == f.Target.Cluster {
		for _, code := range []finding.Code{finding.PathPolicyIn, finding.PathPolicyOut} {
			g.notRead(code, "both pods are in %s", f.Source.Cluster)
		}
		return
	}
	f.Egress = g.judged(ctx, g.source, f.Source, finding.PathPolicyOut, policy.Packet{From: f.Target.IP, Egress: true})
	if g.target == nil {
		for _, code := range []finding.Code{finding.PathSet, finding.PathPolicyIn} {
			g.notRead(code, "%s", g.without(cmp.Or(f.Target.Cluster, "the cluster of "+f.Target.IP.String())))
		}
		return
	}
	g.readSets(ctx)
	if f.Target.Name == "" {
		g.notRead(finding.PathPolicyIn, "no pod of %s has %s", g.target.name, f.Target.IP)
		return
	}
	f.Ingress = g.judged(ctx, g.target, f.Target, finding.PathPolicyIn, policy.Packet{From: f.Source.IP})
}

// judged returns what the policies of a pod's cluster make of a packet from or to the pod. If they cannot be read, it
// depends on that.
func (g *pathGatherer) judged(ctx context.Context, s *side, pod policy.Pod, link finding.Code,
	packet policy.Packet) *policy.Result {
	cluster, to, err := readFor(ctx, s.objects, pod.Namespace, pod.Name)
	if err != nil {
		return &policy.Result{Verdict: policy.Depends, Why: err.Error(), NeedsSet: true}
	}
	packet.To, packet.Protocol, packet.Port = to, g.protocol, g.port
	r := policy.Explain(cluster, packet)
	for _, n := range r.NotEvaluated {
		g.notRead(link, "%s", n)
	}
	return &r
}

// readSets reads which sets of the target's cluster hold the source.
func (g *pathGatherer) readSets(ctx context.Context) {
	found, err := g.target.sets(ctx, g.facts.Source.IP)
	if err != nil {
		g.notRead(finding.PathSet, "%s: %v", g.target.name, err)
		return
	}
	out := &policy.Sets{Labelled: slices.ContainsFunc(
		[]string{naming.DefaultLabelDomain, naming.PolicyLabelDomain},
		func(domain string) bool { return g.sourcePod.Labels[domain+"/name"] != "" })}
	for _, s := range found {
		out.Names = append(out.Names, show.SetName(s))
		if at := finding.TimeOf(s.GetLastHeard()); at.After(out.LastHeard) {
			out.LastHeard = at
		}
	}
	g.facts.Sets = out
}

func (s *side) sets(ctx context.Context, with netip.Addr) ([]*semaphorev1.PolicySet, error) {
	if s.broker == nil {
		return nil, s.brokerErr
	}
	return ask(ctx, s, fleet.Broker, "", askWithin, func(ctx context.Context, p *fleet.Part) (
		[]*semaphorev1.PolicySet, error) {
		return fleet.ReceiveSets(ctx, p, &semaphorev1.ListSetsRequest{Address: with.String()})
	})
}
