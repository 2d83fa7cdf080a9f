package testbed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/authority"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// apiPort is the port of every apiserver. Each listens on the address of its control plane.
const apiPort = 6443

// startControlPlane starts etcd and kube-apiserver, waits until each is ready, and then starts kube-controller-manager
// and kube-scheduler. makePKI must have run before.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	a := c.addresses
	var err error
	c.controlPlane, err = connect(c.tb.fabric, c.tb.namespace(c.Name, "cp"), c.Name+"-cp", a.controlPlane, a.controlPlane6)
	if err != nil {
		return err
	}
	if err := c.tb.cgroups.Create(c.controlPlaneGroup()); err != nil {
		return err
	}
	for _, start := range []func(context.Context) error{
		c.startEtcd, c.startAPIServer, c.startControllerManager, c.startScheduler,
	} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// etcdURL is on the loopback interface of the control plane's namespace, so only the control plane reaches it.
const etcdURL = "http://127.0.0.1:2379"

func (c *Cluster) startEtcd(ctx context.Context) error {
	data := filepath.Join(c.dir, "etcd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	done := c.tb.times.span(c.Name, "etcd answers")
	const peerURL = "http://127.0.0.1:2380"
	if err := c.run(ctx, "etcd", c.controlPlane, []string{"etcd",
		"--name=" + c.Name,
		"--data-dir=" + data,
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=" + c.Name + "=" + peerURL,
		"--unsafe-no-fsync", // the data need not outlive the machine
		"--log-level=warn",
	}, c.tb.paths.Etcd); err != nil {
		return err
	}
	if err := poll(ctx, patience, "etcd of "+c.Name, func(ctx context.Context) error {
		return get(ctx, c.controlPlane, etcdURL+"/health")
	}); err != nil {
		return err
	}
	done()
	return nil
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	ready, err := components.StartsAPIServer(ctx)
	if err != nil {
		return err
	}
	defer ready()
	pki, done := c.pki(), c.tb.times.span(c.Name, "kube-apiserver is ready")
	if err := c.run(ctx, "kube-apiserver", c.controlPlane, []string{"kube-apiserver",
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + c.addresses.controlPlane.String(), fmt.Sprintf("--secure-port=%d", apiPort),
		"--advertise-address=" + c.addresses.controlPlane.String(),
		"--service-cluster-ip-range=" + both(c.addresses.services, c.addresses.services6),
		"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key",
		"--client-ca-file=" + pki + "/ca.crt",
		"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
		"--service-account-signing-key-file=" + pki + "/service-account.key",
		"--service-account-key-file=" + pki + "/service-account.key",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + pki + "/kubelet-client.crt", "--kubelet-client-key=" + pki + "/kubelet-client.key",
		"--kubelet-certificate-authority=" + pki + "/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki + "/ca.crt", "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki + "/front-proxy.crt", "--proxy-client-key-file=" + pki + "/front-proxy.key",
		// No kube-proxy runs here. The apiserver reaches aggregated APIs and webhooks by the endpoints of their Services.
		"--enable-aggregator-routing=true",
		"--allow-privileged=true",
		"--profiling=false",
	}, c.tb.paths.APIServer, components.CollectsLess); err != nil {
		return err
	}
	if err := poll(ctx, patience, "kube-apiserver of "+c.Name, func(ctx context.Context) error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	done()
	return nil
}

func (c *Cluster) startControllerManager(ctx context.Context) error {
	a := c.addresses
	masks := []string{fmt.Sprintf("--node-cidr-mask-size=%d", podMask)}
	if a.pods6.IsValid() {
		masks = []string{fmt.Sprintf("--node-cidr-mask-size-ipv4=%d", podMask),
			fmt.Sprintf("--node-cidr-mask-size-ipv6=%d", podMask6)}
	}
	return c.run(ctx, "kube-controller-manager", c.controlPlane, append([]string{"kube-controller-manager",
		"--kubeconfig=" + filepath.Join(c.dir, "kube-controller-manager.kubeconfig"),
		"--service-account-private-key-file=" + c.pki() + "/service-account.key",
		"--root-ca-file=" + c.pki() + "/ca.crt",
		"--allocate-node-cidrs=true", "--cluster-cidr=" + both(a.pods, a.pods6), "--service-cluster-ip-range=" +
			both(a.services, a.services6),
		"--flex-volume-plugin-dir=" + filepath.Join(c.dir, "volumeplugins"),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--authentication-skip-lookup=true",
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--concurrent-gc-syncs=2",
		// A node that was not ready at one look has a taint until the next one, 5 s later by default.
		"--node-monitor-period=1s",
		"--profiling=false",
	}, masks...), c.tb.paths.ControllerManager)
}

func (c *Cluster) startScheduler(ctx context.Context) error {
	return c.run(ctx, "kube-scheduler", c.controlPlane, []string{"kube-scheduler",
		"--kubeconfig=" + filepath.Join(c.dir, "kube-scheduler.kubeconfig"),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--authentication-skip-lookup=true",
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--profiling=false",
	}, c.tb.paths.Scheduler)
}

func (c *Cluster) pki() string { return filepath.Join(c.dir, "pki") }

func (c *Cluster) controlPlaneGroup() string { return cgroupName(c.tb.ID) + "/" + c.Name + "-cp" }

// both joins the prefixes of two families with a comma, as component flags expect. v6 may be invalid.
func both(v4, v6 netip.Prefix) string {
	if v6.IsValid() {
		return v4.String() + "," + v6.String()
	}
	return v4.String()
}

// makePKI creates the cluster's CA, the certificates and kubeconfigs of the control plane, and the clients of this
// process.
func (c *Cluster) makePKI() error {
	ca, err := authority.New("testbed " + c.tb.ID + " " + c.Name)
	if err != nil {
		return err
	}
	ips := []netip.Addr{c.addresses.controlPlane, c.addresses.apiService, netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	if ip6 := c.addresses.controlPlane6; ip6.IsValid() {
		ips = append(ips, ip6)
	}
	server, err := ca.Server(
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain},
		ips)
	if err != nil {
		return err
	}
	kubeletClient, err := ca.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	frontProxy, err := ca.Client("front-proxy")
	if err != nil {
		return err
	}
	accountKey, err := authority.Key()
	if err != nil {
		return err
	}
	if err := writeFiles(c.pki(), map[string][]byte{
		"ca.crt": ca.Cert, "apiserver.crt": server.Cert, "apiserver.key": server.Key, "service-account.key": accountKey,
		"kubelet-client.crt": kubeletClient.Cert, "kubelet-client.key": kubeletClient.Key,
		"front-proxy.crt": frontProxy.Cert, "front-proxy.key": frontProxy.Key,
	}); err != nil {
		return err
	}
	c.access = &access{cluster: c.Name, server: c.Server, ca: ca}
	for _, user := range []struct {
		file, name string
		groups     []string
	}{
		{"admin", "admin", []string{"system:masters"}},
		// All controllers share this user. A ServiceAccount for each controller would delay their start by seconds.
		{"kube-controller-manager", "system:kube-controller-manager", []string{"system:masters"}},
		{"kube-scheduler", "system:kube-scheduler", nil},
		{"kube-proxy", "system:kube-proxy", nil},
	} {
		if err := c.access.kubeconfig(filepath.Join(c.dir, user.file+".kubeconfig"), user.name, user.groups...); err != nil {
			return err
		}
	}
	return c.makeClients()
}

// run starts a component of the control plane in a root filesystem that contains the machine's programs and settings,
// the testbed's directory and the program itself.
func (c *Cluster) run(ctx context.Context, name string, ns *netns.Namespace, args []string, program string,
	env ...string) error {
	mounts, err := systemMounts("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
	if err != nil {
		return err
	}
	mounts = append(mounts, programMounts(program)...)
	mounts = append(mounts, spawn.Mount{Source: c.tb.state.path, Target: c.tb.state.path})
	args = append(slices.Clone(args), c.tb.options.Flags[name]...)
	logFile := filepath.Join(c.logs(), name+".log")
	p := c.prepare(name, logFile, func() (*spawn.Process, error) {
		return spawn.Start(spawn.Spec{
			Name: c.Name + "/" + name, Netns: ns, Args: args, Env: append([]string{"PATH=" + searchPath, "HOME=/"}, env...),
			Root: c.tb.emptyDir(), Mounts: mounts, Groups: c.tb.cgroups.Files(c.controlPlaneGroup()), Output: logFile,
		})
	})
	return c.keep(ctx, p)
}

// get requests a URL from inside a namespace. Every status but 200 is an error.
func get(ctx context.Context, ns *netns.Namespace, url string) error {
	transport := &http.Transport{DialContext: ns.DialContext, DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
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
