package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Names from the documentation, from which the model is made.
const (
	mirrorLabel   = "mirror.semaphore.uw.io/mirror-service"
	setLabel      = "semaphore.uw.systems/name"
	managedLabel  = "app.kubernetes.io/managed-by"
	managedBy     = "semaphore-broker"
	routeProtocol = "94"
)

var (
	servicesResource = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	slicesResource   = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	setsResource     = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
		Resource: "globalnetworksets"}
	poolsResource = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "ippools"}
	nodesResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// view describes what exists, or should exist, in one cluster because of the other: a line of text for each thing.
type view map[string]string

// difference describes how is differs from v. It is empty if it does not.
func (v view) difference(is view) string {
	var lines []string
	for name, want := range v {
		switch got, ok := is[name]; {
		case !ok:
			lines = append(lines, "missing: "+name+" "+want)
		case got != want:
			lines = append(lines, fmt.Sprintf("%s: is %s, want %s", name, got, want))
		}
	}
	for name, got := range is {
		if _, ok := v[name]; !ok {
			lines = append(lines, "too much: "+name+" "+got)
		}
	}
	slices.Sort(lines)
	const most = 20
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}

// wanted returns what a cluster should hold for another according to the documentation: the model of checker I1. It
// uses only the other cluster's objects.
func wanted(ctx context.Context, src, dst *testbed.Cluster) (view, error) {
	out := view{}
	services, err := src.Client.CoreV1().Services("").List(ctx, metav1.ListOptions{LabelSelector: mirrorLabel + "=true"})
	if err != nil {
		return nil, err
	}
	endpoints, err := endpointsOf(ctx, src, "", "")
	if err != nil {
		return nil, err
	}
	for _, s := range services.Items {
		name := src.Name + "-" + s.Namespace + "-73736d-" + s.Name
		out["service "+name] = portsOf(&s)
		if e := endpoints[s.Namespace+"/"+s.Name]; len(e) > 0 {
			out["endpoints "+name] = sorted(e)
		}
	}
	pods, err := src.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: setLabel})
	if err != nil {
		return nil, err
	}
	sets := map[string][]string{}
	for _, p := range pods.Items {
		if p.Status.PodIP == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed {
			continue
		}
		name := src.Name + "-" + p.Namespace + "-" + p.Labels[setLabel]
		sets[name] = append(sets[name], p.Status.PodIP+"/32")
	}
	for name, nets := range sets {
		out["set "+name] = sorted(nets)
	}
	nodes, err := src.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var peers []string
	for _, n := range nodes.Items {
		key := n.Annotations[dst.Name+".wireguard.semaphore.uw.io/pubKey"]
		node := src.Node(n.Name)
		if node == nil {
			return nil, fmt.Errorf("%s has a node %s that the testbed has not made", src.Name, n.Name)
		}
		blocks, err := node.PodBlocks(ctx)
		if err != nil {
			return nil, err
		}
		peer := []string{key}
		for _, b := range blocks {
			peer = append(peer, b.String())
		}
		if len(blocks) == 0 {
			peer = append(peer, "(none)")
		}
		slices.Sort(peer[1:])
		peers = append(peers, strings.Join(peer, " "))
	}
	for _, n := range dst.Nodes {
		out["peers of "+n.Name] = sorted(peers)
		out["routes of "+n.Name] = src.PodCIDR.String()
	}
	return out, nil
}

// present returns the objects of semaphore in a cluster.
func present(ctx context.Context, c *testbed.Cluster) (view, error) {
	out := view{}
	managed := metav1.ListOptions{LabelSelector: managedLabel + "=" + managedBy}
	services, err := c.Client.CoreV1().Services("").List(ctx, managed)
	if err != nil {
		return nil, err
	}
	for _, s := range services.Items {
		out["service "+s.Name] = portsOf(&s)
	}
	endpoints, err := endpointsOf(ctx, c, e2e.Namespace, managed.LabelSelector)
	if err != nil {
		return nil, err
	}
	for name, e := range endpoints {
		if len(e) > 0 {
			out["endpoints "+strings.TrimPrefix(name, e2e.Namespace+"/")] = sorted(e)
		}
	}
	sets, err := c.Dynamic.Resource(setsResource).List(ctx, managed)
	if err != nil {
		return nil, err
	}
	for _, s := range sets.Items {
		nets, err := netsOf(s.Object)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", s.GetName(), err)
		}
		out["set "+s.GetName()] = sorted(nets)
	}
	for _, n := range c.Nodes {
		k, err := kernelOf(ctx, n)
		if err != nil {
			return nil, err
		}
		out["peers of "+n.Name] = sorted(k.peers)
		out["routes of "+n.Name] = sorted(k.routes)
	}
	return out, nil
}

