package fleet_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/ctl"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// hanging starts two apiservers that accept connections: at the first nothing answers, and the second answers to TLS
// and not to requests. It adds contexts of both to a kubeconfig.
func hanging(t *testing.T, kubeconfig string) {
	t.Helper()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	})
	t.Cleanup(func() {
		silent.Close()
		accepting.Wait()
	})
	stuck := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		stuck.CloseClientConnections()
		stuck.Close()
	})
	file, err := clientcmd.LoadFromFile(kubeconfig)
	must(t, err)
	for name, server := range map[string]string{"silent": "https://" + silent.Addr().String(), "stuck": stuck.URL} {
		file.Clusters[name] = &clientcmdapi.Cluster{Server: server, InsecureSkipTLSVerify: true}
		file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: "test"}
	}
	must(t, clientcmd.WriteToFile(*file, kubeconfig))
}

// A request has what the verb's earlier work leaves of its 10 s, or 15 s of its own.
var notWithin = regexp.MustCompile(`did not answer within ([1-9]|1[0-5])(\.[0-9])?s`)

// TestSilentApiservers: beside two apiservers that accept connections and never answer, each verb about several
// clusters says within a stated time what the third knows, and which two did not answer, and after how long.
func TestSilentApiservers(t *testing.T) {
	cfg, admin := startServer(t)
	k := &kubelet{t: t, sockets: map[string]string{}, answers: debug.Answers{
		Locate: func(context.Context, *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
			return &semaphorev1.LocateResponse{Places: []*semaphorev1.Place{
				{Hop: debug.HopSource, Object: "service shop/echo", State: debug.PlaceDone},
				{Hop: debug.HopWrite, Object: "service semaphore/c2-shop-73736d-echo", State: debug.PlaceWaiting,
					Detail: "its write is delayed"}}}, nil
		},
		Holders: func(context.Context, *semaphorev1.ListHoldersRequest) (*semaphorev1.ListHoldersResponse, error) {
			return &semaphorev1.ListHoldersResponse{Holders: []*semaphorev1.Holder{{Cluster: "c9", Pod: "web-0"}}}, nil
		},
	}}
	k.serve(admin)
	for _, part := range []string{"broker", "exporter"} {
		k.pod(admin, "semaphore-"+part+"-a", part, true, func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Ready: true, Links: []*semaphorev1.LinkStatus{{Cluster: "c2"}}}
		})
	}
	kubetest.Namespace(t, admin, "shop")
	client := kubetest.Create(t, admin.CoreV1().Pods("shop"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "client", Namespace: "shop"},
		Spec: corev1.PodSpec{NodeName: "n1", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "x", Image: "x"}}}})
	client.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.5",
		PodIPs: []corev1.PodIP{{IP: "10.1.0.5"}}, ContainerStatuses: []corev1.ContainerStatus{{Name: "x", Image: "x",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	kubetest.UpdateStatus(t, admin.CoreV1().Pods("shop"), client)
	kubeconfig := kubetest.Kubeconfig(t, cfg)
	hanging(t, kubeconfig)
	archive := filepath.Join(t.TempDir(), "out.tar.gz")

	var asking sync.WaitGroup
	for verb, says := range map[string]string{
		"status":                            "0 of 1 remotes fresh",
		"status -o mermaid":                 "c1",
		"trace service/shop/echo":           "source",
		"trace --history service/shop/echo": "exporter/c1",
		"get ip 10.9.0.1":                   "c9//web-0",
		"explain c1/shop/client echo.shop.svc.cluster.c2": "the broker's write is waiting: its write is delayed",
		"bundle " + archive: "of 3 clusters",
		"check --pre":       "Kubernetes",
	} {
		asking.Go(func() {
			cmd, out := ctl.Command(), &bytes.Buffer{}
			cmd.SetOut(out)
			cmd.SetErr(out)
			// Those that do not answer come first, so that their time is nobody else's.
			cmd.SetArgs(append(strings.Fields(verb), "--kubeconfig", kubeconfig,
				"--context", "silent", "--context", "stuck", "--context", "test"))
			err := cmd.ExecuteContext(t.Context())
			text := out.String()
			if err != nil {
				text += err.Error()
			}
			if !strings.Contains(text, says) {
				t.Errorf("%s does not say %q of the cluster that answers:\n%s", verb, says, text)
			}
			if strings.HasPrefix(verb, "bundle") {
				text = unzipped(t, archive)
			}
			for _, name := range []string{"silent", "stuck"} {
				if _, after, _ := strings.Cut(text, name+": "); !notWithin.MatchString(after) {
					t.Errorf("%s does not say that %s did not answer, and after how long:\n%s", verb, name, text)
				}
			}
		})
	}
	asking.Wait()
}

// unzipped returns the whole archive as one text.
func unzipped(t *testing.T, path string) string {
	file, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer file.Close()
	text, err := gzip.NewReader(file)
	if err != nil {
		t.Error(err)
		return ""
	}
	all, err := io.ReadAll(text)
	if err != nil {
		t.Error(err)
	}
	return string(all)
}

// TestWatchesBesideSilentApiservers: trace --watch and status --watch print what one cluster says at once, beside two
// whose apiservers never answer. They name those two within a stated time, and continue with the one.
func TestWatchesBesideSilentApiservers(t *testing.T) {
	cfg, admin := startServer(t)
	k := &kubelet{t: t, sockets: map[string]string{}}
	k.serve(admin)
	var leader atomic.Value
	leader.Store("leader-1")
	for _, part := range []string{"broker", "exporter"} {
		k.pod(admin, "semaphore-"+part+"-a", part, true, func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Part: part, Cluster: "c1", Ready: true, Leader: leader.Load().(string)}
		})
	}
	kubeconfig := kubetest.Kubeconfig(t, cfg)
	hanging(t, kubeconfig)
	event := func(name string) func() {
		return func() {
			k.recorders["exporter"].Record(debug.Event{Source: "c1", Object: "service shop/echo", Action: "export",
				Detail: name})
		}
	}
	for _, c := range []struct {
		name, verb, first string
		// change is what happens after the two are named, and then what it says of that.
		change func()
		then   string
	}{
		{"trace", "trace --watch --history", "service shop/echo", event("once more"), "once more"},
		{"of an object", "trace --watch --history service/shop/echo", "service shop/echo", event("a third time"),
			"a third time"},
		{"status", "status --watch --every 1s", "leader-1", func() { leader.Store("leader-2") }, "leader-2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := make(written, 1000)
			cmd := ctl.Command()
			cmd.SetOut(out)
			cmd.SetErr(out)
			cmd.SetArgs(append(strings.Fields(c.verb), "--kubeconfig", kubeconfig,
				"--context", "silent", "--context", "stuck", "--context", "test"))
			all, ended := "", make(chan error, 1)
			go func() { ended <- cmd.ExecuteContext(ctx) }()
			// says waits until it has said something.
			says := func(what *regexp.Regexp) {
				t.Helper()
				waited := time.After(time.Minute)
				for !what.MatchString(strings.Join(strings.Fields(all), " ")) {
					select {
					case more := <-out:
						all += more
					case err := <-ended:
						t.Fatalf("ended with %v", err)
					case <-waited:
						t.Fatalf("no %s in %s", what, all)
					}
				}
			}
			says(regexp.MustCompile(c.first))
			if notWithin.MatchString(all) {
				t.Errorf("what one cluster says came after it had given up others: %s", all)
			}
			for _, name := range []string{"silent", "stuck"} {
				says(regexp.MustCompile(name + ": the apiserver (does not answer: the apiserver )?" + notWithin.String()))
			}
			if c.change(); strings.Contains(all, c.then) {
				t.Fatalf("it said %q before that happened: %s", c.then, all)
			}
			says(regexp.MustCompile(c.then))
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Ctrl-C is no error, and it ended with %v", err)
			}
		})
	}
}

type written chan string

func (w written) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
