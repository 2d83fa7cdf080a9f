package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// The upstream suite waits for a change for at most conformant, and checks for steady that a state persists.
const (
	conformant = 20 * time.Second
	steady     = 5 * time.Second
)

// conformance lists the 27 tests of the conformance suite of sigs.k8s.io/mcs-api v0.5, with its commands.
// docs/mcs-examples.md has the same number.
var conformance = []struct {
	name string
	run  func(context.Context, *testing.T, *mcsTest)
}{
	{"1 Connectivity to a service that is not exported should be inaccessible", mcsInaccessible},
	{"2 Exporting a ClusterIP service should create a ServiceImport of type ClusterSetIP in each cluster",
		mcsClusterSetIP},
	{"3 A ServiceImport should only exist as long as there's at least one exporting cluster", mcsAsLongAs},
	{"4 The SessionAffinity should match the exported service's SessionAffinity", mcsSessionAffinity},
	{"5 The InternalTrafficPolicy should match the exported service's InternalTrafficPolicy", mcsInternalTrafficPolicy},
	{"6 The TrafficDistribution should match the exported service's TrafficDistribution", mcsTrafficDistribution},
	{"7 An IP should be allocated for a ClusterSetIP ServiceImport for each IP family", mcsIPs},
	{"8 The ports should match those of the exported service", mcsPorts},
	{"9 A service exported on two clusters should expose the union of the constituent service ports", mcsUnion},
	{"10 Conflicting ports should report a Conflict condition on each ServiceExport", mcsPortConflict},
	{"11 Conflicting headlessness should report a Conflict condition and keep the first's type", mcsTypeConflict},
	{"12 Exporting a headless service should create a ServiceImport of type Headless in each cluster", mcsHeadless},
	{"13 No clusterset IP should be allocated for a Headless ServiceImport", mcsHeadlessIPs},
	{"14 Exporting an ExternalName service should set ServiceExport Valid condition to False", mcsExternalName},
	{"15 Only labels and annotations specified as exported should be propagated", mcsLabels},
	{"16 Conflicting annotations and labels should report a Conflict condition on each ServiceExport", mcsLabelsConflict},
	{"17 An exported ClusterIP service should be accessible through DNS", mcsAccessible},
	{"18 A service on two clusters exported from one should only access the exporting cluster", mcsOnlyExporting},
	{"19 The same port name with different numbers should only route to the cluster that exposes the port",
		mcsPortNumbers},
	{"20 Different port names should route each port only to the cluster that exposes it", mcsPortNames},
	{"21 A DNS lookup of the clusterset.local domain should resolve to the clusterset IP", mcsDNS},
	{"22 A DNS SRV query for a ClusterIP service should return valid SRV records", mcsSRV},
	{"23 DNS lookups of the cluster.local domain should only resolve local services", mcsLocalDNS},
	{"24 A DNS query for a headless service should return the addresses of all backing pods", mcsHeadlessDNS},
	{"25 A DNS query of the hostname and clusterid should return the requested pod's address", mcsHostnameDNS},
	{"26 A DNS SRV query for a headless service should return valid SRV records", mcsHeadlessSRV},
	{"27 Exporting a service should create an MCS EndpointSlice in each cluster, deleted on unexport", mcsEndpointSlice},
}

// needsSlices is the number of the first test that needs EndpointSlices of ServiceImports. All later ones need them
// too.
const needsSlices = 24

// TestMCS checks what the upstream conformance suite asserts, between two clusters. The cleanup keeps the API's CRDs
// and removes everything of semaphore. With IMPORT_SLICES=none in the environment, the brokers write no EndpointSlices
// for ServiceImports, and the tests that do not need them must pass. Releases run both variants.
func TestMCS(t *testing.T) {
	tier.OnlyAll(t, "TestFeatures runs the 27 tests on IPv4")
	ctx := needsBed(t)
	s := clusters(ctx, t, testbed.Options{IPFamilies: testbed.FamiliesDual,
		Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 1}}})
	b := newMCSBed(ctx, t, s)
	s.in.MCS, s.in.ImportSlices = true, os.Getenv("IMPORT_SLICES")
	must(t, s.in.Install(ctx, s.progress))
	t.Run("conformance", func(t *testing.T) {
		b.conforms(ctx, t)
		t.Run("the examples of docs/mcs-examples.md", func(t *testing.T) {
			if s.in.ImportSlices != "" {
				t.Skip("they have the slices beside ServiceImports")
			}
			t.Parallel()
			b.examples(ctx, t)
		})
	})
	t.Run("removed", func(t *testing.T) { b.removed(ctx, t) })
}

