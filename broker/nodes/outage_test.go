package nodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/applytest"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// many are nodes whose agents have reported a tunnel to c2, in a bubble of synctest. answer is the apiserver's answer
// to a patch, after 3 ms; nil for one that does as asked.
type many struct {
	*Nodes
	indexer          cache.Indexer
	answer           atomic.Pointer[func(node string) (*http.Response, error)]
	tried, annotated atomic.Int64
}

func newMany(t *testing.T, n int, addresses ...string) *many {
	t.Helper()
	m := &many{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}
	opts, _ := applytest.Options()
	opts.Workers = 16
	client := kubernetes.NewForConfigOrDie(&rest.Config{QPS: -1, Transport: kubetest.RoundTripper(m.patch)})
	m.Nodes = New(client, []config.EndpointKind{config.InternalIP}, nil,
		[]netip.Prefix{netip.MustParsePrefix("172.18.0.0/16")}, nil, nil, func(types.UID) {}, opts)
	m.store.Set(m.indexer)
	for i := range n {
		node := nodeAt(fmt.Sprint("n", i), addresses...)
		testkit.Must(t, m.indexer.Add(node))
		m.saw(nil, node, false)
	}
	return m
}

func nodeAt(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}}
	for _, a := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return node
}

func (m *many) report(key byte) {
	for _, name := range m.Names() {
		m.Report(name, types.UID(name), map[string]Tunnel{"c2": {PublicKey: [32]byte{key}, ListenPort: 7775}}, false)
	}
}

func (m *many) patch(r *http.Request) (*http.Response, error) {
	time.Sleep(3 * time.Millisecond)
	m.tried.Add(1)
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if answer := m.answer.Load(); answer != nil {
		return (*answer)(name)
	}
	m.annotated.Add(1)
	have, _, _ := m.indexer.GetByKey(name)
	out := have.(*corev1.Node).DeepCopy()
	if err := json.NewDecoder(r.Body).Decode(out); err != nil {
		return nil, err
	}
	out.TypeMeta, out.ResourceVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, "2"
	return answer(http.StatusOK, out)
}

func answer(code int, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data))}, err
}

func refusal(code int32, reason metav1.StatusReason, message string) func(string) (*http.Response, error) {
	return func(string) (*http.Response, error) {
		return answer(int(code), metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: reason, Message: message, Code: code})
	}
}

// TestNodesAfterAnOutage: what keeps all nodes from being annotated costs few attempts a second, and all are annotated
// two seconds after its end.
func TestNodesAfterAnOutage(t *testing.T) {
	const nodes, outage, within, workers = 2000, 3 * time.Second, 2 * time.Second, 16
	for name, down := range map[string]func(string) (*http.Response, error){
		"away":                func(string) (*http.Response, error) { return nil, errors.New("connection refused") },
		"without its storage": refusal(http.StatusInternalServerError, "", "etcdserver: request timed out"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMany(t, nodes, "172.18.0.1")
				m.answer.Store(&down)
				testkit.Run(t, m.loop.Run)
				m.report(1)
				time.Sleep(outage)
				if n := m.tried.Load(); n > workers+int64(outage/(250*time.Millisecond)) {
					t.Errorf("%d attempts in %s", n, outage)
				}
				m.answer.Store(nil)
				time.Sleep(within)
				if n := m.annotated.Load(); n != nodes {
					t.Errorf("%d nodes are annotated %s after the outage, want %d: %v", n, within, nodes, m.Findings()[0].First)
				}
			})
		})
	}
}

// TestNodesWithoutAddress: nodes that have no address to publish are found, and delay no other node; and each is
// annotated at once when it has one.
func TestNodesWithoutAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 2000
		m := newMany(t, nodes)
		testkit.Run(t, m.loop.Run)
		m.report(1)
		time.Sleep(time.Minute)
		if n := len(finding.Texts(m.Findings())); n == 0 || m.Findings()[0].Count != nodes || m.tried.Load() > 0 {
			t.Fatalf("%v, %d attempts", m.Findings(), m.tried.Load())
		}
		change := func(name string) {
			node := nodeAt(name, "172.18.0.1")
			testkit.Must(t, m.indexer.Update(node))
			m.saw(node, node, false)
		}
		refuses := refusal(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "no")
		m.answer.Store(&refuses)
		change("n1")
		time.Sleep(time.Second)
		m.answer.Store(nil)
		change("n2")
		time.Sleep(5 * time.Second)
		for _, name := range []string{"n1", "n2"} {
			if node, _ := m.Node(name); node.Annotations[naming.EndpointAnnotation("c2")] != "172.18.0.1:7775" {
				t.Errorf("%s has %v", name, node.Annotations)
			}
		}
		if n := m.Findings()[0].Count; n != nodes-2 {
			t.Errorf("%d nodes lack an address, want %d", n, nodes-2)
		}
	})
}
