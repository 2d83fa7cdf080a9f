package helm

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare, modules)
	os.Exit(m.Run())
}

const (
	values = "cluster: c1\ncomponents: {ippools: true}\n" +
		"broker: {config: {localSubnets: [10.1.0.0/16, 10.101.0.0/16, 192.0.2.0/28], manageIPPools: true}}\n"
	remotes = "remoteClusters: {c2: {podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.16/28]}}\n"
	pool    = "IPPool /semaphore-c2-10-2-0-0-16"
)

// release is a cluster with the chart. No pod runs there: a process is the broker of the release, with its
// configuration.
type release struct {
	t       *testing.T
	cfg     *rest.Config
	helm    *action.Configuration
	before  map[string]bool
	program string
	broker  *exec.Cmd

	mu sync.Mutex
	// deleted are the paths of what Helm deleted, in that order.
	deleted []string
}

// watched records what Helm deletes. A Deployment's pods end with it: so does the broker.
func (r *release) watched(next http.RoundTripper) http.RoundTripper {
	return kubetest.RoundTripper(func(req *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(req)
		if req.Method == http.MethodDelete {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.deleted = append(r.deleted, req.URL.Path)
			if strings.HasSuffix(req.URL.Path, "/deployments/semaphore-broker") {
				r.stop()
			}
		}
		return answer, err
	})
}

func (r *release) stop() {
	if r.broker != nil {
		_ = r.broker.Process.Kill()
		_ = r.broker.Wait()
		r.broker = nil
	}
}

func given(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	testkit.Must(t, yaml.UnmarshalStrict([]byte(text), &v))
	return v
}

// newRelease starts a cluster.
func newRelease(t *testing.T, program string) *release {
	t.Helper()
	r := &release{t: t, program: program, cfg: kubetest.Start(t), helm: new(action.Configuration)}
	kubetest.StartControllers(t, r.cfg, "namespace-controller")
	kubetest.InstallCalico(t, r.cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	r.before = r.objects()
	kubeconfig, namespace := kubetest.Kubeconfig(t, r.cfg), "semaphore"
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.Wrap(r.watched)
		return c
	}
	testkit.Must(t, r.helm.Init(flags, namespace, "", t.Logf))
	return r
}

// install installs the chart with a remote, and waits until the broker has written something for it.
func (r *release) install() {
	r.t.Helper()
	install := action.NewInstall(r.helm)
	install.ReleaseName, install.Namespace, install.CreateNamespace = "semaphore", "semaphore", true
	testkit.Value(install.Run(load(r.t), given(r.t, values+remotes)))(r.t)
	r.start()
	testkit.Eventually(r.t, 3*time.Minute, "the broker writes a pool", func() error {
		if left := r.left(); !left[pool] {
			return fmt.Errorf("there is %v", slices.Sorted(maps.Keys(left)))
		}
		return nil
	})
}

// start starts the broker with the configuration of the release.
func (r *release) start() {
	r.t.Helper()
	held := testkit.Value(kubernetes.NewForConfigOrDie(r.cfg).CoreV1().ConfigMaps("semaphore").Get(r.t.Context(),
		"semaphore-broker", metav1.GetOptions{}))(r.t)
	keys := trust.New(r.t, "c1")
	config := given(r.t, held.Data["config.yaml"])
	config["kube"] = map[string]any{"kubeConfigPath": kubetest.Kubeconfig(r.t, r.cfg)}
	config["leaderElection"] = map[string]any{"enabled": false}
	config["tls"] = map[string]any{"certFile": string(keys) + "/c1/broker/tls.crt",
		"keyFile": string(keys) + "/c1/broker/tls.key", "bundleDir": keys.Bundles()}
	config["listen"] = map[string]any{"federation": loopback.Address(r.t), "peering": loopback.Address(r.t),
		"http": loopback.Address(r.t), "debugSocket": string(keys) + "/broker.sock"}
	data := testkit.Value(yaml.Marshal(config))(r.t)
	file := filepath.Join(r.t.TempDir(), "broker.yaml")
	testkit.Must(r.t, os.WriteFile(file, data, 0o600))
	r.broker = exec.Command(r.program, "--config", file)
	r.broker.Stdout, r.broker.Stderr = os.Stderr, os.Stderr
	testkit.Must(r.t, r.broker.Start())
	r.t.Cleanup(r.stop)
}