// conforms runs what the suite has. Each test has its own namespace and mostly waits, so they run in parallel, as many
// as there are CPUs.
func (b *mcsBed) conforms(ctx context.Context, t *testing.T) {
	for _, c := range b.tb.Clusters() {
		must(t, c.ApplyYAML(ctx, shopNamespace+requestPod))
	}
	for _, c := range b.tb.Clusters() {
		ready(ctx, t, c, "pod/request")
	}
	for i, test := range conformance {
		t.Run(test.name, func(t *testing.T) {
			if b.in.ImportSlices == string(config.NoImportSlices) && i+1 >= needsSlices {
				t.Skip("it needs the slices beside ServiceImports, which are off")
			}
			t.Parallel()
			m := &mcsTest{mcsBed: b, ns: fmt.Sprint("mcs-conformance-", i+1)}
			for _, c := range b.tb.Clusters() {
				testkit.Value(c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{Name: m.ns}}, metav1.CreateOptions{}))(t)
			}
			began := time.Now()
			test.run(ctx, t, m)
			t.Logf("took %s", time.Since(began).Round(100*time.Millisecond))
			for _, c := range b.tb.Clusters() {
				must(t, c.Client.CoreV1().Namespaces().Delete(ctx, m.ns, metav1.DeleteOptions{}))
			}
		})
	}
}

// requestPod sends requests with the commands of the suite.
const requestPod = `
apiVersion: v1
kind: Pod
metadata: {name: request, namespace: shop, labels: {app: request}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: request
      image: testbed.local/testbed:1
      command: [/bin/sh, -ec, "while :; do sleep 5; done"]
`

type mcsBed struct {
	*Scenario
	exports map[*testbed.Cluster]mcs.Resource[*mcsv1beta1.ServiceExport]
	imports map[*testbed.Cluster]mcs.Resource[*mcsv1beta1.ServiceImport]
}

// newMCSBed applies the API's definitions in both clusters.
func newMCSBed(ctx context.Context, t testing.TB, s *Scenario) *mcsBed {
	t.Helper()
	b := &mcsBed{Scenario: s, exports: map[*testbed.Cluster]mcs.Resource[*mcsv1beta1.ServiceExport]{},
		imports: map[*testbed.Cluster]mcs.Resource[*mcsv1beta1.ServiceImport]{}}
	for _, c := range s.tb.Clusters() {
		testkit.Value(mcs.ApplyDefinitions(ctx, c.Dynamic))(t)
		client := testkit.Value(mcs.New(c.REST, "test"))(t)
		b.exports[c], b.imports[c] = client.Exports(), client.Imports()
	}
	return b
}

// mcsTest is one test in its own namespace.
type mcsTest struct {
	*mcsBed
	ns string
}

const hello = "hello"

// helloService returns the Service of the suite with changes.
func helloService(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: hello}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": hello},
		Ports: []corev1.ServicePort{{Name: "tcp", Port: 42, Protocol: corev1.ProtocolTCP},
			{Name: "udp", Port: 42, Protocol: corev1.ProtocolUDP}},
		SessionAffinity: corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}},
	}}
	for _, do := range change {
		do(s)
	}
	return s
}

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

// onPorts replaces the ports. Each forwards to the port of hello.
func onPorts(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = ports }
}

func helloPod() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": hello}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{
			Name: hello, Image: testbed.Image, Command: []string{"testbed", "hello", "pod ip $(MY_POD_IP)"},
			Env: []corev1.EnvVar{{Name: "MY_POD_IP", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}},
		}}},
	}
}

func (m *mcsTest) service(ctx context.Context, t *testing.T, c *testbed.Cluster, s *corev1.Service) *corev1.Service {
	t.Helper()
	return testkit.Value(c.Client.CoreV1().Services(m.ns).Create(ctx, s, metav1.CreateOptions{}))(t)
}

// pods deploys hello and returns the sorted addresses of its pods.
func (m *mcsTest) pods(ctx context.Context, t *testing.T, c *testbed.Cluster, replicas int32) []string {
	t.Helper()
	testkit.Value(c.Client.AppsV1().Deployments(m.ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: hello}, Spec: appsv1.DeploymentSpec{Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": hello}}, Template: helloPod()},
	}, metav1.CreateOptions{}))(t)
	return m.addresses(ctx, t, c, int(replicas))
}

