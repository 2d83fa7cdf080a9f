package redteam

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
	"github.com/kube-semaphore/semaphore/internal/testkit/trust"
	"github.com/kube-semaphore/semaphore/testbed/components"
)

// programs returns the programs of the checkout, which are built once.
var programs = sync.OnceValues(func() (map[string]string, error) {
	return (&components.Builder{Progress: os.Stderr}).Programs(context.Background())
})

// patience is the timeout of everything that has no bound of its own, for a busy machine.
const patience = 3 * time.Minute

// victim is cluster c1: a real apiserver and a real broker with deploy/example/c1/broker.yaml, with the additional
// remotes c2 and c3. Actions of c2 must not affect c3.
type victim struct {
	*testkit.Process

	t    *testing.T
	dir  string
	rest *rest.Config
	kube kubernetes.Interface
	// federation, peering and http are the addresses of the broker's listeners.
	federation, peering, http string
	log                       string
	// idle is the memory of the broker, in bytes, when it became ready.
	idle int
	cfg  map[string]any
}

// start runs the broker with the shipped configuration. change may change the configuration.
func start(t *testing.T, change ...func(cfg map[string]any)) *victim {
	t.Helper()
	v := prepare(t)
	for _, c := range change {
		c(v.cfg)
	}
	v.run()
	return v
}

