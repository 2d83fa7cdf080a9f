package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// calicoNamespace is the namespace of the ServiceAccounts in Calico's manifest.
const calicoNamespace = "kube-system"

// calicoNodeRetries is the number of times calico-node may exit before it has programmed the node. Its start-up reads
// the Node and writes it back, and exits when another client wrote the Node between ("Unable to set node resource
// configuration error=update conflict", startup.go of calico/node). kubelet restarts the container then. kubelet and
// kube-controller-manager write a new Node several times in its first seconds.
const calicoNodeRetries = 5

// accountDir is where calico-node reads its ServiceAccount token. The path is the one in a pod.
const accountDir = "/run/secrets/kubernetes.io/serviceaccount"

// installCalico installs Calico's CRDs, ServiceAccounts, RBAC and settings, and starts kube-controllers.
func (c *Cluster) installCalico(ctx context.Context) error {
	done := c.tb.times.span(c.Name, "Calico's resources")
	if err := c.installCRDs(ctx, c.tb.paths.CalicoCRDs); err != nil {
		return fmt.Errorf("register Calico's CRDs in %s: %w", c.Name, err)
	}
	if err := c.installCalicoAccounts(ctx); err != nil {
		return err
	}
	if err := c.createYAML(ctx, manifest("calico.yaml")); err != nil {
		return err
	}
	done()
	return c.startKubeControllers(ctx)
}

// installCalicoAccounts creates the ServiceAccounts and the RBAC objects of Calico's manifest unchanged. The manifest's
// workloads are left out: they run as processes on the nodes.
func (c *Cluster) installCalicoAccounts(ctx context.Context) error {
	data, err := os.ReadFile(c.tb.paths.CalicoManifest)
	if err != nil {
		return err
	}
	var wanted []string
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var object struct {
			Kind string
			Data map[string]string
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			return fmt.Errorf("%s: %w", c.tb.paths.CalicoManifest, err)
		}
		switch object.Kind {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding":
			wanted = append(wanted, document)
		case "ConfigMap":
			c.cniTemplate = object.Data["cni_network_config"]
		}
	}
	if len(wanted) < 9 || c.cniTemplate == "" {
		return fmt.Errorf(
			"%s has %d accounts and rights, and a CNI configuration of %d bytes: it is not Calico's manifest as it was",
			c.tb.paths.CalicoManifest, len(wanted), len(c.cniTemplate))
	}
	return c.createYAML(ctx, strings.Join(wanted, "\n---\n"))
}

// startKubeControllers starts calico-kube-controllers next to the control plane. It releases the IPAM allocations of
// deleted pods and nodes.
func (c *Cluster) startKubeControllers(ctx context.Context) error {
	const account = "calico-kube-controllers"
	token, err := c.token(ctx, account)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[c.Name] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.access.ca.Cert}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: account}
	config.CurrentContext = c.Name
	file := filepath.Join(c.dir, account+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return err
	}
	return c.run(ctx, "kube-controllers", c.controlPlane, []string{filepath.Base(c.tb.paths.CalicoKubeControllers)},
		c.tb.paths.CalicoKubeControllers, "DATASTORE_TYPE=kubernetes", "ENABLED_CONTROLLERS=node", "KUBECONFIG="+file,
		"LOG_LEVEL=warning")
}

// token requests a token for one of Calico's ServiceAccounts. It is valid for 30 days, as long as the testbed's
// certificates.
func (c *Cluster) token(ctx context.Context, account string) (string, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](30 * 24 * 3600)},
	}
	answer, err := c.Client.CoreV1().ServiceAccounts(calicoNamespace).CreateToken(ctx, account, request,
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s in %s: %w", account, c.Name, err)
	}
	return answer.Status.Token, nil
}