// addresses waits for the addresses of the ready pods.
func (m *mcsTest) addresses(ctx context.Context, t *testing.T, c *testbed.Cluster, replicas int) (all []string) {
	t.Helper()
	must(t, until(ctx, 2*conformant, func() error {
		list, err := c.Client.CoreV1().Pods(m.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + hello})
		if err != nil {
			return err
		}
		all = nil
		for i := range list.Items {
			p := &list.Items[i]
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				all = append(all, p.Status.PodIP)
			}
		}
		if len(all) != replicas {
			return fmt.Errorf("%d pods of %d are ready", len(all), replicas)
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

func (m *mcsTest) export(ctx context.Context, t *testing.T, c *testbed.Cluster, spec ...mcsv1beta1.ServiceExportSpec) {
	t.Helper()
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: hello}}
	if len(spec) > 0 {
		e.Spec = spec[0]
	}
	testkit.Value(m.exports[c].Create(ctx, e))(t)
}

func (m *mcsTest) unexport(ctx context.Context, t *testing.T, c *testbed.Cluster) {
	t.Helper()
	must(t, m.exports[c].Delete(ctx, m.ns, hello, metav1.DeleteOptions{}))
}

// exported creates a Service in c1 and exports it.
func (m *mcsTest) exported(ctx context.Context, t *testing.T, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	s := m.service(ctx, t, m.c1, helloService(change...))
	m.export(ctx, t, m.c1)
	return s
}

// both exports hello of c1, and after its import also that of c2.
func (m *mcsTest) both(ctx context.Context, t *testing.T, first, second *corev1.Service,
	specs ...mcsv1beta1.ServiceExportSpec) {
	t.Helper()
	m.service(ctx, t, m.c1, first)
	m.export(ctx, t, m.c1, specs[:min(1, len(specs))]...)
	m.imported(ctx, t, m.c1, nil)
	time.Sleep(100 * time.Millisecond) // as the suite does; creation times have whole seconds
	m.service(ctx, t, m.c2, second)
	m.export(ctx, t, m.c2, specs[min(1, len(specs)):]...)
}

// imported waits until a cluster has a ServiceImport that satisfies verify.
func (m *mcsTest) imported(ctx context.Context, t *testing.T, c *testbed.Cluster,
	verify func(*mcsv1beta1.ServiceImport) error) (i *mcsv1beta1.ServiceImport) {
	t.Helper()
	if err := until(ctx, conformant, func() (err error) {
		if i, err = m.imports[c].Get(ctx, m.ns, hello); err == nil && verify != nil {
			err = verify(i)
		}
		return err
	}); err != nil {
		t.Fatalf("ServiceImport of %s: %v", c.Name, err)
	}
	return i
}

func (m *mcsTest) notImported(ctx context.Context, t *testing.T, c *testbed.Cluster) {
	t.Helper()
	if err := until(ctx, conformant, func() error {
		i, err := m.imports[c].Get(ctx, m.ns, hello)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("it is there: %v", i.Status))
	}); err != nil {
		t.Fatalf("ServiceImport of %s: %v", c.Name, err)
	}
}

// stays asserts for a while that a cluster has the ServiceImport, or does not have it.
func (m *mcsTest) stays(ctx context.Context, t *testing.T, c *testbed.Cluster, there bool) {
	t.Helper()
	for end := time.Now().Add(steady); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		_, err := m.imports[c].Get(ctx, m.ns, hello)
		if there && err != nil || !there && !apierrors.IsNotFound(err) {
			t.Fatalf("ServiceImport of %s: %v, and there must be one: %t", c.Name, err, there)
		}
	}
}

// condition waits until the ServiceExport in each cluster has a condition.
func (m *mcsTest) condition(ctx context.Context, t *testing.T, kind mcsv1beta1.ServiceExportConditionType,
	status metav1.ConditionStatus, clusters ...*testbed.Cluster) {
	t.Helper()
	for _, c := range clusters {
		if err := until(ctx, conformant, func() error {
			e, err := m.exports[c].Get(ctx, m.ns, hello)
			if err != nil {
				return err
			}
			if got := meta.FindStatusCondition(e.Status.Conditions, string(kind)); got == nil || got.Status != status {
				return fmt.Errorf("%s is not %s: %+v", kind, status, e.Status.Conditions)
			}
			return nil
		}); err != nil {
			t.Errorf("ServiceExport of %s: %v", c.Name, err)
		}
	}
}

