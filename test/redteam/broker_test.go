package redteam

import (
	"bytes"
	"context"
	"fmt"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// programs returns the programs of the checkout, which are built once.
var programs = sync.OnceValues(func() (map[string]string, error) {
	return (&components.Builder{Progress: os.Stderr}).Programs(context.Background())
})

// patience is the timeout of everything that has no bound of its own, for a busy machine.
const patience = 3 * time.Minute

// victim is cluster c1: a real apiserver and a real broker or exporter with deploy/example/c1, whose remotes are
// RemoteClusters: c2 of the example, and c3. Actions of c2 must not affect c3.
type victim struct {
	*testkit.Process

	// part is broker or exporter.
	part string

	t    *testing.T
	dir  string
	rest *rest.Config
	kube kubernetes.Interface
	// federation, peering and http are the addresses of the listeners; only a broker has the first two.
	federation, peering, http string
	log                       string
	// idle is the memory of the program, in bytes, when it became ready.
	idle int
	// cfg is the program's file, and remotes are the RemoteClusters that exist before it runs.
	cfg     map[string]any
	remotes []*v1alpha1.RemoteCluster
}

// start runs the broker with the shipped configuration. change may change it.
func start(t *testing.T, change ...func(v *victim)) *victim {
	t.Helper()
	v := prepare(t)
	for _, c := range change {
		c(v)
	}
	v.run()
	return v
}

// prepare is start without running the broker.
func prepare(t *testing.T) *victim {
	t.Helper()
	v := newVictim(t, "broker")
	kubetest.InstallCalico(t, v.rest, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	v.federation, v.peering = loopback.Address(t), loopback.Address(t)
	v.cfg["listen"] = map[string]any{"federation": v.federation, "peering": v.peering, "http": v.http,
		"debugSocket": v.path("broker.sock")}
	return v
}

func newVictim(t *testing.T, part string) *victim {
	t.Helper()
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	// A socket path has at most 107 bytes (unix(7)), and t.TempDir may be longer.
	dir := testkit.Value(os.MkdirTemp("", "redteam"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	v := &victim{t: t, part: part, dir: dir, rest: api, kube: kubernetes.NewForConfigOrDie(api),
		log: filepath.Join(dir, part+".log")}
	trust.In(t, v.dir, "c1", "c2", "c3")
	kubetest.Namespace(t, v.kube, "semaphore")
	v.http = loopback.Address(t)
	shipped(t, part+".yaml", &v.cfg)
	v.remotes = append(v.remotes, &v1alpha1.RemoteCluster{})
	shipped(t, "remotes/c2.yaml", v.remotes[0])
	v.add("c3", "10.3.0.0/16", "192.0.2.32/28")
	// The differences from the example: the remote c3, paths and addresses, and no leader election. The program has its
	// own root in a file; the objects have those of others.
	v.cfg["cluster"] = "c1"
	v.cfg["leaderElection"] = map[string]any{"enabled": false, "namespace": "semaphore"}
	own, err := os.ReadFile(v.path("bundles", "c1.pem"))
	if err == nil {
		err = os.Mkdir(v.path("own"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(v.path("own", "c1.pem"), own, 0o644)
	}
	testkit.Must(t, err)
	v.cfg["tls"] = map[string]any{"certFile": v.path("c1", part, "tls.crt"),
		"keyFile": v.path("c1", part, "tls.key"), "bundleDir": v.path("own")}
	v.cfg["kube"] = map[string]any{"kubeConfigPath": kubetest.Kubeconfig(t, api)}
	return v
}

// shipped reads a file of deploy/example/c1.
func shipped(t *testing.T, file string, into any) {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../deploy/example/c1/" + file))(t)
	testkit.Must(t, yaml.UnmarshalStrict(text, into))
}

// add adds a remote with the fields of the example's RemoteCluster.
func (v *victim) add(name, pods, nodes string) *v1alpha1.RemoteCluster {
	r := v.remotes[0].DeepCopy()
	r.Name, r.Spec.PodSubnets, r.Spec.NodeSubnets = name, []v1alpha1.Subnet{v1alpha1.Subnet(pods)},
		[]v1alpha1.Subnet{v1alpha1.Subnet(nodes)}
	v.remotes = append(v.remotes, r)
	return r
}

// limit sets limits of a remote before the broker runs.
func limit(name string, limits v1alpha1.Limits) func(*victim) {
	return func(v *victim) { v.remote(name).Spec.Limits = &limits }
}

// remote returns the RemoteCluster of a remote as it is before the broker runs.
func (v *victim) remote(name string) *v1alpha1.RemoteCluster {
	v.t.Helper()
	i := slices.IndexFunc(v.remotes, func(r *v1alpha1.RemoteCluster) bool { return r.Name == name })
	if i < 0 {
		v.t.Fatalf("there is no remote %s", name)
	}
	return v.remotes[i]
}

// objects is the client for RemoteClusters.
func (v *victim) objects() dynamic.ResourceInterface {
	return dynamic.NewForConfigOrDie(v.rest).Resource(v1alpha1.RemoteClusters)
}

// create makes the RemoteCluster of a remote, with the root of the remote, as an operator does.
func (v *victim) create(r *v1alpha1.RemoteCluster) {
	v.t.Helper()
	bundle := testkit.Value(os.ReadFile(v.path("bundles", r.Name+".pem")))(v.t)
	o := r.DeepCopy()
	o.Spec.TrustBundle = string(bundle)
	u := testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(v.t)
	testkit.Value(v.objects().Create(v.t.Context(), &unstructured.Unstructured{Object: u},
		metav1.CreateOptions{}))(v.t)
}

// accepted returns the condition Accepted of a RemoteCluster's present spec, nil before the broker has decided.
func (v *victim) accepted(name string) *metav1.Condition {
	v.t.Helper()
	u := testkit.Value(v.objects().Get(v.t.Context(), name, metav1.GetOptions{}))(v.t)
	var r v1alpha1.RemoteCluster
	testkit.Must(v.t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &r))
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionAccepted)
	if c == nil || c.ObservedGeneration != r.Generation {
		return nil
	}
	return c
}

// decides waits until the broker has accepted the present spec of a RemoteCluster, or has refused it with a reason and
// a message that contains a text.
func (v *victim) decides(name, reason, text string) {
	v.t.Helper()
	v.eventually("the broker decides on "+name, func() error {
		c := v.accepted(name)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition Accepted: %v; want %s: %s", c, reason, text)
		}
		return nil
	})
}

func (v *victim) path(elements ...string) string {
	return filepath.Join(append([]string{v.dir}, elements...)...)
}

// configure writes the configuration of the program, and makes the RemoteClusters that do not exist yet.
func (v *victim) configure() {
	v.t.Helper()
	text := testkit.Value(yaml.Marshal(v.cfg))(v.t)
	testkit.Must(v.t, os.WriteFile(v.path(v.part+".yaml"), text, 0o644))
	if v.part == "broker" {
		v.writePolicyKeys(text)
	}
	for _, r := range v.remotes {
		if _, err := v.objects().Get(v.t.Context(), r.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			v.create(r)
		} else if err != nil {
			v.t.Fatal(err)
		}
	}
}

// writePolicyKeys writes what the ConfigMap semaphore-subnets has beside a broker's configuration, as install does.
func (v *victim) writePolicyKeys(text []byte) {
	v.t.Helper()
	cfg, err := config.Parse[config.Broker](text)
	if err != nil {
		return // the broker refuses it, too
	}
	testkit.Must(v.t, os.MkdirAll(v.path("policy-keys"), 0o755))
	for key, value := range config.PolicyKeys(cfg) {
		testkit.Must(v.t, os.WriteFile(v.path("policy-keys", key), []byte(value), 0o644))
	}
}

// run starts the program with the environment in its deployment.yaml in deploy/, and waits until it is ready.
func (v *victim) run() {
	v.t.Helper()
	bins := testkit.Value(programs())(v.t)
	v.configure()
	cmd := exec.Command(bins["semaphore-"+v.part], "--config", v.path(v.part+".yaml"))
	cmd.Env = append(os.Environ(), shippedEnvironment(v.t, v.part)...)
	cmd.Env = append(cmd.Env, "POLICY_KEYS="+v.path("policy-keys"))
	v.Process = testkit.Value(testkit.Start(v.t, "the "+v.part, v.log, cmd))(v.t)
	v.eventually("the "+v.part+" is ready", func() error {
		if !v.Runs() {
			v.t.Fatalf("the %s has ended", v.part)
		}
		_, err := v.get("/readyz")
		return err
	})
	v.idle, _ = v.resident()
}

// kill ends the program like a crash.
func (v *victim) kill() { v.Kill(v.t) }

// shippedEnvironment returns the environment of a part's container.
func shippedEnvironment(t *testing.T, part string) (env []string) {
	t.Helper()
	data := testkit.Value(os.ReadFile("../../deploy/" + part + "/deployment.yaml"))(t)
	var d appsv1.Deployment
	testkit.Must(t, yaml.UnmarshalStrict(data, &d))
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
	testkit.Eventually(v.t, patience, what, f)
}

func (v *victim) get(path string) (string, error) {
	return testkit.Get(v.t.Context(), "http://"+v.http+path)
}

// metric returns the sum of a metric over the series that have all given labels, such as `cluster="c2"`.
func (v *victim) metric(name string, labels ...string) float64 {
	v.t.Helper()
	return testkit.Scraped(v.t, testkit.Value(v.get("/metrics"))(v.t), name, labels...)
}

// counts waits until a metric has a value.
func (v *victim) counts(want float64, name string, labels ...string) {
	v.t.Helper()
	v.eventually(fmt.Sprint(name, labels, " is ", want), func() error {
		if got := v.metric(name, labels...); got != want {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

// resident returns the program's resident memory in bytes: now, and the peak since the last forgetPeak.
func (v *victim) resident() (now, peak int) {
	v.t.Helper()
	data := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", v.PID)))(v.t)
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
	testkit.Must(v.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", v.PID), []byte("5"), 0))
}

// costs runs an attack, logs the peak growth of the program's memory, and fails if it exceeds most bytes.
func (v *victim) costs(what string, most int, attack func()) {
	v.t.Helper()
	v.forgetPeak()
	attack()
	if !v.Runs() {
		v.t.Fatalf("%s: the %s has ended", what, v.part)
	}
	_, peak := v.resident()
	v.t.Logf("%s: the %s's resident memory grew by %.1f MiB at most (bound: %d MiB)", what, v.part,
		float64(peak-v.idle)/(1<<20), most>>20)
	if peak-v.idle > most {
		v.t.Errorf("%s: the %s's resident memory grew by %d bytes, and %d is the most", what, v.part, peak-v.idle, most)
	}
}

// agentToken creates a node with an agent's pod, and returns a token like the one that the kubelet projects.
func (v *victim) agentToken(node, address string) string {
	v.t.Helper()
	_, token := kubetest.Agent(v.t, v.kube, node, address, "semaphore-broker.c1")
	return token
}
