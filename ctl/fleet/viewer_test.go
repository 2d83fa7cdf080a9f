package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// orders counts the orders that a part receives.
type orders struct {
	semaphorev1.UnimplementedControlServiceServer
	n atomic.Int32
}

func (o *orders) Drain(context.Context, *semaphorev1.DrainRequest) (*semaphorev1.DrainResponse, error) {
	o.n.Add(1)
	return &semaphorev1.DrainResponse{}, nil
}

// TestViewer: with the ClusterRole semaphore-viewer alone, as it ships, every verb that asks parts works, every verb
// that orders is refused by the apiserver, and pods/exec runs nothing else. Who has pods/exec by another role, and an
// administrator, is not confined.
func TestViewer(t *testing.T) {
	cfg, admin := startServer(t)
	k := &kubelet{t: t, sockets: map[string]string{}}
	k.serve(admin)
	well := func() *semaphorev1.GetStatusResponse { return &semaphorev1.GetStatusResponse{Ready: true} }
	for _, part := range []string{"broker", "exporter", "agent"} {
		k.pod(admin, "semaphore-"+part, part, true, well)
	}
	applyViewer(t, cfg)
	kubetest.Create(t, admin.RbacV1().RoleBindings("semaphore"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "semaphore-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: "viewer"}},
	})
	as := func(user string) *fleet.Cluster {
		cfg := rest.CopyConfig(cfg)
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user}
		return testkit.Value(fleet.NewCluster(user, "semaphore", cfg))(t)
	}
	execs := func(c *fleet.Cluster, container string, command ...string) error {
		k.were()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- c.Exec(ctx, &fleet.Pod{Namespace: "semaphore", Name: "semaphore-" + container, Container: container},
				fleet.Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}, command...)
		}()
		for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
			asked := len(k.were()) > 0
			select {
			case err := <-ended:
				tick.Stop()
				if asked || len(k.were()) > 0 {
					return nil // the kubelet was asked
				}
				return err
			default:
			}
			if asked {
				cancel()
				<-ended
				tick.Stop()
				return nil
			}
		}
	}
	viewer := as("viewer")
	testkit.Eventually(t, 3*time.Minute, "the role and the policy are in effect", func() error {
		err := execs(viewer, "broker", "sh")
		if err == nil || !strings.Contains(err.Error(), "may only ask") {
			return fmt.Errorf("sh is not refused by the policy: %w", err)
		}
		return nil
	})
	for _, command := range []string{"sh", "semaphorectl", "semaphorectl stdio",
		"semaphorectl stdio --read-only --socket x",
		"semaphorectl drain cluster c2", "semaphorectl rotate-key --all", "/bin/semaphorectl stdio --read-only",
		"semaphorectl check --config /etc/shadow -o json --timeout 5s",
		"semaphorectl check --config /etc/semaphore/config.yaml -o json --timeout 5s --dir /etc",
		"semaphorectl check --config /etc/semaphore/config.yaml -o json --timeout 5s --coredns a --cluster-domain b --own x",
		"semaphorectl check --config /etc/semaphore/config.yaml -o json --timeout 5s --coredns a --dir /etc"} {
		if err := execs(viewer, "agent", strings.Fields(command)...); err == nil ||
			!strings.Contains(err.Error(), "may only ask") {
			t.Errorf("a viewer runs %q: %v", command, err)
		}
	}
	if err := execs(viewer, "agent", "semaphorectl stdio --read-only"); err == nil {
		t.Error("a viewer runs a program with spaces in its name")
	}
	for _, command := range []string{"semaphorectl stdio --read-only",
		"semaphorectl check --config /etc/semaphore/config.yaml -o json --timeout 1m5s",
		"semaphorectl check --config /etc/semaphore/config.yaml -o json --timeout 5s --coredns kube-system/coredns " +
			"--cluster-domain cluster.local"} {
		must(t, execs(viewer, "broker", strings.Fields(command)...))
	}
	operator(t, admin, cfg, "debugger", rights)
	must(t, execs(as("debugger"), "broker", "sh"))
	must(t, execs(&fleet.Cluster{Context: "c1", Namespace: "semaphore", Config: cfg}, "broker", "sh"))

	kubeconfig := kubetest.Kubeconfig(t, viewer.Config)
	call := func(args string) (string, error) {
		k.were()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := ctl.Command()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append(strings.Fields(args), "--kubeconfig", kubeconfig))
		err := cmd.ExecuteContext(ctx)
		return out.String(), err
	}
	// The missing answer of a part's stand-in does not matter: it was asked.
	for _, verb := range []string{"status", "status --agent n1", "status -o svg", "get services", "get sets",
		"get nodes", "get findings", "get ip 10.2.1.1", "get drains", "trace --history service/shop/echo",
		"trace service/shop/echo", "check"} {
		out, err := call(verb)
		asked := k.were()
		if len(asked) == 0 || err != nil && strings.Contains(err.Error(), "forbidden") {
			t.Errorf("a viewer calls %s: %v, asked %q\n%s", verb, err, asked, out)
		}
		for _, one := range asked {
			if !strings.HasSuffix(one, ": semaphorectl stdio --read-only") &&
				!strings.Contains(one, ": semaphorectl check --config /etc/semaphore/config.yaml -o json ") {
				t.Errorf("%s runs %q", verb, one)
			}
		}
	}
	for _, verb := range []string{"drain cluster c2", "drain service c2:shop/echo", "drain node c2/n1",
		"undrain cluster c2", "undrain service c2:shop/echo", "undrain node c2/n1", "release c2", "rotate-key --all",
		"rotate-key --agent n1 --all", "install", "uninstall --yes", "unlink c2 --force --yes", "pki init --cluster c1",
		"pki rotate"} {
		out, err := call(verb)
		if asked := k.were(); err == nil || len(asked) > 0 || !strings.Contains(out+err.Error(), "forbidden") &&
			!strings.Contains(out+err.Error(), "may only ask") && !strings.Contains(out, "RightMissing") {
			t.Errorf("a viewer calls %s: %v, asked %q\n%s", verb, err, asked, out)
		}
	}
	if n := k.orders.n.Load(); n != 0 {
		t.Errorf("%d orders arrived", n)
	}
	// The socket takes no order from anybody.
	target := fleet.Target{Parts: []string{"broker"},
		Access: &fleet.Access{Kubeconfig: kubeconfig, Namespace: "semaphore"}}
	for _, p := range testkit.Value(target.Dial(t.Context()))(t) {
		_, err := p.Control().Drain(t.Context(), &semaphorev1.DrainRequest{})
		if err == nil || !strings.Contains(err.Error(), "unknown service") {
			t.Errorf("an order over the transport of readers: %v", err)
		}
		must(t, p.Close())
	}
}

// applyViewer creates the objects of the manifest.
func applyViewer(t *testing.T, cfg *rest.Config) {
	t.Helper()
	text := testkit.Value(os.ReadFile("../../deploy/broker/viewer.yaml"))(t)
	client := dynamic.NewForConfigOrDie(cfg)
	for _, one := range strings.Split(string(text), "\n---\n") {
		o := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal([]byte(one), &o.Object))
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		kubetest.CreateObject(t, client.Resource(resource), o)
	}
}
