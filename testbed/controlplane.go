package testbed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/authority"
	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// apiPort is where every apiserver listens, on its control plane's address.
const apiPort = 6443

// controllers are those that run, by the names of kube-controller-manager. Not among them: the node lifecycle controller
// (the stand-in kubelet sends no heartbeats), those of volumes and cloud providers, and the one of the deprecated
// Endpoints.
var controllers = []string{
	"endpointslice-controller", "endpointslice-mirroring-controller", "namespace-controller",
	"serviceaccount-controller", "serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
	"garbage-collector-controller", "pod-garbage-collector-controller", "clusterrole-aggregation-controller",
	"deployment-controller", "replicaset-controller", "daemonset-controller", "statefulset-controller",
	"job-controller", "ttl-after-finished-controller",
}

// startControlPlane starts etcd, kube-apiserver and, once that answers, kube-controller-manager, and returns when the
// apiserver is ready.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	done := c.tb.times.span(c.Name, "certificates, namespaces")
	var err error
	c.controlPlane, err = connect(c.tb.fabric, c.tb.namespace(c.Name, "cp"), c.Name+"-cp", c.addresses.controlPlane)
	if err != nil {
		return err
	}
	pki := filepath.Join(c.dir, "pki")
	if err := c.makePKI(pki); err != nil {
		return err
	}
	data := filepath.Join(c.dir, "etcd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	done()

	done = c.tb.times.span(c.Name, "etcd answers")
	p := c.tb.paths
	// On loopback of the control plane's namespace: nothing else reaches it.
	const etcdURL, peerURL = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	if err := c.run(ctx, "etcd", c.controlPlane, []string{"etcd",
		"--name=" + c.Name,
		"--data-dir=" + data,
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=" + c.Name + "=" + peerURL,
		"--unsafe-no-fsync", // the data need not outlive the machine
		"--log-level=warn",
	}, p.Etcd); err != nil {
		return err
	}
	if err := poll(ctx, 30*time.Second, "etcd of "+c.Name, func(ctx context.Context) error {
		return get(ctx, c.controlPlane, etcdURL+"/health")
	}); err != nil {
		return err
	}
	done()

	done = c.tb.times.span(c.Name, "kube-apiserver is ready")
	if err := c.run(ctx, "kube-apiserver", c.controlPlane, []string{"kube-apiserver",
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + c.addresses.controlPlane.String(), fmt.Sprintf("--secure-port=%d", apiPort),
		"--advertise-address=" + c.addresses.controlPlane.String(),
		"--service-cluster-ip-range=" + c.addresses.services.String(),
		"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key",
		"--client-ca-file=" + pki + "/ca.crt",
		"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
		"--service-account-signing-key-file=" + pki + "/service-account.key",
		"--service-account-key-file=" + pki + "/service-account.key",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// It taints new nodes until the node lifecycle controller, which does not run, finds them ready.
		"--disable-admission-plugins=TaintNodesByCondition",
		"--allow-privileged=true",
		"--profiling=false",
	}, p.APIServer); err != nil {
		return err
	}
	if err := poll(ctx, 90*time.Second, "kube-apiserver of "+c.Name, func(ctx context.Context) error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	done()
	return c.run(ctx, "kube-controller-manager", c.controlPlane, []string{"kube-controller-manager",
		"--kubeconfig=" + filepath.Join(c.dir, "kube-controller-manager.kubeconfig"),
		"--controllers=" + strings.Join(controllers, ","),
		"--service-account-private-key-file=" + pki + "/service-account.key",
		"--root-ca-file=" + pki + "/ca.crt",
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--authentication-skip-lookup=true",
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--concurrent-gc-syncs=2",
		"--profiling=false",
	}, p.ControllerManager)
}

// makePKI makes the cluster's authority, what apiserver and controllers prove themselves with, the kubeconfigs of all
// users, and the clients of this process.
func (c *Cluster) makePKI(dir string) error {
	ca, err := authority.New("testbed " + c.tb.ID + " " + c.Name)
	if err != nil {
		return err
	}
	server, err := ca.Server(
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain},
		[]netip.Addr{c.addresses.controlPlane, c.addresses.apiService, netip.AddrFrom4([4]byte{127, 0, 0, 1})})
	if err != nil {
		return err
	}
	accountKey, err := authority.Key()
	if err != nil {
		return err
	}
	if err := writeFiles(dir, map[string][]byte{
		"ca.crt": ca.Cert, "apiserver.crt": server.Cert, "apiserver.key": server.Key, "service-account.key": accountKey,
	}); err != nil {
		return err
	}
	c.access = &access{cluster: c.Name, server: c.Server, ca: ca}
	for _, user := range []struct {
		file, name string
		groups     []string
	}{
		{"admin", "admin", []string{"system:masters"}},
		// All controllers are this one user: with a ServiceAccount each they would start seconds later.
		{"kube-controller-manager", "system:kube-controller-manager", []string{"system:masters"}},
		{"kube-proxy", "system:kube-proxy", nil},
		{"felix", felixUser, nil},
	} {
		if err := c.access.kubeconfig(filepath.Join(c.dir, user.file+".kubeconfig"), user.name, user.groups...); err != nil {
			return err
		}
	}
	return c.makeClients()
}

// run starts a component in a root filesystem that shows the machine's programs, the testbed's directory and the
// program itself.
func (c *Cluster) run(ctx context.Context, name string, ns *netns.Namespace, args []string, program string) error {
	mounts, err := systemMounts()
	if err != nil {
		return err
	}
	mounts = append(mounts, programMounts(program)...)
	mounts = append(mounts, container.Mount{Source: c.tb.state.path, Target: c.tb.state.path})
	return c.supervise(ctx, name, container.Spec{
		Name: c.Name + "/" + name, Netns: ns, Args: args, Env: []string{"PATH=" + searchPath, "HOME=/"},
		Root: c.tb.emptyDir(), Mounts: mounts, Output: filepath.Join(c.logs(), name+".log"),
	})
}

// get asks for a URL inside a namespace and is content with 200 alone.
func get(ctx context.Context, ns *netns.Namespace, url string) error {
	transport := &http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func hostPort(ip netip.Addr, port uint16) string {
	return net.JoinHostPort(ip.String(), fmt.Sprint(port))
}