// objects returns all of the cluster, as KIND NAMESPACE/NAME, without what the apiserver renews and reports itself.
func (r *release) objects() map[string]bool {
	r.t.Helper()
	served := testkit.Value(discovery.NewDiscoveryClientForConfigOrDie(r.cfg).ServerPreferredResources())(r.t)
	client, out := dynamic.NewForConfigOrDie(r.cfg), map[string]bool{}
	for _, list := range served {
		of := testkit.Value(schema.ParseGroupVersion(list.GroupVersion))(r.t)
		for _, one := range list.APIResources {
			if !slices.Contains(one.Verbs, "list") || slices.Contains([]string{"Event", "APIService", "IPAddress",
				"ComponentStatus"}, one.Kind) {
				continue
			}
			found, err := client.Resource(of.WithResource(one.Name)).List(r.t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // the definition has been deleted meanwhile
			}
			if err != nil {
				r.t.Fatalf("%s: %v", one.Name, err)
			}
			for _, o := range found.Items {
				out[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = true
			}
		}
	}
	return out
}

// left returns what the cluster did not have before the chart.
func (r *release) left() map[string]bool {
	r.t.Helper()
	all := r.objects()
	maps.DeleteFunc(all, func(name string, _ bool) bool { return r.before[name] })
	return all
}

func (r *release) uninstall() {
	r.t.Helper()
	testkit.Value(action.NewUninstall(r.helm).Run("semaphore"))(r.t)
}

// TestRemoval runs the steps of docs/helm.md#remove-the-chart against an apiserver, with a broker: nothing is left. If
// helm uninstall comes first, what the broker has of a remote stays, since Helm deletes the RemoteClusters after the
// broker; the document's way out of this removes it.
func TestRemoval(t *testing.T) {
	program := filepath.Join(t.TempDir(), "semaphore-broker")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", program,
		"./cmd/semaphore-broker").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	t.Run("in the order of the document", func(t *testing.T) {
		r := newRelease(t, program)
		r.install()
		r.remove()
	})
	t.Run("helm uninstall first", func(t *testing.T) {
		r := newRelease(t, program)
		r.install()
		r.uninstall()
		if !r.left()[pool] {
			t.Errorf("the pool is gone: the document says that it may stay")
		}
		broker := slices.IndexFunc(r.deleted, func(path string) bool {
			return strings.HasSuffix(path, "/deployments/semaphore-broker")
		})
		remote := slices.IndexFunc(r.deleted, func(path string) bool {
			return strings.HasSuffix(path, "/remoteclusters/c2")
		})
		if broker < 0 || remote < broker {
			t.Errorf("helm uninstall deletes the broker as number %d, the RemoteCluster as number %d", broker, remote)
		}
		r.install()
		r.remove()
	})
	t.Run("after semaphorectl uninstall", func(t *testing.T) {
		r := newRelease(t, program)
		left := kustomize(t, "resources: [DEPLOY/broker]\n", map[string]string{})
		for kind, resource := range map[string]string{"ValidatingAdmissionPolicy": "validatingadmissionpolicies",
			"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings"} {
			of := admissionregistrationv1.SchemeGroupVersion.WithResource(resource)
			one := &unstructured.Unstructured{Object: left[kind+" <nil>/semaphore-slice-addresses"]}
			testkit.Value(dynamic.NewForConfigOrDie(r.cfg).Resource(of).Create(t.Context(), one, metav1.CreateOptions{}))(t)
		}
		install := action.NewInstall(r.helm)
		install.ReleaseName, install.Namespace, install.CreateNamespace = "semaphore", "semaphore", true
		if _, err := install.Run(load(t), given(t, values)); err == nil ||
			!strings.Contains(err.Error(), "semaphore-slice-addresses") {
			t.Errorf("without --take-ownership: %v", err)
		}
		install.TakeOwnership = true
		testkit.Value(install.Run(load(t), given(t, values)))(t)
	})
}

// remove is the document's removal.
func (r *release) remove() {
	r.t.Helper()
	with := r.left()
	upgrade := action.NewUpgrade(r.helm)
	upgrade.Namespace = "semaphore"
	testkit.Value(upgrade.Run("semaphore", load(r.t), given(r.t, strings.Replace(values, "broker: {",
		"broker: {env: [{name: GOMEMLIMIT, value: 7200MiB}], ", 1))))(r.t)
	broker := testkit.Value(kubernetes.NewForConfigOrDie(r.cfg).AppsV1().Deployments("semaphore").Get(r.t.Context(),
		"semaphore-broker", metav1.GetOptions{}))(r.t)
	var limits []string
	for _, v := range broker.Spec.Template.Spec.Containers[0].Env {
		if v.Name == "GOMEMLIMIT" {
			limits = append(limits, v.Value)
		}
	}
	if !slices.Equal(limits, []string{"7200MiB"}) {
		r.t.Errorf("an upgrade with another GOMEMLIMIT has %q", limits)
	}
	testkit.Eventually(r.t, 3*time.Minute, "the broker removes what it has of the remote", func() error {
		if r.left()[pool] {
			return errors.New("the pool is still there")
		}
		return nil
	})
	without := r.left()
	maps.DeleteFunc(with, func(name string, _ bool) bool { return without[name] })
	if removed := slices.Sorted(maps.Keys(with)); !slices.Equal(removed, []string{pool, "RemoteCluster /c2"}) {
		r.t.Errorf("an upgrade without remotes removes %v", removed)
	}
	r.uninstall()
	client := dynamic.NewForConfigOrDie(r.cfg)
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	for of, name := range map[schema.GroupVersionResource]string{
		corev1.SchemeGroupVersion.WithResource("namespaces"): "semaphore", definitions: "remoteclusters.semaphore.uw.io",
	} {
		testkit.Must(r.t, client.Resource(of).Delete(r.t.Context(), name, metav1.DeleteOptions{}))
	}
	testkit.Eventually(r.t, 3*time.Minute, "nothing is left", func() error {
		left := r.left()
		maps.DeleteFunc(left, func(name string, _ bool) bool { // docs/removal.md has the reason
			return strings.HasPrefix(name, "ValidatingAdmissionPolicy") && strings.HasSuffix(name, "/semaphore-slice-addresses")
		})
		if len(left) > 0 {
			return fmt.Errorf("left is %v", slices.Sorted(maps.Keys(left)))
		}
		return nil
	})
}
