// Package kubetest gives tests a real apiserver: etcd and kube-apiserver run as processes on loopback with RBAC on.
// They stop when the test ends, or with Reusing when all tests of the package have ended. No controller runs: only the
// test and what it tests change objects, and a namespace has no default ServiceAccount.
//
// It is for tests only, and knows nothing of semaphore.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// startTimeout is the timeout for the start of both servers. On two idle cores it takes five seconds.
const startTimeout = 3 * time.Minute

// Prepare finds or builds the programs that this package starts. It is an argument for loopback.Enter: the namespace in
// which the tests run has no network to build with.
func Prepare() error {
	_, err := find(context.Background())
	return err
}

// defaultRange is the address range for Services of Start.
const defaultRange = "10.96.0.0/16"

// Start starts an apiserver with an empty store, and returns the configuration of a client that has all rights and no
// rate limit. Both servers stop when the test ends. With Reusing, Start may return an apiserver of a test that has
// ended instead, whose store is empty again.
//
// Start skips the test with -short, or if the servers can be neither found nor built; with CI=true the latter fails the
// test.
//
// To act with fewer rights, set Impersonate in a copy of the configuration. Pods may have any serviceAccountName:
// admission does not check that it exists.
func Start(t testing.TB) *rest.Config {
	t.Helper()
	if idle.reuse && !testing.Short() {
		return rest.CopyConfig(reused(t).cfg)
	}
	cfg, _ := startWith(t, defaultRange)
	return cfg
}

// StartWith is Start with address ranges for Services: one, or one of each family, separated by a comma.
func StartWith(t testing.TB, serviceRanges string) *rest.Config {
	t.Helper()
	if serviceRanges == defaultRange {
		return Start(t)
	}
	cfg, _ := startWith(t, serviceRanges)
	return cfg
}

func startWith(t testing.TB, serviceRanges string, flags ...string) (*rest.Config, *Store) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a kube-apiserver, which -short leaves out")
	}
	servers, err := find(t.Context())
	if err != nil {
		testkit.Lacks(t, "no kube-apiserver to test with: %v", err)
	}
	// On the machine's own loopback, without root, another process can bind a port between the check and the server's
	// start.
	for attempt := 1; ; attempt++ {
		cfg, store, err := start(t, servers, serviceRanges, flags)
		if err == nil {
			return cfg, store
		}
		if attempt == 3 || !errors.Is(err, errExited) {
			t.Fatalf("starting an apiserver: %v", err)
		}
		t.Logf("starting an apiserver, attempt %d: %v", attempt, err)
	}
}

func start(t testing.TB, servers servers, serviceRanges string, flags []string) (*rest.Config, *Store, error) {
	dir := t.TempDir()
	pki, err := newPKI(dir)
	if err != nil {
		return nil, nil, err
	}
	ready, err := components.StartsAPIServer(t.Context())
	if err != nil {
		return nil, nil, err
	}
	defer ready()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	etcdURL, peerURL := "http://"+loopback.Address(t), "http://"+loopback.Address(t)
	address := loopback.Address(t)
	store := &Store{data: filepath.Join(dir, "etcd-data"), url: etcdURL}
	store.runEtcd = runs(nil, dir, "etcd", servers.etcd,
		"--name=kubetest",
		"--data-dir="+store.data,
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=kubetest="+peerURL,
		"--unsafe-no-fsync", "--log-level=warn")
	store.runAPIServer = runs([]string{components.CollectsLess}, dir, "kube-apiserver", servers.apiserver, append(flags,
		"--etcd-servers="+etcdURL,
		"--bind-address=127.0.0.1", "--secure-port="+portOf(address),
		// Otherwise the apiserver would create an endpoint of the Service kubernetes with a loopback address, which is
		// invalid.
		"--endpoint-reconciler-type=none",
		// The address is never used. Without the flag the apiserver takes that of the default route, which may not
		// exist.
		"--advertise-address=192.0.2.1",
		"--service-cluster-ip-range="+serviceRanges,
		"--tls-cert-file="+pki.serverCert, "--tls-private-key-file="+pki.serverKey,
		"--client-ca-file="+pki.ca, "--token-auth-file="+pki.tokens,
		// An aggregated API server uses these to learn on whose behalf the apiserver asks.
		"--requestheader-client-ca-file="+pki.ca, "--requestheader-allowed-names="+frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+pki.proxyCert, "--proxy-client-key-file="+pki.proxyKey,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+pki.serviceAccountKey,
		"--service-account-key-file="+pki.serviceAccountKey,
		"--authorization-mode=Node,RBAC",
		// No controller creates the default ServiceAccounts that this plugin requires.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true", "--profiling=false")...)
	store.cfg = &rest.Config{
		Host:            "https://" + address,
		TLSClientConfig: rest.TLSClientConfig{CAData: pki.caPEM},
		BearerToken:     pki.admin,
		QPS:             -1,
	}
	keys.Store(store.cfg.Host, dir)
	if err := store.start(ctx, t); err != nil {
		return nil, nil, err
	}
	return store.cfg, store, nil
}

// waitReady returns when the apiserver reports that it is ready, or with the reason why it will not be.
func waitReady(ctx context.Context, cfg *rest.Config, processes ...*testkit.Process) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var last error
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); last == nil {
			return nil
		}
		for _, p := range processes {
			if !p.Runs() {
				return fmt.Errorf("%s %w: %v\n%s", p.Name, errExited, p.Err, p.Tail())
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w, at last: %v\n%s", ctx.Err(), last, processes[len(processes)-1].Tail())
		}
	}
}

// Kubeconfig writes a kubeconfig file with which programs and config.Kube reach the apiserver like cfg, and returns its
// path.
func Kubeconfig(t testing.TB, cfg *rest.Config) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		Token: cfg.BearerToken, Impersonate: cfg.Impersonate.UserName, ImpersonateGroups: cfg.Impersonate.Groups,
	}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatalf("kubeconfig: %v", err)
	}
	return path
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