// name returns the DNS name of hello in a domain.
func (m *mcsTest) name(domain string) string { return hello + "." + m.ns + ".svc." + domain }

const clusterset = "clusterset.local"

// attempt bounds one command of the suite. A connection can time out if it begins while kube-proxy replaces the reject
// rule of a Service by its endpoints: its first packet is lost.
const attempt = 5 * time.Second

// request runs a command of the suite in the request pod and returns its output, whatever the exit code.
func (m *mcsTest) request(ctx context.Context, c *testbed.Cluster, command string) string {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	out, err := c.ExecPod(ctx, "shop", "request", "sh", "-c", command)
	if err != nil {
		out += "\n" + err.Error()
	}
	return out
}

// answers waits until a command's output satisfies verify a number of times in a row, in each cluster.
func (m *mcsTest) answers(ctx context.Context, t *testing.T, command string, times int, verify func(string) error,
	in ...*testbed.Cluster) {
	t.Helper()
	if len(in) == 0 {
		in = m.tb.Clusters()
	}
	for _, c := range in {
		last := ""
		if err := until(ctx, conformant, func() error {
			for range times {
				last = m.request(ctx, c, command)
				if err := verify(last); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Errorf("%q in %s: %v\n%s", command, c.Name, err, last)
		}
	}
}

func containing(text string) func(string) error {
	return func(out string) error {
		if !strings.Contains(out, text) {
			return fmt.Errorf("the output lacks %q", text)
		}
		return nil
	}
}

// nc returns the suite's command that connects to a port.
func (m *mcsTest) nc(port int) string {
	return fmt.Sprintf("echo hi | nc %s %d", m.name(clusterset), port)
}

func mcsInaccessible(ctx context.Context, t *testing.T, m *mcsTest) {
	m.service(ctx, t, m.c1, helloService())
	m.pods(ctx, t, m.c1, 1)
	for _, c := range m.tb.Clusters() {
		for range 20 {
			if out := m.request(ctx, c, m.nc(42)); strings.Contains(out, "pod ip") {
				t.Fatalf("%s: %s", c.Name, out)
			}
		}
	}
}

func mcsClusterSetIP(ctx context.Context, t *testing.T, m *mcsTest) {
	m.inEach(ctx, t, mcsv1beta1.ClusterSetIP)
}

func mcsHeadless(ctx context.Context, t *testing.T, m *mcsTest) {
	m.inEach(ctx, t, mcsv1beta1.Headless, headless)
}

// inEach checks that a ServiceImport of a type exists in each cluster while hello is exported.
func (m *mcsTest) inEach(ctx context.Context, t *testing.T, kind mcsv1beta1.ServiceImportType,
	change ...func(*corev1.Service)) {
	m.exported(ctx, t, change...)
	for _, c := range m.tb.Clusters() {
		if i := m.imported(ctx, t, c, nil); i.Spec.Type != kind {
			t.Errorf("%s: the type is %s", c.Name, i.Spec.Type)
		}
	}
	m.unexport(ctx, t, m.c1)
	for _, c := range m.tb.Clusters() {
		m.notImported(ctx, t, c)
	}
}

func mcsAsLongAs(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService())
	m.stays(ctx, t, m.c1, true)
	m.unexport(ctx, t, m.c1)
	m.stays(ctx, t, m.c1, true)
	m.unexport(ctx, t, m.c2)
	m.notImported(ctx, t, m.c1)
}

// matches waits until a field of the ServiceImport equals that of the Service.
func (m *mcsTest) matches(ctx context.Context, t *testing.T, want any, field func(*mcsv1beta1.ServiceImport) any) {
	t.Helper()
	for _, c := range m.tb.Clusters() {
		m.imported(ctx, t, c, func(i *mcsv1beta1.ServiceImport) error {
			if got := field(i); !equality.Semantic.DeepEqual(got, want) {
				return fmt.Errorf("it has %v, not %v", got, want)
			}
			return nil
		})
	}
}

func mcsSessionAffinity(ctx context.Context, t *testing.T, m *mcsTest) {
	s := m.exported(ctx, t)
	m.matches(ctx, t, s.Spec.SessionAffinity, func(i *mcsv1beta1.ServiceImport) any { return i.Spec.SessionAffinity })
	m.matches(ctx, t, s.Spec.SessionAffinityConfig,
		func(i *mcsv1beta1.ServiceImport) any { return i.Spec.SessionAffinityConfig })
}

func mcsInternalTrafficPolicy(ctx context.Context, t *testing.T, m *mcsTest) {
	s := m.exported(ctx, t, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	})
	m.matches(ctx, t, s.Spec.InternalTrafficPolicy,
		func(i *mcsv1beta1.ServiceImport) any { return i.Spec.InternalTrafficPolicy })
}

