package scale

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare, func() error {
		_, err := programs()
		return err
	})
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	os.Exit(m.Run())
}

func programs() (map[string]string, error) {
	return (&components.Builder{Progress: os.Stderr}).Programs(context.Background())
}

var must = testkit.Must

// mirrors is the namespace of the mirrors, and shop that of the Services at their source.
const mirrors, shop = "semaphore", "shop"

// hub is cluster c1: a real apiserver, and its broker as a process.
type hub struct {
	b    *testing.B
	dir  string
	bins map[string]string
	rest *rest.Config
	kube kubernetes.Interface
	// broker is started by start. Exporters reach it at federation, agents at peering.
	broker              *program
	federation, peering string
}

// newHub starts the apiserver of c1. The broker is not started yet.
func newHub(b *testing.B) *hub {
	bins := testkit.Value(programs())(b)
	// The path of a socket has at most 107 bytes (unix(7)), and b.TempDir may be longer.
	dir := testkit.Value(os.MkdirTemp("", "scale"))(b)
	b.Cleanup(func() { os.RemoveAll(dir) })
	h := &hub{b: b, dir: dir, bins: bins, rest: kubetest.Start(b), federation: loopback.Address(b),
		peering: loopback.Address(b)}
	h.kube = kubernetes.NewForConfigOrDie(kube.Protobuf(h.rest))
	kubetest.Namespace(b, h.kube, mirrors)
	kubetest.InstallRemoteClusters(b, h.rest)
	kubetest.InstallCalico(b, h.rest, kubetest.CalicoCRD, "globalnetworksets")
	must(b, os.MkdirAll(trust.Dir(dir).Bundles(), 0o755))
	h.keys("c1")
	return h
}

// keys makes the keys of a cluster, which are valid for as long as a soak takes.
func (h *hub) keys(cluster string) {
	h.b.Helper()
	own := filepath.Join(h.dir, cluster)
	validity := identity.Validity{Authority: 48 * time.Hour, Certificate: 48 * time.Hour}
	must(h.b, identity.Init(own, cluster, validity, time.Now()))
	_, bundle, err := identity.Bundle(own)
	must(h.b, err)
	must(h.b, os.WriteFile(filepath.Join(trust.Dir(h.dir).Bundles(), cluster+".pem"), bundle, 0o644))
}

// start starts the broker with the settings of deploy/broker.
func (h *hub) start(features string) {
	h.b.Helper()
	h.broker = h.program("broker", []string{"GOMEMLIMIT=3600MiB"}, `
cluster: c1
features: [%s]
localSubnets: [172.30.0.0/16, 10.96.0.0/16]
leaderElection: {enabled: false}
tls: {certFile: %[2]s/c1/broker/tls.crt, keyFile: %[2]s/c1/broker/tls.key, bundleDir: %[2]s/bundles}
kube: {kubeConfigPath: %s}
listen: {federation: %q, peering: %q, `, features, h.dir, kubetest.Kubeconfig(h.b, h.rest), h.federation, h.peering)
}

// source starts the exporter of a cluster with an apiserver of its own, which publishes to an address of the broker.
func (h *hub) source(cluster string, source *rest.Config, address, features string) *program {
	h.b.Helper()
	return h.program("exporter", nil, `
cluster: %[2]s
features: [%[1]s]
localBroker: {cluster: c1, address: %[3]q}
leaderElection: {enabled: false}
tls: {certFile: %[4]s/%[2]s/exporter/tls.crt, keyFile: %[4]s/%[2]s/exporter/tls.key, bundleDir: %[4]s/bundles}
kube: {kubeConfigPath: %[5]s}
listen: {`, features, cluster, address, h.dir, kubetest.Kubeconfig(h.b, source))
}

// program starts a part with a configuration whose last line begins what it listens on.
func (h *hub) program(name string, env []string, format string, values ...any) *program {
	h.b.Helper()
	p := &program{b: h.b, http: loopback.Address(h.b), profiles: loopback.Address(h.b)}
	file := filepath.Join(h.dir, name+".yaml")
	text := fmt.Sprintf(format, values...) + fmt.Sprintf("http: %q, debugSocket: %s/%s.sock}\n", p.http, h.dir, name)
	must(h.b, os.WriteFile(file, []byte(text), 0o600))
	p.run = func() {
		cmd := exec.Command(h.bins["semaphore-"+name], "--config", file, "--pprof-listen", p.profiles)
		cmd.Env = append(os.Environ(), env...)
		process := testkit.Value(testkit.Start(h.b, name, filepath.Join(h.dir, name+".log"), cmd))(h.b)
		p.Process = process
	}
	p.run()
	return p
}

// remote makes the keys and the RemoteCluster of a cluster with a number from 0 to 155, whose pods are in 10.(100 + its
// number).0.0/16.
func (h *hub) remote(name string, number int) {
	h.b.Helper()
	h.remoteOf(name, number, fmt.Sprintf("podSubnets: [10.%d.0.0/16]", 100+number))
}

// remoteOf is remote with other fields of the spec.
func (h *hub) remoteOf(name string, number int, fields string) {
	h.b.Helper()
	h.keys(name)
	kubetest.CreateRemote(h.b, h.rest, name, fmt.Sprintf("{%s, nodeSubnets: [172.16.%d.0/24], "+
		"wireguard: {listenPort: %d}}", fields, number, 51820+number))
}