func portsOf(s *corev1.Service) string {
	var out []string
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%s %s/%d", p.Name, p.Protocol, p.Port))
	}
	return sorted(out)
}

// endpointsOf returns the addresses of all slices by namespace and Service.
func endpointsOf(ctx context.Context, c *testbed.Cluster, namespace, selector string) (map[string][]string, error) {
	list, err := c.Client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, s := range list.Items {
		key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		for _, e := range s.Endpoints {
			out[key] = append(out[key], fmt.Sprintf("%s ready=%t", strings.Join(e.Addresses, ","), e.Conditions.Ready == nil ||
				*e.Conditions.Ready))
		}
	}
	return out, nil
}

func netsOf(object map[string]any) ([]string, error) {
	var set struct {
		Spec struct {
			Nets []string `json:"nets"`
		} `json:"spec"`
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, &set)
	return set.Spec.Nets, err
}

// kernel is what semaphore has programmed on a node.
type kernel struct {
	devices, peers, routes []string
}

// kernelOf reads it from the node's kernel and WireGuard devices.
func kernelOf(ctx context.Context, n *testbed.Node) (kernel, error) {
	var out kernel
	text, err := n.Exec(
		ctx,
		"sh",
		"-c",
		"ip -o link show type tun && echo -- && wg show all allowed-ips && echo -- && ip -4 route show table all proto "+
			routeProtocol,
	)
	if err != nil {
		return out, err
	}
	sections := strings.Split(text, "--\n")
	if len(sections) != 3 {
		return out, fmt.Errorf("%s: %d answers to three questions: %q", n.Name, len(sections), text)
	}
	for line := range strings.Lines(sections[0]) {
		if f := strings.Fields(line); len(f) > 1 {
			out.devices = append(out.devices, f[0]+f[1]) // the interface index shows whether it was re-created
		}
	}
	for line := range strings.Lines(sections[1]) {
		if f := strings.Fields(line); len(f) > 1 {
			slices.Sort(f[2:])
			out.peers = append(out.peers, strings.Join(f[1:], " "))
		}
	}
	for line := range strings.Lines(sections[2]) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "unreachable" { // those behind ours, see docs/paths.md
			out.routes = append(out.routes, f[0])
		}
	}
	return out, nil
}

