package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// programs returns the programs of the checkout, which are built once.
var programs = sync.OnceValues(func() (map[string]string, error) { return buildPrograms(life) })

func buildPrograms(ctx context.Context) (map[string]string, error) {
	return (&components.Builder{Progress: os.Stderr}).Programs(ctx)
}

// lab is an apiserver, with programs of the checkout as processes on loopback. The broker's cluster is "hub". Exporters
// of several clusters read the same apiserver, and each exports the objects with its own label.
type lab struct {
	t    *testing.T
	dir  string
	rest *rest.Config
	kube kubernetes.Interface
	bins map[string]string
	// subnets are the subnets of the remotes by name, of which the broker finds RemoteClusters.
	subnets map[string]string
	daemons *[]*daemon
}

// newLab creates the lab with keys for the hub and for each remote.
func newLab(t *testing.T, remotes ...string) *lab {
	t.Helper()
	config := kubetest.Start(t)
	bins := testkit.Value(programs())(t)
	// A socket path has at most 107 bytes (unix(7)), and t.TempDir may be longer.
	dir := testkit.Value(os.MkdirTemp("", "lab"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &lab{t: t, dir: dir, rest: config, kube: kubernetes.NewForConfigOrDie(config), bins: bins,
		subnets: map[string]string{}, daemons: new([]*daemon)}
	for i, name := range append([]string{"hub"}, remotes...) {
		l.ctl("pki", "init", "--cluster", name, "--dir", l.path("pki", name))
		bundle := l.ctl("pki", "bundle", "--dir", l.path("pki", name))
		l.write(l.path("bundles", name+".pem"), bundle)
		if name != "hub" {
			l.subnets[name] = fmt.Sprintf("10.%d.0.0/16", 10+i)
		}
	}
	for _, name := range []string{e2e.Namespace, "shop"} {
		kubetest.Namespace(t, l.kube, name)
	}
	kubetest.InstallRemoteClusters(t, config)
	for i, name := range slices.Sorted(maps.Keys(l.subnets)) {
		kubetest.CreateRemote(l.t, l.rest, name, fmt.Sprintf("{podSubnets: [%s], nodeSubnets: [172.16.0.0/12], wireguard: "+
			"{listenPort: %d}}", l.subnets[name], 51820+i))
	}
	return l
}

func (l *lab) path(elements ...string) string {
	return filepath.Join(append([]string{l.dir}, elements...)...)
}

func (l *lab) write(path, text string) {
	l.t.Helper()
	testkit.Must(l.t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Must(l.t, os.WriteFile(path, []byte(text), 0o600))
}

func (l *lab) ctl(args ...string) string {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), l.bins["semaphorectl"], args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		l.t.Fatalf("semaphorectl %s: %v\n%s", strings.Join(args, " "), err, &errs)
	}
	return out.String()
}

// daemon is a program that runs until it is killed or the test ends.
type daemon struct {
	*testkit.Process

	t            *testing.T
	name, log    string
	socket, http string
	address      string // of a broker's federation listener
	peering      string // of a broker's peering listener
	program, cfg string
	killed       bool // killed by the test
}

// config is the content of a configuration file.
type config map[string]any

// tls returns the section with a part's keys.
func (l *lab) tls(cluster, part string) config {
	return config{
		"certFile": l.path("pki", cluster, part, "tls.crt"), "keyFile": l.path("pki", cluster, part, "tls.key"),
		"bundleDir": l.path("bundles"),
	}
}

// broker starts the hub's broker for all remotes, with additional configuration in more.
func (l *lab) broker(more config) *daemon {
	l.t.Helper()
	d := &daemon{name: "broker", program: "semaphore-broker", address: loopback.Address(l.t),
		peering: loopback.Address(l.t)}
	return l.start(d, config{
		"cluster": "hub", "features": []string{"services"},
		"localSubnets":   []string{"10.10.0.0/16", "10.96.0.0/16"},
		"leaderElection": config{"enabled": false},
		"tls":            l.tls("hub", "broker"), "kube": config{"kubeConfigPath": kubetest.Kubeconfig(l.t, l.rest)},
	}, config{"federation": d.address, "peering": d.peering}, more)
}

// exporter starts the exporter of a cluster. It exports the Services with the label lab=CLUSTER to the hub's broker.
func (l *lab) exporter(cluster, address string, more config) *daemon {
	l.t.Helper()
	return l.start(&daemon{name: "exporter-" + cluster, program: "semaphore-exporter"}, config{
		"cluster": cluster, "features": []string{"services"}, "mirrorSelector": "lab=" + cluster,
		"localBroker":    config{"cluster": "hub", "address": address},
		"leaderElection": config{"enabled": false},
		"tls":            l.tls(cluster, "exporter"), "kube": config{"kubeConfigPath": kubetest.Kubeconfig(l.t, l.rest)},
	}, nil, more)
}

func (l *lab) start(d *daemon, cfg, listen, more config) *daemon {
	l.t.Helper()
	d.t, d.socket, d.http, d.log, d.cfg = l.t, l.path(d.name+".sock"), loopback.Address(l.t), l.path(d.name+".log"),
		l.path(d.name+".yaml")
	d.program = l.bins[d.program]
	all := config{"http": d.http, "debugSocket": d.socket}
	maps.Copy(all, listen)
	cfg["listen"] = all
	maps.Copy(cfg, more)
	data := testkit.Value(yaml.Marshal(cfg))(l.t)
	l.write(d.cfg, string(data))
	d.run()
	*l.daemons = append(*l.daemons, d)
	return d
}

// run starts the program, or restarts it after kill.
func (d *daemon) run() {
	d.t.Helper()
	process := testkit.Value(testkit.Start(d.t, d.name, d.log, exec.Command(d.program, "--config", d.cfg)))(d.t)
	d.Process, d.killed = process, false
}

// kill ends the program like a crash.
func (d *daemon) kill() {
	d.t.Helper()
	d.killed = true
	d.Kill(d.t)
}

func (d *daemon) runs() error {
	if d.Runs() {
		return nil
	}
	return fmt.Errorf("%s has ended: %v\n%s", d.name, d.Err, d.Tail())
}

// status returns the program's status from its socket.
func (d *daemon) status(ctx context.Context) (*semaphorev1.GetStatusResponse, error) {
	if err := d.runs(); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix:"+d.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return semaphorev1.NewDebugServiceClient(conn).GetStatus(ctx, &semaphorev1.GetStatusRequest{})
}

// ready returns nil if the program reports that it is ready.
func (d *daemon) ready(ctx context.Context) error {
	_, err := testkit.Get(ctx, "http://"+d.http+"/readyz")
	return err
}

// link returns the program's status of one cluster.
func (d *daemon) link(ctx context.Context, cluster string) (*semaphorev1.LinkStatus, error) {
	s, err := d.status(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range s.Links {
		if l.Cluster == cluster {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s knows no cluster %s", d.name, cluster)
}

// connected waits until the program has a stream to or from a cluster.
func (d *daemon) connected(cluster string) {
	d.t.Helper()
	eventually(d.t, settle, func(ctx context.Context) error {
		l, err := d.link(ctx, cluster)
		if err == nil && !l.Connected {
			err = fmt.Errorf("%s: not connected to %s: %s", d.name, cluster, l.LastError)
		}
		return err
	})
}

// metric returns the sum of a metric over the series that have all given labels, such as `cluster="a"`.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	text := testkit.Value(testkit.Get(d.t.Context(), "http://"+d.http+"/metrics"))(d.t)
	return testkit.Scraped(d.t, text, name, labels...)
}

// offer creates a Service of a cluster, with one endpoint in its subnet.
func (l *lab) offer(cluster, name string, number int) {
	l.t.Helper()
	base, _, _ := strings.Cut(l.subnets[cluster], ".0.0/16")
	address := fmt.Sprintf("%s.%d.%d", base, 1+number/250, 1+number%250)
	labels := map[string]string{"lab": cluster}
	port, protocol, portName := int32(80), corev1.ProtocolTCP, "http"
	kubetest.Create(l.t, l.kube.CoreV1().Services("shop"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portName, Port: port, Protocol: protocol}}},
	})
	kubetest.Create(l.t, l.kube.DiscoveryV1().EndpointSlices("shop"), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{"lab": cluster, discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	})
}