func mcsTrafficDistribution(ctx context.Context, t *testing.T, m *mcsTest) {
	s := m.exported(ctx, t, func(s *corev1.Service) {
		s.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferClose)
	})
	m.matches(ctx, t, s.Spec.TrafficDistribution,
		func(i *mcsv1beta1.ServiceImport) any { return i.Spec.TrafficDistribution })
}

func mcsIPs(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	has := func(families int) {
		t.Helper()
		for _, c := range m.tb.Clusters() {
			i := m.imported(ctx, t, c, func(i *mcsv1beta1.ServiceImport) error {
				if len(i.Spec.IPs) != families || len(i.Spec.IPFamilies) != families {
					return fmt.Errorf("it has %v of %v", i.Spec.IPs, i.Spec.IPFamilies)
				}
				return nil
			})
			for n, text := range i.Spec.IPs {
				ip, err := netip.ParseAddr(text)
				if err != nil || ip.Is4() != (i.Spec.IPFamilies[n] == corev1.IPv4Protocol) {
					t.Errorf("%s: %v of %v: %v", c.Name, i.Spec.IPs, i.Spec.IPFamilies, err)
				}
			}
		}
	}
	has(1)
	if !m.c1.PodCIDR6.IsValid() {
		return
	}
	// In addition to the suite: a dual-stack Service answers at both IPs.
	pods := m.pods(ctx, t, m.c1, 1)
	s := testkit.Value(m.c1.Client.CoreV1().Services(m.ns).Get(ctx, hello, metav1.GetOptions{}))(t)
	s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	testkit.Value(m.c1.Client.CoreV1().Services(m.ns).Update(ctx, s, metav1.UpdateOptions{}))(t)
	has(2)
	for _, c := range m.tb.Clusters() {
		for _, ip := range m.imported(ctx, t, c, nil).Spec.IPs {
			m.answers(ctx, t, "echo hi | nc "+ip+" 42", 1, containing("pod ip "+pods[0]), c)
		}
	}
}

// portsOf returns the sorted ports of a ServiceImport.
func portsOf(i *mcsv1beta1.ServiceImport) any {
	var all []string
	for _, p := range i.Spec.Ports {
		all = append(all, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func mcsPorts(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	m.matches(ctx, t, "tcp 42/TCP, udp 42/UDP", portsOf)
}

func mcsUnion(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(onPorts(
		corev1.ServicePort{Name: "tcp", Port: 42, Protocol: corev1.ProtocolTCP},
		corev1.ServicePort{Name: "stcp", Port: 142, Protocol: corev1.ProtocolSCTP})))
	m.matches(ctx, t, "stcp 142/SCTP, tcp 42/TCP, udp 42/UDP", portsOf)
	m.condition(ctx, t, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, m.c1, m.c2)
}

func mcsPortConflict(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(onPorts(
		corev1.ServicePort{Name: "tcp", Port: 43, Protocol: corev1.ProtocolTCP})))
	m.condition(ctx, t, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, m.c1, m.c2)
	m.matches(ctx, t, "tcp 42/TCP, udp 42/UDP", portsOf)
}

func mcsTypeConflict(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(headless))
	m.condition(ctx, t, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, m.c1, m.c2)
	m.matches(ctx, t, mcsv1beta1.ClusterSetIP, func(i *mcsv1beta1.ServiceImport) any { return i.Spec.Type })
}

func mcsHeadlessIPs(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t, headless)
	m.imported(ctx, t, m.c1, nil)
	for end := time.Now().Add(steady); time.Now().Before(end); time.Sleep(time.Second) {
		if i := m.imported(ctx, t, m.c1, nil); len(i.Spec.IPs) > 0 {
			t.Fatalf("it has %v", i.Spec.IPs)
		}
	}
}

