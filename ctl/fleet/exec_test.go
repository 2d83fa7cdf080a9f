package fleet_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/kube-semaphore/semaphore/ctl"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m),
		// The goroutine of a connection that has ended: client-go notices the end at its next ping, 5 s later, and the
		// kubelet's side after 1 s.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start"),
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// Those of a command whose context ends while client-go begins to read: its readDemuxLoop then returns without
		// an end of the streams, as it can set no deadline any more. A goroutine of ours that waits for it is found.
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*wsStreamExecutor).StreamWithContext.func1"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.watchErrorStream.func1"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*streamProtocolV2).copyStdin.func2"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*streamProtocolV2).copyStdout.func1"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/tools/remotecommand.(*streamProtocolV2).copyStderr.func1"))
}

var must = testkit.Must

// kubelet runs commands in pods as a kubelet does for an apiserver: by SPDY, with version 4 of remotecommand's
// protocol. The command is the verb itself.
type kubelet struct {
	t *testing.T
	// sockets are those of the part in each pod; a pod without one has no semaphorectl.
	sockets map[string]string
	// answers are those of the parts, beside their status and their events.
	answers debug.Answers
	// recorders are those of the parts.
	recorders map[string]*debug.Recorder
	// A port of each pod leads to the backend.
	port, backend string
	// orders are counted, of all parts.
	orders orders

	mu      sync.Mutex
	asked   []string
	running sync.WaitGroup
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // exec, namespace, pod, container
	if path[0] == "portForward" {
		k.forwards(w, r, k.port, k.backend)
		return
	}
	if path[0] != "exec" {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	pod, command := path[2], strings.Join(r.URL.Query()["command"], " ")
	k.mu.Lock()
	k.asked = append(k.asked, pod+": "+command)
	k.mu.Unlock()
	opened := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < 4 {
		select {
		case s := <-opened:
			streams[s.Headers().Get("streamType")] = s
		case <-conn.CloseChan():
			return
		}
	}
	k.running.Add(1)
	defer k.running.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-conn.CloseChan():
			cancel()
		case <-ctx.Done():
		}
	}()
	var err error
	switch socket := k.sockets[pod]; {
	case command != "semaphorectl stdio" && command != "semaphorectl stdio --read-only":
		err = errors.New("unknown flag: --read-only")
	case socket == "":
		err = errors.New("no part's socket in\n/run/semaphore")
	default:
		target := fleet.Target{Sockets: []string{socket}, ReadOnly: strings.HasSuffix(command, "--read-only")}
		err = target.Stdio(ctx, streams["stdin"], streams["stdout"])
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil {
		fmt.Fprintf(streams["stderr"], "semaphorectl: %v\n", err)
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: "command terminated",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: "1"}}}}
	}
	for _, name := range []string{"stdout", "stderr"} {
		_ = streams[name].Close()
	}
	_ = json.NewEncoder(streams["error"]).Encode(status)
	_ = streams["error"].Close()
	<-conn.CloseChan()
}

// serve starts a kubelet on loopback, and creates a node for its pods.
func (k *kubelet) serve(admin kubernetes.Interface) {
	server := httptest.NewUnstartedServer(k)
	server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	server.StartTLS()
	k.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		k.running.Wait()
	})
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	must(k.t, err)
	port := testkit.Value(strconv.Atoi(text))(k.t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
	}}
	created := kubetest.Create(k.t, admin.CoreV1().Nodes(), node)
	created.Status = node.Status
	kubetest.UpdateStatus(k.t, admin.CoreV1().Nodes(), created)
}

// pod creates a running pod of a part, which is reached at the socket.
func (k *kubelet) pod(admin kubernetes.Interface, name, part string, ready bool,
	status func() *semaphorev1.GetStatusResponse) {
	t := k.t
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "semaphore", Labels: map[string]string{
			"app.kubernetes.io/name": "semaphore", "app.kubernetes.io/component": part,
		}},
		Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "default", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: part, Image: "semaphore"}}},
	}
	created := kubetest.Create(t, admin.CoreV1().Pods("semaphore"), p)
	created.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
		Name: part, Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}}
	kubetest.UpdateStatus(t, admin.CoreV1().Pods("semaphore"), created)
	if status == nil {
		return
	}
	recorder := debug.NewRecorder(part, "c1", "")
	recorder.Record(debug.Event{Source: "c1", Object: "service shop/echo", Action: "export"})
	if k.recorders == nil {
		k.recorders = map[string]*debug.Recorder{}
	}
	k.recorders[part] = recorder
	k.sockets[name] = ctltest.ServeAnswers(t, recorder, status, k.answers,
		func(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, &k.orders) })
}

// were returns the commands since the last call.
func (k *kubelet) were() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	asked := k.asked
	k.asked = nil
	return asked
}