// startCalico does what the calico-node container of Calico's DaemonSet does on a node: it runs the start-up script of
// calico/node, which supervises Felix, confd, BIRD and the rest with runit. It returns when Felix has programmed the
// node.
func (n *Node) startCalico(ctx context.Context) error {
	c := n.cluster
	if c.tb.options.CNI != CNICalico {
		return nil
	}
	done := c.tb.times.span(c.Name, "calico-node/"+n.Name+" has programmed")
	defer done()
	token, err := c.token(ctx, "calico-node")
	if err != nil {
		return err
	}
	account := n.path(accountDir)
	if err := os.MkdirAll(account, 0o755); err != nil {
		return err
	}
	if err := writeFiles(account, map[string][]byte{
		"ca.crt": c.access.ca.Cert, "token": []byte(token), "namespace": []byte(calicoNamespace),
	}); err != nil {
		return err
	}
	if err := n.copyCalicoFiles(); err != nil {
		return err
	}
	group := n.cgroup() + "/calico"
	if err := c.tb.cgroups.Create(group); err != nil {
		return err
	}
	// All services of runit are in this control group. Killing runsvdir alone would leave them running.
	if _, err := n.supervise(ctx, "calico-node", group, calicoNodeRetries, c.calicoEnv(n), "sh",
		"/etc/calico/start_runit"); err != nil {
		return err
	}
	if err := poll(ctx, patience, "Felix on "+n.Name+" of "+c.Name, func(ctx context.Context) error {
		return get(ctx, n.Netns, fmt.Sprintf("http://127.0.0.1:%d/readiness", felixHealthPort))
	}); err != nil {
		return fmt.Errorf("%w; what calico-node wrote last:\n%s", err,
			tail(filepath.Join(c.logs(), "calico-node-"+n.Name+".log"), 15))
	}
	return nil
}