func mcsExternalName(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t, func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	})
	m.condition(ctx, t, mcsv1beta1.ServiceExportConditionValid, metav1.ConditionFalse, m.c1)
	m.stays(ctx, t, m.c1, false)
}

// dummy returns the labels and annotations of an export in the suite.
func dummy(suffix string) mcsv1beta1.ServiceExportSpec {
	return mcsv1beta1.ServiceExportSpec{ExportedLabels: map[string]string{"dummy-label" + suffix: "true"},
		ExportedAnnotations: map[string]string{"dummy-annotation" + suffix: "true"}}
}

// carries waits until a ServiceImport has the labels and annotations of one export and not those of another.
func (m *mcsTest) carries(ctx context.Context, t *testing.T, has, not mcsv1beta1.ServiceExportSpec) {
	t.Helper()
	for _, c := range m.tb.Clusters() {
		m.imported(ctx, t, c, func(i *mcsv1beta1.ServiceImport) error {
			for _, of := range []struct{ got, has, not map[string]string }{
				{i.Labels, has.ExportedLabels, not.ExportedLabels},
				{i.Annotations, has.ExportedAnnotations, not.ExportedAnnotations},
			} {
				for key, value := range of.has {
					if of.got[key] != value {
						return fmt.Errorf("it lacks %s: %v", key, of.got)
					}
				}
				for key := range maps.Keys(of.not) {
					if _, is := of.got[key]; is {
						return fmt.Errorf("it has %s", key)
					}
				}
			}
			return nil
		})
	}
}

func mcsLabels(ctx context.Context, t *testing.T, m *mcsTest) {
	own := mcsv1beta1.ServiceExportSpec{ExportedLabels: map[string]string{"not-exported": "true"},
		ExportedAnnotations: map[string]string{"not-exported-annotation": "true"}}
	m.service(ctx, t, m.c1, helloService(func(s *corev1.Service) {
		s.Labels, s.Annotations = own.ExportedLabels, own.ExportedAnnotations
	}))
	m.export(ctx, t, m.c1, dummy(""))
	m.carries(ctx, t, dummy(""), own)
}

func mcsLabelsConflict(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(), dummy(""), dummy("2"))
	m.condition(ctx, t, mcsv1beta1.ServiceExportConditionConflict, metav1.ConditionTrue, m.c1, m.c2)
	m.carries(ctx, t, dummy(""), dummy("2"))
}

func mcsAccessible(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	began := time.Now()
	pods := m.pods(ctx, t, m.c1, 1)
	m.answers(ctx, t, m.nc(42), 1, containing("pod ip "+pods[0]))
	t.Logf("answered in both clusters %s after the pod was created", time.Since(began).Round(100*time.Millisecond))
	// In addition to the suite: the same over UDP.
	for _, c := range m.tb.Clusters() {
		i := m.imported(ctx, t, c, nil)
		request := testkit.Value(c.Pod(ctx, "shop", "request"))(t)
		must(t, until(ctx, conformant, func() error {
			conn, err := request.Netns.DialContext(ctx, "udp", i.Spec.IPs[0]+":42")
			if err != nil {
				return err
			}
			defer conn.Close()
			must(t, conn.SetDeadline(time.Now().Add(2*time.Second)))
			if _, err := io.WriteString(conn, "hi\n"); err != nil {
				return err
			}
			answer := make([]byte, 100)
			n, err := conn.Read(answer)
			if err != nil {
				return fmt.Errorf("UDP in %s: %w", c.Name, err)
			}
			return containing("pod ip " + pods[0])(string(answer[:n]))
		}))
	}
}

func mcsOnlyExporting(ctx context.Context, t *testing.T, m *mcsTest) {
	m.service(ctx, t, m.c2, helloService())
	m.pods(ctx, t, m.c2, 1)
	m.exported(ctx, t)
	pods := m.pods(ctx, t, m.c1, 1)
	m.answers(ctx, t, m.nc(42), 10, containing("pod ip "+pods[0]))
}

func mcsPortNumbers(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(onPorts(corev1.ServicePort{Name: "tcp", Port: 4242,
		Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(42)})))
	near, _ := m.pods(ctx, t, m.c1, 1), m.pods(ctx, t, m.c2, 1)
	m.answers(ctx, t, m.nc(42), 10, containing("pod ip "+near[0]))
}