// withdraw deletes the objects of offer.
func (l *lab) withdraw(name string) {
	l.t.Helper()
	testkit.Must(l.t, errors.Join(
		l.kube.DiscoveryV1().EndpointSlices("shop").Delete(l.t.Context(), name, metav1.DeleteOptions{}),
		l.kube.CoreV1().Services("shop").Delete(l.t.Context(), name, metav1.DeleteOptions{}),
	))
}

// mirrors returns the mirrors and slices of a remote with UID and version, to detect changes.
func (l *lab) mirrors(ctx context.Context, cluster string) (view, error) {
	out := view{}
	managed := metav1.ListOptions{LabelSelector: managedLabel + "=" + managedBy}
	services, err := l.kube.CoreV1().Services(e2e.Namespace).List(ctx, managed)
	if err != nil {
		return nil, err
	}
	for _, s := range services.Items {
		if strings.HasPrefix(s.Name, cluster+"-") {
			out["service "+s.Name] = string(s.UID) + " " + s.ResourceVersion
		}
	}
	endpoints, err := l.kube.DiscoveryV1().EndpointSlices(e2e.Namespace).List(ctx, managed)
	if err != nil {
		return nil, err
	}
	for _, s := range endpoints.Items {
		if strings.HasPrefix(s.Name, cluster+"-") {
			out["slice "+s.Name] = string(s.UID) + " " + s.ResourceVersion
		}
	}
	return out, nil
}

// mustMirrors is mirrors that fails the test on an error.
func (l *lab) mustMirrors(cluster string) view {
	l.t.Helper()
	return testkit.Value(l.mirrors(l.t.Context(), cluster))(l.t)
}

// waitMirrors waits until exactly this number of a remote's Services is mirrored, each with its slice, and returns the
// time.
func (l *lab) waitMirrors(cluster string, services int) time.Duration {
	l.t.Helper()
	return eventually(l.t, settle, func(ctx context.Context) error {
		for _, d := range *l.daemons {
			if !d.killed {
				testkit.Must(l.t, d.runs())
			}
		}
		v, err := l.mirrors(ctx, cluster)
		if err == nil && len(v) != 2*services {
			err = fmt.Errorf("%s has %d mirrors and slices, want %d of each", cluster, len(v), services)
		}
		return err
	})
}

// unchanged fails the test if a remote's mirrors have changed.
func (l *lab) unchanged(cluster string, was view) {
	l.t.Helper()
	if d := was.difference(l.mustMirrors(cluster)); d != "" {
		l.t.Errorf("mirrors of %s:\n%s", cluster, d)
	}
}

// dial connects to a broker's federation listener with the certificate of a part of a cluster.
func (l *lab) dial(address, cluster, part string) *grpc.ClientConn {
	l.t.Helper()
	certificate := testkit.Value(tls.LoadX509KeyPair(l.path("pki", cluster, part, "tls.crt"),
		l.path("pki", cluster, part, "tls.key")))(l.t)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate},
		// The broker's identity does not matter where a test plays its peer.
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13,
	})))
	testkit.Must(l.t, err)
	l.t.Cleanup(func() { conn.Close() })
	return conn
}