// rights are those that kubectl exec needs.
var rights = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create", "get"}},
}

// operator creates a user with rights in the namespace of the parts.
func operator(t *testing.T, admin kubernetes.Interface, cfg *rest.Config, name string,
	rules []rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "semaphore"}, Rules: rules}
	kubetest.Create(t, admin.RbacV1().Roles("semaphore"), role)
	kubetest.Create(t, admin.RbacV1().RoleBindings("semaphore"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "semaphore"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: "rbac.authorization.k8s.io", Name: name}},
	})
	// The apiserver applies a Role a moment after its creation.
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			resource, sub, _ := strings.Cut(rule.Resources[0], "/")
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "semaphore", Verb: verb,
					Group: rule.APIGroups[0], Resource: resource, Subresource: sub}}}
			testkit.Eventually(t, 3*time.Minute, name+" has its rights", func() error {
				is, err := admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
				if err == nil && !is.Status.Allowed {
					err = fmt.Errorf("%s of %s: %s", verb, rule.Resources[0], is.Status.Reason)
				}
				return err
			})
		}
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name}
	return kubetest.Kubeconfig(t, cfg)
}

// startServer starts an apiserver with the namespace of the parts, in which pods can be created.
func startServer(t *testing.T) (*rest.Config, *kubernetes.Clientset) {
	t.Helper()
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "semaphore")
	kubetest.Create(t, admin.CoreV1().ServiceAccounts("semaphore"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	return cfg, admin
}

// TestThroughTheApiserver: a real apiserver connects semaphorectl to the leaders of exporter and broker, for a user
// with only the rights that kubectl exec needs.
func TestThroughTheApiserver(t *testing.T) {
	cfg, admin := startServer(t)
	k := &kubelet{t: t, sockets: map[string]string{}}
	k.serve(admin)
	kubeconfig := operator(t, admin, cfg, "operator", rights)
	ask := func(kubeconfig string, parts ...string) (map[string]*semaphorev1.GetStatusResponse, error) {
		t.Helper()
		target := fleet.Target{Access: &fleet.Access{Kubeconfig: kubeconfig, Namespace: "semaphore"}, Parts: parts}
		reached, err := target.Dial(t.Context())
		out := map[string]*semaphorev1.GetStatusResponse{}
		for _, p := range reached {
			s, err := p.Status(t.Context(), time.Minute) // it closes the connection, too
			must(t, err)
			out[s.GetPart()] = s
		}
		return out, err
	}

	if _, err := ask(kubeconfig, fleet.Broker); err == nil ||
		!strings.Contains(err.Error(), "no pod of the broker runs in namespace semaphore") {
		t.Errorf("without pods: %v", err)
	}
	as := func(leader string, standby bool) func() *semaphorev1.GetStatusResponse {
		return func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Ready: true, Leader: leader, Standby: standby}
		}
	}
	k.pod(admin, "semaphore-broker-a", "broker", true, as("semaphore-broker-b", true))
	k.pod(admin, "semaphore-broker-b", "broker", true, as("semaphore-broker-b", false))
	k.pod(admin, "semaphore-exporter-a", "exporter", true, as("semaphore-exporter-b", true))
	k.pod(admin, "semaphore-exporter-b", "exporter", true, as("semaphore-exporter-b", false))
	k.were()

	got, err := ask(kubeconfig, fleet.Exporter, fleet.Broker)
	must(t, err)
	if got["broker"].GetStandby() || got["exporter"].GetStandby() || len(got) != 2 {
		t.Errorf("a standby answers: %v", got)
	}
	// Without the right to read slices, semaphorectl learns the leader from a standby.
	var want []string
	for _, pod := range []string{"broker-a", "broker-b", "exporter-a", "exporter-b"} {
		want = append(want, "semaphore-"+pod+": semaphorectl stdio --read-only")
	}
	asked := k.were()
	slices.Sort(asked)
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}

	// With the right, it connects to the leader directly.
	name, ready := "semaphore-broker-b", true
	kubetest.Create(t, admin.DiscoveryV1().EndpointSlices("semaphore"), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-broker-leader-ipv4",
			Labels: map[string]string{discoveryv1.LabelServiceName: "semaphore-broker"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.7"},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: name}}},
	})
	reader := operator(t, admin, cfg, "reader", append(slices.Clone(rights),
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"},
			Verbs: []string{"list"}}))
	if _, err := ask(reader, fleet.Broker); err != nil ||
		!slices.Equal(k.were(), []string{"semaphore-broker-b: semaphorectl stdio --read-only"}) {
		t.Errorf("with the slices: %v", err)
	}

	// If only standbys can be reached, they answer, and the error says why their leaders do not. That is no answer of a
	// leader: nothing is well.
	b, e := k.sockets["semaphore-broker-b"], k.sockets["semaphore-exporter-b"]
	k.sockets["semaphore-broker-b"], k.sockets["semaphore-exporter-b"] = "", ""
	const lost = "only a standby answers; the leader is semaphore-%[1]s-b: %[2]s: exec in pod semaphore/" +
		"semaphore-%[1]s-b: semaphorectl: no part's socket in /run/semaphore"
	got, err = ask(kubeconfig, fleet.Exporter, fleet.Broker)
	raw := clientcmd.GetConfigFromFileOrDie(kubeconfig)
	raw.Contexts["again"] = raw.Contexts[raw.CurrentContext]
	must(t, clientcmd.WriteToFile(*raw, kubeconfig))
	said := map[string]string{"Dial": fmt.Sprint(err)}
	for _, verb := range []string{"get findings -o json", "bundle " + filepath.Join(t.TempDir(), "archive"),
		"check --traffic --context test,again"} {
		var out bytes.Buffer
		cmd, args := ctl.Command(), strings.Fields(verb)
		cmd.SetArgs(append(args, "--kubeconfig", kubeconfig))
		cmd.SetOut(&out)
		cmd.SetErr(io.Discard)
		err := cmd.ExecuteContext(t.Context())
		switch {
		case err == nil:
			t.Errorf("%s: all is well: %s", verb, out.String())
		case args[0] == "check": // it asks no exporter for its status
			if want := fmt.Sprintf(lost, "broker", "test"); !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, not %s", verb, err, want)
			}
			continue
		case args[0] == "bundle":
			archive := testkit.Value(os.Open(args[1]))(t)
			out.Reset()
			_ = testkit.Value(io.Copy(&out, testkit.Value(gzip.NewReader(archive))(t)))(t)
			must(t, archive.Close())
		}
		said[verb] = out.String()
	}
	c := testkit.Value((&fleet.Access{Kubeconfig: kubeconfig, Namespace: "semaphore"}).Cluster())(t)
	for _, part := range []string{"broker", "exporter"} {
		s, err := c.Status(t.Context(), part, "", time.Minute)
		said["Status"] = fmt.Sprint(err)
		for from, text := range said {
			if want := fmt.Sprintf(lost, part, c.Context); !strings.Contains(text, want) {
				t.Errorf("%s, with a standby of the %s: %s, not %s", from, part, text, want)
			}
		}
		if !s.GetStandby() || !got[part].GetStandby() {
			t.Errorf("%s: the standby does not answer: %v, %v", part, s, got)
		}
	}
	k.sockets["semaphore-broker-b"], k.sockets["semaphore-exporter-b"] = b, e

	// A part that cannot be reached does not prevent the request to the other one, and the error has the reason from
	// its pod.
	k.sockets["semaphore-exporter-a"], k.sockets["semaphore-exporter-b"] = "", ""
	got, err = ask(kubeconfig, fleet.Exporter, fleet.Broker)
	if len(got) != 1 || err == nil ||
		!strings.Contains(err.Error(),
			"exec in pod semaphore/semaphore-exporter-a: semaphorectl: no part's socket in /run/semaphore") {
		t.Errorf("an exporter without a socket: %v, %v", got, err)
	}

	// Without the right to exec, the apiserver says so; the command does not wait until its timeout.
	stranger := operator(t, admin, cfg, "stranger", rights[:1])
	if _, err := ask(stranger, fleet.Broker); err == nil ||
		!strings.Contains(err.Error(), `cannot create resource "pods/exec"`) && !strings.Contains(err.Error(),
			"forbidden") {
		t.Errorf("without the right: %v", err)
	} else if strings.Contains(err.Error(), "within") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without the right: %v", err)
	}
}

// TestStdioIsOneStream: everything that a part writes passes through the command completely, in both directions, and
// the end of one direction ends both.
func TestStdioIsOneStream(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "part.sock")
	listener := testkit.Value(net.Listen("unix", socket))(t)
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, io.LimitReader(conn, 1<<20)) // an echo, which ends after a MiB
		conn.Close()
	}()
	in, inWriter := io.Pipe()
	outReader, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- (&fleet.Target{Sockets: []string{socket}}).Stdio(t.Context(), in, out)
		out.Close()
		in.Close()
	}()
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	go inWriter.Write(sent)
	got := testkit.Value(io.ReadAll(outReader))(t)
	must(t, <-done)
	if greeting := "semaphore-stdio 1\n"; string(got[:len(greeting)]) != greeting ||
		!slices.Equal(got[len(greeting):], sent) {
		t.Errorf("%d bytes came of %d, after %q", len(got), len(sent), got[:18])
	}
}