// prepare is start without running the broker.
func prepare(t *testing.T) *victim {
	t.Helper()
	api := kubetest.Start(t)
	kubetest.InstallCalico(t, api, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	// A socket path has at most 107 bytes (unix(7)), and t.TempDir may be longer.
	dir, err := os.MkdirTemp("", "redteam")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	v := &victim{t: t, dir: dir, rest: api, kube: kubernetes.NewForConfigOrDie(api), log: filepath.Join(dir, "broker.log")}
	trust.In(t, v.dir, "c1", "c2", "c3")
	if _, err := v.kube.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "semaphore"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v.federation, v.peering, v.http = loopback.Address(t), loopback.Address(t), loopback.Address(t)
	shipped, err := os.ReadFile("../deploy/example/c1/broker.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(shipped, &v.cfg); err != nil {
		t.Fatal(err)
	}
	// The differences from the example: paths and addresses, remotes in the file, and no leader election.
	v.cfg["cluster"] = "c1"
	v.cfg["remotes"] = []any{map[string]any{
		"name": "c2", "podSubnets": []string{"10.2.0.0/16"}, "nodeSubnets": []string{"192.0.2.16/28"},
		"wireguard": map[string]any{"listenPort": 7775},
	}, map[string]any{
		"name": "c3", "podSubnets": []string{"10.3.0.0/16"}, "nodeSubnets": []string{"192.0.2.32/28"},
		"wireguard": map[string]any{"listenPort": 51821},
	}}
	v.cfg["leaderElection"] = map[string]any{"enabled": false}
	v.cfg["tls"] = map[string]any{"certFile": v.path("c1", "broker", "tls.crt"),
		"keyFile": v.path("c1", "broker", "tls.key"), "bundleDir": v.path("bundles")}
	v.cfg["kube"] = map[string]any{"kubeConfigPath": kubetest.Kubeconfig(t, api)}
	v.cfg["listen"] = map[string]any{"federation": v.federation, "peering": v.peering, "http": v.http,
		"debugSocket": v.path("broker.sock")}
	return v
}

func (v *victim) path(elements ...string) string {
	return filepath.Join(append([]string{v.dir}, elements...)...)
}

// configure writes the configuration of the broker.
func (v *victim) configure() {
	v.t.Helper()
	text, err := yaml.Marshal(v.cfg)
	if err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(v.path("broker.yaml"), text, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// run starts the broker with the environment in deploy/broker/deployment.yaml, and waits until it is ready.
func (v *victim) run() {
	v.t.Helper()
	bins, err := programs()
	if err != nil {
		v.t.Fatal(err)
	}
	v.configure()
	cmd := exec.Command(bins["semaphore-broker"], "--config", v.path("broker.yaml"))
	cmd.Env = append(os.Environ(), shippedEnvironment(v.t)...)
	if v.Process, err = testkit.Start(v.t, "the broker", v.log, cmd); err != nil {
		v.t.Fatal(err)
	}
	v.eventually("the broker is ready", func() error {
		if !v.Runs() {
			v.t.Fatal("the broker has ended")
		}
		_, err := v.get("/readyz")
		return err
	})
	v.idle, _ = v.resident()
}

// kill ends the broker like a crash.
func (v *victim) kill() { v.Kill(v.t) }

// shippedEnvironment returns the environment of the broker's container.
func shippedEnvironment(t *testing.T) (env []string) {
	t.Helper()
	data, err := os.ReadFile("../deploy/broker/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		t.Fatal(err)
	}
	for _, e := range d.Spec.Template.Spec.Containers[0].Env {
		if e.Value != "" {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	return env
}

// eventually waits until f returns nil, for conditions without a bound of their own.
func (v *victim) eventually(what string, f func() error) {
	v.t.Helper()
	v.eventuallyWithin(patience, what, f)
}

func (v *victim) eventuallyWithin(most time.Duration, what string, f func() error) {
	v.t.Helper()
	testkit.Eventually(v.t, most, what, f)
}

func (v *victim) get(path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Get("http://" + v.http + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// metric returns the sum of a metric over the series that have all given labels, such as `cluster="c2"`.
func (v *victim) metric(name string, labels ...string) float64 {
	v.t.Helper()
	text, err := v.get("/metrics")
	if err != nil {
		v.t.Fatal(err)
	}
	return sumOf(v.t, text, name, labels...)
}

func sumOf(t *testing.T, text, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(text) {
		of, _, _ := strings.Cut(line, "{")
		of, _, _ = strings.Cut(of, " ")
		if of != name || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += value
	}
	return sum
}

// resident returns the broker's resident memory in bytes: now, and the peak since the last forgetPeak.
func (v *victim) resident() (now, peak int) {
	v.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.PID))
	if err != nil {
		v.t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) != 3 {
			continue
		}
		n, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "VmRSS:":
			now = n << 10
		case "VmHWM:":
			peak = n << 10
		}
	}
	return now, peak
}

func (v *victim) forgetPeak() {
	v.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", v.PID), []byte("5"), 0); err != nil {
		v.t.Fatal(err)
	}
}

// costs runs an attack, logs the peak growth of the broker's memory, and fails if it exceeds most bytes.
func (v *victim) costs(what string, most int, attack func()) {
	v.t.Helper()
	v.forgetPeak()
	attack()
	if !v.Runs() {
		v.t.Fatalf("%s: the broker has ended", what)
	}
	_, peak := v.resident()
	v.t.Logf("%s: the broker's resident memory grew by %.1f MiB at most (bound: %d MiB)", what,
		float64(peak-v.idle)/(1<<20), most>>20)
	if peak-v.idle > most {
		v.t.Errorf("%s: the broker's resident memory grew by %d bytes, and %d is the most", what, peak-v.idle, most)
	}
}

// agentToken creates a node with an agent's pod, and returns a token like the one that the kubelet projects.
func (v *victim) agentToken(node, address string) string {
	v.t.Helper()
	ctx := v.t.Context()
	n, err := v.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	if _, err := v.kube.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		v.t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}}
	if _, err := v.kube.CoreV1().ServiceAccounts("semaphore").Get(ctx, account.Name, metav1.GetOptions{}); err != nil {
		if _, err := v.kube.CoreV1().ServiceAccounts("semaphore").Create(ctx, account, metav1.CreateOptions{}); err != nil {
			v.t.Fatal(err)
		}
	}
	pod, err := v.kube.CoreV1().Pods("semaphore").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent-" + node},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account.Name,
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	token, err := v.kube.CoreV1().ServiceAccounts("semaphore").CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{"semaphore-broker.c1"}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod",
				APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	return token.Status.Token
}