func sorted(lines []string) string {
	lines = slices.Clone(lines)
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// whole returns nil if both clusters hold exactly what the model says (checker I1) and every part is well.
func (b *bed) whole(ctx context.Context) error {
	for _, dst := range b.tb.Clusters() {
		src := b.other(dst)
		want, err := wanted(ctx, src, dst)
		if err != nil {
			return fmt.Errorf("what %s should hold: %w", dst.Name, err)
		}
		is, err := present(ctx, dst)
		if err != nil {
			return fmt.Errorf("what %s holds: %w", dst.Name, err)
		}
		if d := want.difference(is); d != "" {
			return fmt.Errorf("%s is not what %s makes it:\n%s", dst.Name, src.Name, d)
		}
		for _, name := range []string{"broker", "exporter"} {
			pod, err := active(ctx, dst, name)
			if err != nil {
				return err
			}
			s, err := status(ctx, dst, pod)
			if err != nil {
				return err
			}
			for _, l := range s.Links {
				if !l.Connected {
					return fmt.Errorf("%s of %s: %s is not connected: %s", name, dst.Name, l.Cluster, l.LastError)
				}
				if l.Behind > 0 {
					return fmt.Errorf("%s of %s: %d behind", name, dst.Name, l.Behind)
				}
			}
			for _, n := range s.Nodes {
				if !n.Attached || n.Behind > 0 {
					return fmt.Errorf("%s: agent on %s: attached %t, %d behind", dst.Name, n.Node, n.Attached, n.Behind)
				}
			}
			if len(s.Problems) > 0 {
				return fmt.Errorf("%s of %s: %s", name, dst.Name, strings.Join(s.Problems, "; "))
			}
		}
	}
	return nil
}

// converges fails the test unless the bed becomes whole within a time, and returns the time. A look takes half a second
// of a processor, so half a second is between two.
func (b *bed) converges(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	started := time.Now()
	testkit.Must(t, testbed.WaitEvery(life, within, 500*time.Millisecond, "a bed as the model says", b.whole))
	return time.Since(started)
}

// services is the number of c2's Services that are mirrored in c1. The brake counts withdrawals over minutes, so all
// withdrawals of the consecutive cases must stay below half of it.
const services = 160

// populate creates objects in both clusters for the other: many Services with endpoints in c2, a few in c1, pods of
// sets, and foreign objects next to the mirrors.
func (b *bed) populate(ctx context.Context) error {
	if err := b.c1.ApplyYAML(ctx, workload("client", 1)); err != nil {
		return err
	}
	if err := b.c2.ApplyYAML(ctx, workload("server", 2)); err != nil {
		return err
	}
	for _, c := range b.tb.Clusters() {
		if err := c.ApplyYAML(ctx, foreign(c.PodCIDR.Addr().String())); err != nil {
			return err
		}
	}
	for _, c := range b.tb.Clusters() {
		if err := c.ApplyYAML(ctx, holders(c)); err != nil {
			return err
		}
	}
	for i := range services {
		if err := offer(ctx, b.c2, fmt.Sprintf("many-%03d", i), i); err != nil {
			return err
		}
	}
	if err := offer(ctx, b.c1, "few", 1); err != nil {
		return err
	}
	for _, w := range []struct {
		c    *testbed.Cluster
		name string
	}{{b.c1, "client"}, {b.c2, "server"}} {
		if err := w.c.WaitForDeployment(ctx, "shop", w.name, settle); err != nil {
			return fmt.Errorf("%w\n%s", err, w.c.Diagnose(ctx, "shop"))
		}
	}
	return nil
}

// offer creates a Service that is mirrored, with one endpoint whose address no pod of the cases has.
func offer(ctx context.Context, c *testbed.Cluster, name string, number int) error {
	labels := map[string]string{mirrorLabel: "true"}
	if _, err := c.Client.CoreV1().Services("shop").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: int32(8000 + number),
			Protocol: corev1.ProtocolTCP}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	labels = maps.Clone(labels)
	labels[discoveryv1.LabelServiceName] = name
	port, protocol, portName := int32(8000+number), corev1.ProtocolTCP, "http"
	_, err := c.Client.DiscoveryV1().EndpointSlices("shop").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{inside(c, number)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}, metav1.CreateOptions{})
	return err
}

// withdraw deletes the objects of offer.
func withdraw(ctx context.Context, c *testbed.Cluster, name string) error {
	return errors.Join(
		c.Client.DiscoveryV1().EndpointSlices("shop").Delete(ctx, name, metav1.DeleteOptions{}),
		c.Client.CoreV1().Services("shop").Delete(ctx, name, metav1.DeleteOptions{}),
	)
}

// holders returns pods by whose addresses a node of the cluster has the blocks (/26) of all addresses that inside
// returns in these tests: an endpoint is in use only where a tunnel leads, and tunnels lead to the blocks of nodes.
func holders(c *testbed.Cluster) string {
	a := c.PodCIDR.Addr().As4()
	var pods []string
	for i, last := range []string{"200.0", "200.127", "200.191", "200.254", "201.0", "201.127", "201.191", "201.254"} {
		pods = append(pods, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: holder-%d
  namespace: shop
  annotations: {cni.projectcalico.org/ipAddrs: '["%d.%d.%s"]'}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers:
    - {name: holder, image: testbed.local/testbed:1, command: [testbed, sleep]}
`, i, a[0], a[1], last))
	}
	return strings.Join(pods, "---\n")
}

// inside returns an address in a cluster's pod subnet that no pod of the cases has.
func inside(c *testbed.Cluster, number int) string {
	a := c.PodCIDR.Addr().As4()
	return fmt.Sprintf("%d.%d.%d.%d", a[0], a[1], 200+min(number/250, 1), 1+number%250)
}

// workload returns pods that are in a set.
func workload(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata:
      labels: {app: %[1]s, %[3]s: %[1]s}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {name: %[1]s, image: testbed.local/testbed:1, command: [testbed, sleep]}
`, name, replicas, setLabel)
}

// foreign returns objects of another owner in the places where the broker writes.
func foreign(ip string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: foreign, namespace: semaphore}
spec:
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: foreign, namespace: semaphore, labels: {kubernetes.io/service-name: foreign}}
addressType: IPv4
endpoints: [{addresses: [%[1]s]}]
ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkSet
metadata: {name: foreign}
spec: {nets: [%[1]s/32]}
`, ip)
}
