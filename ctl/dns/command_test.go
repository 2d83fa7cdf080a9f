package dns

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// TestCoreDNS queries a real CoreDNS with the printed blocks, with mirrors in a real apiserver.
func TestCoreDNS(t *testing.T) {
	api := kubetest.Start(t)
	admin := testkit.Value(kubernetes.NewForConfig(api))(t)
	mirrors(t, admin)
	file := brokerFile(t, api, "mirrorNamespace: mirrors\nmcs: {enabled: true}\n"+
		"globalServices: {podSubnets: [10.1.0.0/16]}\n", map[string]string{
		"c2": "podSubnets: [10.2.0.0/16]", "c-3": "podSubnets: [10.3.0.0/16], servicePrefix: three"})
	// For an unknown CoreDNS image, as for releases before 1.12.2, names are rewritten.
	blocks, _, err := ctltest.Run(t, "coredns", "--config", file, "--coredns-image",
		"registry.k8s.io/coredns/coredns:v1.11.3")
	must(t, err)
	server := startCoreDNS(t, blocks, kubetest.Kubeconfig(t, api), "echo.shop.svc.cluster.c2.",
		"db-0.db.shop.svc.cluster.c2.", "echo.shop.svc.cluster.c-3.", "echo.shop.svc.cluster.global.",
		"echo.shop.svc.clusterset.local.")
	var nothing []string

	for _, test := range []struct {
		name  string
		kind  dnsmessage.Type
		rcode dnsmessage.RCode
		want  []string
	}{
		{"echo.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.1"}},
		// Resolvers may use mixed case, which makes forged answers harder.
		{"eChO.Shop.SVC.cluster.C2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.1"}},
		{"a-73736.d-echo.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.2"}},
		{"echo.shop.svc.cluster.c-3.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.3"}},
		{"echo.shop.svc.cluster.global.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.4"}},
		{"db.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.2.1.1", "10.2.1.2"}},
		{"db.shop.svc.cluster.c2.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, []string{"2001:db8::1"}},
		{"db-0.db.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.2.1.1"}},
		{"db-1.db.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.2.1.2"}},
		{"db-0.db.shop.svc.cluster.c2.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, []string{"2001:db8::1"}},
		// The name exists, without records of this type.
		{"echo.shop.svc.cluster.c2.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, nothing},
		{"none.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"db-9.db.shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"shop.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"a.b.c.d.svc.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"example.cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"cluster.c2.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		// Imported Services.
		{"echo.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.96.7.5"}},
		{"echo.shop.svc.clusterset.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, nothing},
		{"db.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.2.2.1", "10.2.2.2"}},
		{"db.shop.svc.clusterset.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, []string{"2001:db8::2"}},
		{"db-0.db.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []string{"10.2.2.1"}},
		{"none.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"db-9.db.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		// With rewrites, names with a cluster ID do not exist.
		{"db-0.c2.db.shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"shop.svc.clusterset.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"echo.shop.svc.clusterset.local.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		// The record of a port names the derived Service, which resolves, too.
		{"_http._tcp.echo.shop.svc.clusterset.local.", dnsmessage.TypeSRV, dnsmessage.RCodeSuccess,
			[]string{"80 mcs-shop-73736d-echo.mirrors.svc.cluster.local."}},
		{"_http._tcp.db.shop.svc.clusterset.local.", dnsmessage.TypeSRV, dnsmessage.RCodeSuccess, []string{
			"80 db-0.mcs-shop-73736d-db.mirrors.svc.cluster.local.",
			"80 db-1.mcs-shop-73736d-db.mirrors.svc.cluster.local."}},
		{"_none._tcp.echo.shop.svc.clusterset.local.", dnsmessage.TypeSRV, dnsmessage.RCodeNameError, nothing},
		{"echo.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		// A pod asks for these names first, because of its search domains. Any other answer would end its search.
		{"echo.shop.svc.cluster.c2.shop.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"echo.shop.svc.cluster.c2.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"echo.shop.svc.cluster.c2.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nothing},
		{"db-0.db.shop.svc.cluster.c2.shop.svc.cluster.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, nothing},
		// The cluster's own names are not affected.
		{"c2-shop-73736d-echo.mirrors.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess,
			[]string{"10.96.7.1"}},
		{"db-0.c2-shop-73736d-db.mirrors.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess,
			[]string{"10.2.1.1"}},
	} {
		t.Run(test.kind.String()+" "+test.name, func(t *testing.T) {
			// Twice, because the second answer comes from the cache.
			for range 2 {
				rcode, got, err := resolve(t.Context(), server, test.name, test.kind)
				must(t, err)
				if rcode != test.rcode || !slices.Equal(got, test.want) {
					t.Errorf("%s, %v; want %s, %v", rcode, got, test.rcode, test.want)
				}
			}
		})
	}

	// The name resolves to a mirror. When the mirror changes, so does the answer, once the cache drops it.
	must(t, admin.CoreV1().Services("mirrors").Delete(t.Context(), "c2-shop-73736d-echo", metav1.DeleteOptions{}))
	testkit.Eventually(t, 3*time.Minute, "a mirror that is gone is not resolved", testkit.State(func() (bool, string) {
		rcode, _, err := resolve(t.Context(), server, "echo.shop.svc.cluster.c2.", dnsmessage.TypeA)
		must(t, err)
		return rcode == dnsmessage.RCodeNameError, rcode.String()
	}))
}

// mirrors creates the objects that a broker would create.
func mirrors(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	kubetest.Namespace(t, admin, "mirrors")
	for name, ip := range map[string]string{
		"c2-shop-73736d-echo": "10.96.7.1", "c2-d-echo-73736d-a-73736": "10.96.7.2", "three-shop-73736d-echo": "10.96.7.3",
		"gl-shop-73736d-echo": "10.96.7.4", "c2-shop-73736d-db": corev1.ClusterIPNone,
		"mcs-shop-73736d-echo": "10.96.7.5", "mcs-shop-73736d-db": corev1.ClusterIPNone,
	} {
		kubetest.Create(t, admin.CoreV1().Services("mirrors"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
	}
	for _, one := range []struct {
		service   string
		family    discoveryv1.AddressType
		addresses []string
	}{
		{"c2-shop-73736d-db", discoveryv1.AddressTypeIPv4, []string{"10.2.1.1", "10.2.1.2"}},
		{"c2-shop-73736d-db", discoveryv1.AddressTypeIPv6, []string{"2001:db8::1"}},
		{"mcs-shop-73736d-db", discoveryv1.AddressTypeIPv4, []string{"10.2.2.1", "10.2.2.2"}},
		{"mcs-shop-73736d-db", discoveryv1.AddressTypeIPv6, []string{"2001:db8::2"}},
	} {
		name, port := "http", int32(80)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:   one.service + "-" + strings.ToLower(string(one.family)),
				Labels: map[string]string{discoveryv1.LabelServiceName: one.service},
			},
			AddressType: one.family,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		}
		for i, a := range one.addresses {
			hostname := fmt.Sprint("db-", i)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, Hostname: &hostname})
		}
		kubetest.Create(t, admin.DiscoveryV1().EndpointSlices("mirrors"), slice)
	}
}

// startCoreDNS runs CoreDNS on loopback until the test ends. It returns the address once CoreDNS answers the names, and
// those of the own cluster.
func startCoreDNS(t *testing.T, blocks, kubeconfig string, names ...string) string {
	t.Helper()
	program := filepath.Join(os.Getenv("SEMAPHORE_TESTBED_BIN"), "coredns")
	if os.Getenv("SEMAPHORE_TESTBED_BIN") == "" {
		// The apiserver's programs were found, so this one can be built, too.
		program = testkit.Value(components.Ensure(t.Context(), os.Stderr))(t).CoreDNS
	}
	// The block that a cluster has for its own names, as in the testbed and from kubeadm. In a pod, CoreDNS finds the
	// apiserver by itself.
	own := ". {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        pods insecure\n        " +
		"endpoint_pod_names\n    }\n    cache 5\n}\n"
	corefile := strings.ReplaceAll(own+blocks, "pods insecure", "kubeconfig "+kubeconfig+"\n        pods insecure")
	path := filepath.Join(t.TempDir(), "Corefile")
	must(t, os.WriteFile(path, []byte(corefile), 0o600))
	address := loopback.Address(t)
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	cmd := exec.Command(program, "-conf", path, "-dns.port", port)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, cmd.Process.Kill())
		cmd.Wait()
		if t.Failed() {
			t.Logf("CoreDNS said:\n%s\nwith\n%s", output.String(), corefile)
		}
	})
	testkit.Eventually(t, 3*time.Minute, "CoreDNS answers", testkit.State(func() (bool, string) {
		// CoreDNS begins to answer before each of its blocks has all Services and EndpointSlices.
		for _, name := range append(names, "c2-shop-73736d-echo.mirrors.svc.cluster.local.",
			"db-0.c2-shop-73736d-db.mirrors.svc.cluster.local.") {
			rcode, _, err := resolve(t.Context(), address, name, dnsmessage.TypeA)
			if err != nil || rcode != dnsmessage.RCodeSuccess {
				return false, fmt.Sprint(name, " ", rcode, " ", err)
			}
		}
		return true, ""
	}))
	return address
}

// resolve queries the records of a name. It returns an error if an answer is about another name, or is valid for more
// than five seconds. For the record of a port it returns the port and the target.
func resolve(ctx context.Context, server, name string, kind dnsmessage.Type) (dnsmessage.RCode, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	asked, err := dnsmessage.NewName(name)
	if err != nil {
		return 0, nil, err
	}
	question := dnsmessage.Question{Name: asked, Type: kind, Class: dnsmessage.ClassINET}
	request, err := (&dnsmessage.Message{
		Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{question},
	}).Pack()
	if err != nil {
		return 0, nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", server)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return 0, nil, err
	}
	if _, err := conn.Write(request); err != nil {
		return 0, nil, err
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil && err != io.EOF {
		return 0, nil, err
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(buffer[:n]); err != nil {
		return 0, nil, err
	}
	if len(answer.Questions) != 1 || answer.Questions[0] != question {
		return 0, nil, fmt.Errorf("asked %v, and the answer is to %v", question, answer.Questions)
	}
	var addresses []string
	for _, r := range answer.Answers {
		if !strings.EqualFold(r.Header.Name.String(), name) {
			return 0, nil, fmt.Errorf("asked for %s, and the answer is about %s", name, r.Header.Name)
		}
		if r.Header.TTL > 5 {
			return 0, nil, fmt.Errorf("the answer holds for %d s, longer than blocks cache it", r.Header.TTL)
		}
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			addresses = append(addresses, net.IP(body.A[:]).String())
		case *dnsmessage.AAAAResource:
			addresses = append(addresses, net.IP(body.AAAA[:]).String())
		case *dnsmessage.SRVResource:
			addresses = append(addresses, fmt.Sprint(body.Port, " ", body.Target))
		default:
			return 0, nil, fmt.Errorf("a %T in the answer", body)
		}
	}
	slices.Sort(addresses)
	return answer.RCode, addresses, nil
}