func mcsPortNames(ctx context.Context, t *testing.T, m *mcsTest) {
	m.both(ctx, t, helloService(), helloService(onPorts(corev1.ServicePort{Name: "tcp2", Port: 4242,
		Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(42)})))
	near, far := m.pods(ctx, t, m.c1, 1), m.pods(ctx, t, m.c2, 1)
	m.answers(ctx, t, m.nc(42), 10, containing("pod ip "+near[0]))
	m.answers(ctx, t, m.nc(4242), 10, containing("pod ip "+far[0]))
}

func mcsDNS(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	for _, c := range m.tb.Clusters() {
		i := m.imported(ctx, t, c, func(i *mcsv1beta1.ServiceImport) error {
			if len(i.Spec.IPs) == 0 {
				return errors.New("it has no IP")
			}
			return nil
		})
		m.answers(ctx, t, "nslookup -type=A "+m.name(clusterset)+".", 1, containing(i.Spec.IPs[0]), c)
	}
}

// srvRecord matches a record in the output of nslookup: "NAME service = 0 50 42 TARGET".
var srvRecord = regexp.MustCompile(`.*=\s*\d*\s*\d*\s*(\d*)\s*([a-zA-Z0-9-.]*)`)

// srv verifies that there are exactly these records, "PORT TARGET". A target that ends with a dot is a prefix.
func srv(want ...string) func(string) error {
	return func(out string) error {
		var got []string
		for _, match := range srvRecord.FindAllStringSubmatch(out, -1) {
			got = append(got, match[1]+" "+strings.TrimSuffix(match[2], "."))
		}
		slices.Sort(got)
		same := len(got) == len(want)
		for i := range want {
			same = same && (got[i] == want[i] || strings.HasSuffix(want[i], ".") && strings.HasPrefix(got[i], want[i]))
		}
		if !same {
			return fmt.Errorf("the records are %q, not %q", got, want)
		}
		return nil
	}
}

func mcsSRV(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	m.answers(ctx, t, "nslookup -type=SRV "+m.name(clusterset), 1, srv("42 "+m.name(clusterset)))
}

func mcsLocalDNS(ctx context.Context, t *testing.T, m *mcsTest) {
	s := m.exported(ctx, t)
	m.imported(ctx, t, m.c2, nil)
	m.answers(ctx, t, "nslookup "+m.name("cluster.local"), 1, containing(s.Spec.ClusterIP), m.c1)
	m.answers(ctx, t, "nslookup "+m.name("cluster.local")+" || echo none", 1, containing("none"), m.c2)
}

// addressLine matches an address in the output of nslookup.
var addressLine = regexp.MustCompile(`Name:.*\s*Address:\s*(.*)`)

// having verifies that nslookup found exactly these addresses.
func having(want []string) func(string) error {
	return func(out string) error {
		var got []string
		for _, match := range addressLine.FindAllStringSubmatch(out, -1) {
			got = append(got, strings.TrimSpace(match[1]))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("the addresses are %q, not %q", got, want)
		}
		return nil
	}
}

func mcsHeadlessDNS(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t, headless)
	m.answers(ctx, t, "nslookup "+m.name(clusterset), 1, having(m.pods(ctx, t, m.c1, 2)))
}

func mcsHostnameDNS(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t, headless)
	testkit.Value(m.c1.Client.AppsV1().StatefulSets(m.ns).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: hello}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2),
			ServiceName: hello, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": hello}}, Template: helloPod()},
	}, metav1.CreateOptions{}))(t)
	m.addresses(ctx, t, m.c1, 2)
	for _, c := range m.tb.Clusters() {
		s := m.slice(ctx, t, c, func(s *discoveryv1.EndpointSlice) error {
			if len(s.Endpoints) != 2 {
				return fmt.Errorf("it has %d endpoints", len(s.Endpoints))
			}
			for _, e := range s.Endpoints {
				if !ptr.Deref(e.Conditions.Ready, true) || ptr.Deref(e.Hostname, "") == "" {
					return fmt.Errorf("endpoint %v has %v, hostname %v", e.Addresses, e.Conditions, e.Hostname)
				}
			}
			return nil
		})
		for _, e := range s.Endpoints {
			m.answers(ctx, t, fmt.Sprintf("nslookup %s.%s.%s", *e.Hostname, s.Labels[mcsv1beta1.LabelSourceCluster],
				m.name(clusterset)), 1, having(e.Addresses), c)
		}
	}
}