// copyCalicoFiles copies the configuration files of the calico/node image to the node.
func (n *Node) copyCalicoFiles() error {
	files := n.cluster.tb.paths.CalicoNodeFiles
	etc := n.path("/etc")
	for _, dir := range []string{"calico", "service"} {
		// A restart of calico-node begins from clean directories too.
		if err := os.RemoveAll(filepath.Join(etc, dir)); err != nil {
			return err
		}
		if err := os.CopyFS(filepath.Join(etc, dir), os.DirFS(filepath.Join(files, "etc", dir))); err != nil {
			return err
		}
	}
	rc, err := os.ReadFile(filepath.Join(files, "etc/rc.local"))
	if err != nil {
		return err
	}
	// start_runit runs /etc/rc.local, which is its path in the image.
	if err := os.WriteFile(filepath.Join(etc, "rc.local"), append([]byte("#!/bin/sh\n"), rc...), 0o755); err != nil {
		return err
	}
	start, err := os.ReadFile(filepath.Join(files, "sbin/start_runit"))
	if err != nil {
		return err
	}
	script := strings.Replace(string(start), "/usr/bin/which runsvdir", "command -v runsvdir", 1)
	// Remove the services that an earlier start enabled before a crash.
	script = strings.Replace(script, "/etc/rc.local", "rm -rf /etc/service/enabled; /etc/rc.local", 1)
	if err := os.WriteFile(filepath.Join(etc, "calico/start_runit"), []byte(script), 0o755); err != nil {
		return err
	}
	unused := []string{"service/available/calico-bgp-daemon"}
	if !n.IP6.IsValid() {
		unused = append(unused, "service/available/bird6", "calico/confd/conf.d/bird6.toml",
			"calico/confd/conf.d/bird6_ipam.toml")
	}
	for _, path := range unused {
		if err := os.RemoveAll(filepath.Join(etc, path)); err != nil {
			return err
		}
	}
	// Only Calico's fork of BIRD knows krt_tunnel. The option has no effect when no pool uses IPIP.
	templates, err := filepath.Glob(filepath.Join(etc, "calico/confd/templates/*_ipam.cfg.template"))
	if err != nil {
		return err
	}
	for _, file := range templates {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		lines := slices.DeleteFunc(strings.Split(string(data), "\n"),
			func(line string) bool { return strings.Contains(line, "krt_tunnel") })
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			return err
		}
	}
	for _, dir := range []string{"calico", "nodeagent"} {
		if err := os.MkdirAll(n.path("/run/"+dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// calicoEnv returns the environment of calico-node: the one in Calico's manifest, without tunnels.
func (c *Cluster) calicoEnv(n *Node) []string {
	env := append(c.inClusterEnv(),
		"SVDIR=/etc/service/enabled", "DATASTORE_TYPE=kubernetes", "WAIT_FOR_DATASTORE=true", "NODENAME="+n.Name,
		"CALICO_NETWORKING_BACKEND=bird", "CLUSTER_TYPE=k8s,bgp", "CALICO_DISABLE_FILE_LOGGING=true",
		"IP=autodetect", "IP_AUTODETECTION_METHOD=kubernetes-internal-ip",
		"CALICO_IPV4POOL_CIDR="+c.PodCIDR.String(), "CALICO_IPV4POOL_IPIP=Never", "CALICO_IPV4POOL_VXLAN=Never",
		"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_HEALTHENABLED=true",
		"FELIX_IPINIPMTU=0", "FELIX_VXLANMTU=0", "FELIX_WIREGUARDMTU=0",
		// The following are not in the manifest. iptables is the legacy variant here (legacyIPTables).
		"FELIX_IPTABLESBACKEND=Legacy", "FELIX_USAGEREPORTINGENABLED=false", "FELIX_LOGSEVERITYSCREEN=Warning",
		"FELIX_XDPENABLED=false", "BGP_LOGSEVERITYSCREEN=warning",
	)
	if c.PodCIDR6.IsValid() {
		env = append(env, "IP6=autodetect", "IP6_AUTODETECTION_METHOD=kubernetes-internal-ip", "FELIX_IPV6SUPPORT=true",
			"CALICO_IPV6POOL_CIDR="+c.PodCIDR6.String(), "CALICO_IPV6POOL_NAT_OUTGOING=true")
	} else {
		env = append(env, "FELIX_IPV6SUPPORT=false")
	}
	if c.tb.options.IPAM == IPAMHostLocal {
		env = append(env, "USE_POD_CIDR=true")
	}
	return env
}

// inClusterEnv returns the variables by which a pod on the host network finds the apiserver before kube-proxy has
// programmed the node.
func (c *Cluster) inClusterEnv() []string {
	return []string{"KUBERNETES_SERVICE_HOST=" + c.addresses.controlPlane.String(),
		fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", apiPort)}
}

var cniIPAM = regexp.MustCompile(`"ipam":\s*\{[^}]*\}`)

// cniConfig returns the CNI configuration of Calico's manifest with the IPAM plugin that the options select.
func (c *Cluster) cniConfig() string {
	ipam := `"ipam": {"type": "calico-ipam"}`
	dual := c.PodCIDR6.IsValid()
	switch {
	case c.tb.options.IPAM == IPAMHostLocal && dual:
		ipam = `"ipam": {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]],` +
			` "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
	case c.tb.options.IPAM == IPAMHostLocal:
		ipam = `"ipam": {"type": "host-local", "subnet": "usePodCidr"}`
	case dual:
		ipam = `"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}`
	}
	return cniIPAM.ReplaceAllLiteralString(c.cniTemplate, ipam)
}

// brackets matches the brackets that Calico's install command puts around an IPv4 address. They are invalid in a URL.
var brackets = regexp.MustCompile(`\[([0-9.]+)\]`)

// installCNI writes the CNI configuration with the install command of the calico/cni image. kubelet then reports the
// node as Ready. Call it only after Felix has programmed the node: earlier, the first packets of a pod would leave
// without masquerading, and conntrack would keep that state.
func (n *Node) installCNI(ctx context.Context) error {
	c := n.cluster
	if c.tb.options.CNI == CNIBridge {
		return n.installBridge(ctx)
	}
	args := append([]string{"env", "KUBERNETES_NODE_NAME=" + n.Name, "NODENAME=" + n.Name,
		"CNI_CONF_NAME=10-calico.conflist", "CNI_MTU=0",
		"SLEEP=false", "UPDATE_CNI_BINARIES=false", "CNI_NETWORK_CONFIG=" + c.cniConfig()}, c.inClusterEnv()...)
	if _, err := n.Exec(ctx, append(args, filepath.Base(c.tb.paths.CalicoCNIInstall))...); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	file := n.path("/etc/cni/net.d/calico-kubeconfig")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, brackets.ReplaceAll(data, []byte("$1")), 0o600)
}

// waitMesh waits until each node has an established BGP session with every other node.
func (c *Cluster) waitMesh(ctx context.Context) error {
	if c.tb.options.CNI != CNICalico {
		return nil
	}
	done := c.tb.times.span(c.Name, "BGP sessions between all nodes")
	defer done()
	sockets := []string{"bird.ctl"}
	if c.PodCIDR6.IsValid() {
		sockets = append(sockets, "bird6.ctl")
	}
	for _, n := range c.Nodes {
		for _, socket := range sockets {
			what := "BGP sessions of " + n.Name + " of " + c.Name
			if err := poll(ctx, patience, what, func(context.Context) error {
				established, err := birdSessions(n.path("/run/calico/" + socket))
				if err == nil && len(established) < len(c.Nodes)-1 {
					err = fmt.Errorf("%s has sessions %v, of %d", socket, established, len(c.Nodes)-1)
				}
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// birdSessions returns the names of BIRD's established BGP sessions. It uses the protocol of BIRD's client, birdc.
func birdSessions(socket string) ([]string, error) {
	conn, err := net.DialTimeout("unix", socket, 10*time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte("show protocols\n")); err != nil {
		return nil, err
	}
	var sessions []string
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		// 1002-Mesh_172_18_1_12 BGP      master   up     05:31:15    Established
		line := lines.Text()
		if fields := strings.Fields(line); strings.Contains(line, " BGP ") && strings.Contains(line, "Established") {
			sessions = append(sessions, strings.TrimPrefix(fields[0], "1002-"))
		}
		if strings.HasPrefix(line, "0000 ") || strings.HasPrefix(line, "8") || strings.HasPrefix(line, "9") {
			return sessions, nil
		}
	}
	return nil, errors.Join(errors.New("BIRD's answer has no end"), lines.Err())
}

var blockAffinities = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
	Resource: "blockaffinities"}

// PodBlocks returns the address blocks of a node: its BlockAffinities with IPAMCalico, its podCIDRs with IPAMHostLocal.
func (n *Node) PodBlocks(ctx context.Context) ([]netip.Prefix, error) {
	c := n.cluster
	var texts []string
	if c.tb.options.IPAM == IPAMHostLocal {
		object, err := c.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		texts = object.Spec.PodCIDRs
	} else {
		list, err := c.Dynamic.Resource(blockAffinities).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			spec, _ := item.Object["spec"].(map[string]any)
			if spec["node"] == n.Name && spec["state"] == "confirmed" && spec["deleted"] != "true" {
				texts = append(texts, fmt.Sprint(spec["cidr"]))
			}
		}
	}
	var blocks []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("block of %s of %s: %w", n.Name, c.Name, err)
		}
		blocks = append(blocks, p)
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	return blocks, nil
}

// installCRDs creates the CRDs in a directory and waits until the apiserver serves all of them.
func (c *Cluster) installCRDs(ctx context.Context, dir string) error {
	client, err := apiextensionsclient.NewForConfig(protobuf(c.REST))
	if err != nil {
		return err
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, f := range files {
		g.Go(func() error {
			data, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			// Each file begins with a document separator, and some end with one.
			text := strings.Trim(strings.TrimSpace(string(data)), "-")
			var crd apiextensions.CustomResourceDefinition
			if err := yaml.Unmarshal([]byte(text), &crd); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			if _, err := crds.Create(gctx, &crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("%s: %w", f, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return poll(ctx, patience, "CRDs of "+c.Name, func(ctx context.Context) error {
		list, err := crds.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var waiting []string
		for _, crd := range list.Items {
			if !established(&crd) {
				waiting = append(waiting, crd.Name)
			}
		}
		if len(waiting) > 0 || len(list.Items) < len(files) {
			return fmt.Errorf("%d of %d are there, not established: %v", len(list.Items), len(files), waiting)
		}
		return nil
	})
}

func established(crd *apiextensions.CustomResourceDefinition) bool {
	for _, condition := range crd.Status.Conditions {
		if condition.Type == apiextensions.Established {
			return condition.Status == apiextensions.ConditionTrue
		}
	}
	return false
}
