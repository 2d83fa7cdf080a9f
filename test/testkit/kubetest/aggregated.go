package kubetest

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testbed/authority"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

var (
	// calicoV3 is the group that the Calico API server serves.
	calicoV3    = schema.GroupVersion{Group: "projectcalico.org", Version: "v3"}
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

// The namespace and Service of the Calico API server, as in Calico's own manifests.
const calicoNamespace, calicoService = "calico-apiserver", "calico-api"

// StartCalicoAPIServer runs the real Calico API server beside the apiserver of cfg, which must have an administrator's
// rights. It returns when the apiserver serves projectcalico.org/v3 through it. It installs all types of CalicoCRD, in
// which the Calico API server stores its data. remove uninstalls the server; it also stops when the test ends.
func StartCalicoAPIServer(t testing.TB, cfg *rest.Config) (remove func()) {
	t.Helper()
	servers, err := find(t.Context())
	program := ""
	if err == nil {
		program, err = findCalicoAPIServer(t.Context())
	}
	if err != nil {
		testkit.Lacks(t, "no Calico API server to test with: %v", err)
	}
	installAllOfCalico(t, cfg, servers)
	for attempt := 1; ; attempt++ {
		remove, err := startCalicoAPIServer(t, cfg, program)
		if err == nil {
			return remove
		}
		if attempt == 3 || !errors.Is(err, errExited) {
			t.Fatalf("starting a Calico API server: %v", err)
		}
		t.Logf("starting a Calico API server, attempt %d: %v", attempt, err)
	}
}

func startCalicoAPIServer(t testing.TB, cfg *rest.Config, program string) (remove func(), err error) {
	dir := t.TempDir()
	port, err := strconv.Atoi(portOf(loopback.Address(t)))
	if err != nil {
		return nil, err
	}
	ca, err := authority.New("calico-apiserver")
	if err != nil {
		return nil, err
	}
	pair, err := ca.Server([]string{calicoService + "." + calicoNamespace + ".svc"},
		[]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})})
	if err != nil {
		return nil, err
	}
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, content := range map[string][]byte{cert: pair.Cert, key: pair.Key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	kubeconfig := Kubeconfig(t, cfg)
	server, err := run(t, []string{"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + kubeconfig, "LOG_LEVEL=error"}, dir,
		"calico-apiserver", program,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--tls-cert-file="+cert, "--tls-private-key-file="+key,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	if err != nil {
		return nil, err
	}
	unregister, err := register(t, cfg, ca.Cert, port)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	ready := func(context.Context) (bool, error) {
		select {
		case <-server.Exited:
			return false, errors.Join(errExited, server.Err, errors.New(server.Tail()))
		default:
			return served(cfg, calicoV3, "globalnetworksets"), nil
		}
	}
	remove = func() {
		t.Helper()
		unregister()
		server.Kill(t)
	}
	return remove, wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, ready)
}

// register registers the Calico API server, on a port of this machine, at the apiserver as the server of
// projectcalico.org/v3.
func register(t testing.TB, cfg *rest.Config, ca []byte, port int) (unregister func(), err error) {
	admin, services := kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg).Resource(apiServices)
	Namespace(t, admin, calicoNamespace)
	// The IP of an endpoint must not be a loopback address, but an external name may resolve to one.
	_, err = admin.CoreV1().Services(calicoNamespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: calicoService},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	name := calicoV3.Version + "." + calicoV3.Group
	unregister = func() {
		t.Helper()
		if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("APIService %s: %v", name, err)
		}
		gone := func(context.Context) (bool, error) { return !served(cfg, calicoV3, "globalnetworksets"), nil }
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, startTimeout, true, gone); err != nil {
			t.Fatalf("%s is served though its APIService has gone: %v", calicoV3, err)
		}
	}
	unregister()
	_, err = services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiServices.GroupVersion().String(),
		"kind":       "APIService",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"group": calicoV3.Group, "version": calicoV3.Version,
			"groupPriorityMinimum": int64(1500), "versionPriority": int64(200), "caBundle": ca,
			"service": map[string]any{"namespace": calicoNamespace, "name": calicoService, "port": int64(port)},
		},
	}}, metav1.CreateOptions{})
	return unregister, err
}

// installAllOfCalico installs the types of CalicoCRD that are missing.
func installAllOfCalico(t testing.TB, cfg *rest.Config, servers servers) {
	t.Helper()
	crds, err := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions().List(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatalf("CRDs: %v", err)
	}
	var have []string
	for _, crd := range crds.Items {
		have = append(have, crd.Name)
	}
	files, err := filepath.Glob(filepath.Join(servers.calicoCRDs, CalicoCRD.Group+"_*.yaml"))
	if err != nil {
		t.Fatalf("Calico's CRDs: %v", err)
	}
	var missing []string
	for _, file := range files {
		resource := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), CalicoCRD.Group+"_"), ".yaml")
		if !slices.Contains(have, resource+"."+CalicoCRD.Group) {
			missing = append(missing, resource)
		}
	}
	InstallCalico(t, cfg, CalicoCRD, missing...)
}