func mcsHeadlessSRV(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t, headless)
	var want []string
	for _, address := range m.pods(ctx, t, m.c1, 2) {
		want = append(want, "42 "+strings.ReplaceAll(address, ".", "-")+".")
	}
	slices.Sort(want)
	m.answers(ctx, t, "nslookup -type=SRV "+m.name(clusterset), 1, srv(want...))
}

// slice waits for an EndpointSlice of the MCS API that satisfies verify.
func (m *mcsTest) slice(ctx context.Context, t *testing.T, c *testbed.Cluster,
	verify func(*discoveryv1.EndpointSlice) error) (found *discoveryv1.EndpointSlice) {
	t.Helper()
	must(t, until(ctx, conformant, func() error {
		list, err := c.Client.DiscoveryV1().EndpointSlices(m.ns).List(ctx,
			metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("%s has %d slices", c.Name, len(list.Items))
		}
		found = &list.Items[0]
		if verify == nil {
			return nil
		}
		return verify(found)
	}))
	return found
}

func mcsEndpointSlice(ctx context.Context, t *testing.T, m *mcsTest) {
	m.exported(ctx, t)
	m.pods(ctx, t, m.c1, 1)
	slices := map[*testbed.Cluster]string{}
	for _, c := range m.tb.Clusters() {
		s := m.slice(ctx, t, c, nil)
		slices[c] = s.Name
		_, local := s.Labels[discoveryv1.LabelServiceName]
		if by := s.Labels[discoveryv1.LabelManagedBy]; s.Labels[mcsv1beta1.LabelServiceName] != hello ||
			s.Labels[mcsv1beta1.LabelSourceCluster] != "c1" || by == "" || by == "endpointslice-controller.k8s.io" || local {
			t.Errorf("%s: the labels are %v", c.Name, s.Labels)
		}
	}
	m.unexport(ctx, t, m.c1)
	for c, name := range slices {
		must(t, until(ctx, conformant, func() error {
			_, err := c.Client.DiscoveryV1().EndpointSlices(m.ns).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, fmt.Errorf("%s has the slice still", c.Name))
		}))
	}
}

// removed checks that the cleanup removes ServiceImports, their EndpointSlices and the derived Services, and keeps the
// CRDs and ServiceExports.
func (b *mcsBed) removed(ctx context.Context, t *testing.T) {
	m := &mcsTest{mcsBed: b, ns: "shop"}
	m.exported(ctx, t)
	m.pods(ctx, t, m.c1, 1)
	for _, c := range b.tb.Clusters() {
		present := mcsv1beta1.EndpointSliceObjectsPresent
		if b.in.ImportSlices == string(config.NoImportSlices) {
			present = mcsv1beta1.EndpointSliceObjectsAbsent
		} else {
			m.slice(ctx, t, c, nil)
		}
		m.imported(ctx, t, c, func(i *mcsv1beta1.ServiceImport) error {
			if i.Status.EndpointSliceObjects != present {
				return fmt.Errorf("its endpointSliceObjects are %q, not %q", i.Status.EndpointSliceObjects, present)
			}
			return nil
		})
	}
	if list, err := b.c2.Client.DiscoveryV1().EndpointSlices("").List(ctx,
		metav1.ListOptions{LabelSelector: mcsv1beta1.LabelServiceName}); err != nil ||
		b.in.ImportSlices == string(config.NoImportSlices) && len(list.Items) > 0 {
		t.Errorf("%v: slices beside ServiceImports although they are off: %v", err, list.Items)
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range b.tb.Clusters() {
		g.Go(func() error { return b.in.remove(gctx, c) })
	}
	must(t, g.Wait())
	for _, c := range b.tb.Clusters() {
		for _, what := range []string{"serviceimports.multicluster.x-k8s.io", "services", "endpointslices"} {
			out, err := c.Kubectl(ctx, nil, "get", what, "-A", "-l", "app.kubernetes.io/managed-by=semaphore-broker",
				"-o", "name")
			if err != nil || strings.TrimSpace(out) != "" {
				t.Errorf("%s of %s: %v, %s", what, c.Name, err, out)
			}
		}
	}
	if _, err := b.exports[b.c1].Get(ctx, "shop", hello); err != nil {
		t.Errorf("the ServiceExport: %v", err)
	}
}