// remove deletes the RemoteCluster of a cluster, and its roots.
func (h *hub) remove(name string) error {
	client, err := dynamic.NewForConfig(h.rest)
	if err != nil {
		return err
	}
	return errors.Join(
		client.Resource(v1alpha1.RemoteClusters).Delete(context.Background(), name, metav1.DeleteOptions{}),
		os.Remove(filepath.Join(trust.Dir(h.dir).Bundles(), name+".pem")), os.RemoveAll(filepath.Join(h.dir, name)))
}

// player stands for the exporter of a remote: its publisher, with a catalog that nothing reads from an apiserver.
type player struct {
	name      string
	number    int
	first     netip.Addr
	catalog   *catalog.Catalog
	publisher *publish.Publisher
}

// content says how much a player exports.
type content struct {
	nodes, services, endpoints, members, sets int
	// first is the address of the first member, by default one of the player's /16.
	first netip.Addr
}

// play makes a player of a remote. It does not publish yet.
func (h *hub) play(name string, number int, of content) *player {
	h.b.Helper()
	p := &player{name: name, number: number, first: of.first, catalog: catalog.New(catalog.Rules{
		Features: config.Features{config.Encryption, config.Services, config.Policy}, Clusters: []string{"c1"},
		LabelDomains: []string{naming.DefaultLabelDomain},
	})}
	p.fill(of)
	p.publisher = publish.New(name, 0, config.ExporterBroker{Cluster: "c1", Address: h.federation},
		trust.Dir(h.dir).Source(h.b, name, "exporter"), p.catalog, debug.NewRecorder("exporter", name, ""),
		publish.NewMetrics(prometheus.NewRegistry()), publish.Options{Source: complete{}})
	return p
}

// complete is the source of a catalog that is complete from the beginning.
type complete struct{}

func (complete) ID() string                     { return "" }
func (complete) Ready(semaphorev1.Kind) bool    { return true }
func (complete) Read(semaphorev1.Kind) uint64   { return 0 }
func (complete) Newest(semaphorev1.Kind) uint64 { return 0 }

// address returns an address of the remote's pods.
func (p *player) address(i int) string {
	return netip.AddrFrom4([4]byte{10, byte(100 + p.number), byte(i >> 8), byte(i)}).String()
}

// member returns the address of a member of a set.
func (p *player) member(i int) string {
	if !p.first.IsValid() {
		return p.address(1<<15 + i)
	}
	four := p.first.As4()
	binary.BigEndian.PutUint32(four[:], binary.BigEndian.Uint32(four[:])+uint32(i))
	return netip.AddrFrom4(four).String()
}

// fill exports what of says. The endpoints of all Services are one in a slice of ten after the other.
func (p *player) fill(of content) {
	key := func(kind semaphorev1.Kind, namespace, name string) catalog.Key {
		return catalog.Key{Kind: kind, Namespace: namespace, Name: name}
	}
	for i := range of.nodes {
		p.put(key(semaphorev1.Kind_KIND_NODE, "", fmt.Sprint("node-", i)), &semaphorev1.Object{
			Spec: &semaphorev1.Object_Node{Node: &semaphorev1.Node{
				PodCidrs: []string{p.address(i*256) + "/24"}, Wireguard: &semaphorev1.WireGuardEndpoint{
					PublicKey: publicKey(p.name, i), Address: fmt.Sprintf("172.16.%d.%d:51820", p.number, 1+i)}}}})
	}
	each := of.endpoints / max(of.services, 1)
	for i := range of.services {
		name := fmt.Sprint("web-", i)
		p.put(key(semaphorev1.Kind_KIND_SERVICE, shop, name), &semaphorev1.Object{
			Spec: &semaphorev1.Object_Service{Service: &semaphorev1.Service{Mirror: true,
				Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 80}}}}})
		p.slice(i, each, 0)
	}
	for i := range of.members {
		p.put(key(semaphorev1.Kind_KIND_SET_MEMBER, shop, fmt.Sprint("pod-", i)), &semaphorev1.Object{
			Spec: &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{PodUid: fmt.Sprint(p.name, "-", i),
				SetName: fmt.Sprint("set-", i%of.sets), Ips: []string{p.member(i)}}}})
	}
}

// slice exports the slice of a Service. Its endpoints begin at an address that differs by version.
func (p *player) slice(service, endpoints, version int) {
	yes := true
	s := &semaphorev1.EndpointSlice{Service: fmt.Sprint("web-", service), AddressType: "IPv4",
		Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Ready: &yes, Serving: &yes,
			Addresses: []string{p.address((service*endpoints + version + i) % (1 << 15))}})
	}
	p.put(catalog.Key{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: shop,
		Name: fmt.Sprintf("web-%d-x7d2f", service)}, &semaphorev1.Object{
		Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}})
}

func (p *player) put(key catalog.Key, o *semaphorev1.Object) {
	o.Key = key.Proto()
	e, err := catalog.NewExport(o, catalog.For("c1"))
	if err != nil {
		panic(err) // the benchmark made it
	}
	p.catalog.Journal().Put(key, e, time.Now())
}

// publish connects the player until stop is called.
func (p *player) publish() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.publisher.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// sets returns the number of addresses in all sets.
func (h *hub) sets(ctx context.Context) (addresses int, err error) {
	client, err := dynamic.NewForConfig(h.rest)
	if err != nil {
		return 0, err
	}
	list, err := client.Resource(kubetest.CalicoCRD.WithResource("globalnetworksets")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, set := range list.Items {
		nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
		addresses += len(nets)
	}
	return addresses, nil
}
