package stored

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func peer(cluster, node string, key byte, cidrs ...string) *semaphorev1.Peer {
	return &semaphorev1.Peer{
		Key: &semaphorev1.PeerKey{Cluster: cluster, Node: node}, AllowedIps: cidrs,
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: bytes.Repeat([]byte{key}, 32), Address: "192.0.2.1:51820"},
	}
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	testkit.Value(z.Write(data))(t)
	testkit.Must(t, z.Close())
	return out.Bytes()
}

func TestUnpack(t *testing.T) {
	two := []*semaphorev1.Peer{peer("c2", "n1", 1, "10.2.1.0/24"), peer("c2", "n2", 2, "10.2.2.0/24", "fd00:2::/64")}
	packed := testkit.Value(pack(two))(t)
	if again, _ := pack(two); !bytes.Equal(packed, again) {
		t.Error("the same peers are other bytes, and would be written again")
	}
	mixed := testkit.Value(proto.Marshal(&semaphorev1.PeeringChanges{Changes: []*semaphorev1.PeeringChange{
		{}, {Change: &semaphorev1.PeeringChange_DeletePeer{DeletePeer: two[0].GetKey()}},
		{Change: &semaphorev1.PeeringChange_Peer{Peer: two[1]}},
	}}))(t)
	none := testkit.Value(pack(nil))(t)
	for name, test := range map[string]struct {
		data []byte
		want string // the nodes, or the error
	}{
		"as it was packed":   {packed, "n1 n2"},
		"of no peers":        {none, ""},
		"nothing":            {nil, "error: EOF"},
		"no gzip":            {[]byte("peers"), "error: unexpected EOF"},
		"the end is missing": {packed[:len(packed)-9], "error: unexpected EOF"},
		"one byte differs": {append(slices.Clone(packed[:len(packed)-8]),
			append([]byte{packed[len(packed)-8] ^ 1}, packed[len(packed)-7:]...)...), "error: gzip: invalid checksum"},
		"no message": {gzipped(t, []byte{0xff}),
			"error: rpc error: code = InvalidArgument desc = a message of 1 bytes that is none"},
		"changes that are no peers":         {gzipped(t, mixed), "n2"},
		"small when packed, large unpacked": {gzipped(t, make([]byte, maxUnpacked+1)), "error: more than 67108864 bytes"},
		"small unpacked, large decoded": {gzipped(t, bytes.Repeat([]byte{0x0a, 0}, maxUnpacked/2)),
			"error: rpc error: code = ResourceExhausted desc = a message of 67108864 bytes would take more than 268435456 " +
				"bytes once decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			peers, err := unpack(test.data)
			var nodes []string
			for _, p := range peers {
				nodes = append(nodes, p.GetKey().GetNode())
			}
			got := strings.Join(nodes, " ")
			if err != nil {
				got = "error: " + err.Error()
			}
			if want, isError := strings.CutPrefix(test.want, "error: "); isError && !strings.HasPrefix(got, "error: "+want) ||
				!isError && got != test.want {
				t.Errorf("unpacked are %q, want %q", got, test.want)
			}
		})
	}
}

// Where a remote is kept stays the same from version to version: a broker reads what one of another version wrote.
func TestShard(t *testing.T) {
	for cluster, want := range map[string]int{"c1": 1, "c2": 0, "c3": 3, "prod-frankfurt": 2, "": 1} {
		if got := shard(cluster); got != want {
			t.Errorf("remote %q is in %s, want %s", cluster, Name(got), Name(want))
		}
	}
	for i := range 1000 {
		if s := shard(fmt.Sprint("c", i)); s < 0 || s >= Shards {
			t.Fatalf("c%d is in %s, to which RBAC gives no right", i, Name(s))
		}
	}
}

// One remote that cannot be read takes nothing from the others, and of those that are not configured nothing is read.
func TestRead(t *testing.T) {
	packed := testkit.Value(pack([]*semaphorev1.Peer{peer("c2", "n1", 1, "10.2.1.0/24"), peer("c2", "n2", 2)}))(t)
	s := &PeerStore{remotes: map[string]bool{"c2": true, "c3": true, "c4": true}, log: slog.New(slog.DiscardHandler)}
	all := map[string]map[string]*semaphorev1.Node{}
	s.read(&corev1.ConfigMap{BinaryData: map[string][]byte{"c2": packed, "c3": []byte("nonsense"), "c9": packed}}, all)
	if len(all) != 1 || len(all["c2"]) != 2 {
		t.Fatalf("read are %v", all)
	}
	n1 := all["c2"]["n1"]
	if got := n1.GetPodCidrs(); len(got) != 1 || got[0] != "10.2.1.0/24" || n1.GetWireguard().GetPublicKey()[0] != 1 ||
		n1.GetWireguard().GetAddress() != "192.0.2.1:51820" {
		t.Errorf("n1 was %v", n1)
	}
}

// received is what agents receive, as peering.State has it. It implements Peers.
type received struct {
	mu      sync.Mutex
	peers   map[string][]*semaphorev1.Peer
	version byte
	digests map[string]streams.Digest
	changed chan struct{}
}

func newTold() *received {
	return &received{peers: map[string][]*semaphorev1.Peer{}, digests: map[string]streams.Digest{},
		changed: make(chan struct{})}
}

func (a *received) set(cluster string, peers ...*semaphorev1.Peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.peers[cluster], a.digests[cluster] = peers, streams.Digest{a.version}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *received) Digests() (map[string]streams.Digest, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]streams.Digest{}
	for c, d := range a.digests {
		out[c] = d
	}
	return out, a.changed
}

func (a *received) PeersOf(cluster string) []*semaphorev1.Peer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peers[cluster]
}

// bench is a cluster with a namespace.
type bench struct {
	t     *testing.T
	admin kubernetes.Interface
	api   *rest.Config
}

// follow runs a store until the test or stop ends it.
func (b *bench) follow(s *PeerStore, peers Peers) (stop func()) {
	return testkit.Run(b.t, func(ctx context.Context) error { return s.Run(ctx, peers) })
}

func (b *bench) loads(s *PeerStore) string {
	b.t.Helper()
	all := testkit.Value(s.Load(b.t.Context()))(b.t)
	var lines []string
	for cluster, nodes := range all {
		for name, n := range nodes {
			lines = append(lines, fmt.Sprintf("%s/%s %d %s", cluster, name, n.GetWireguard().GetPublicKey()[0],
				strings.Join(n.GetPodCidrs(), " ")))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func (b *bench) within(what string, ok func() (bool, string)) {
	b.t.Helper()
	testkit.Eventually(b.t, 3*time.Minute, what, testkit.State(ok))
}

// version is that of the ConfigMap in which a remote is, empty for none.
func (b *bench) version(cluster string) string {
	object, err := b.admin.CoreV1().ConfigMaps("semaphore").Get(b.t.Context(), Name(shard(cluster)), metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return object.ResourceVersion
}

func TestStore(t *testing.T) {
	api := kubetest.Start(t)
	b := &bench{t: t, api: api, admin: kubernetes.NewForConfigOrDie(api)}
	kubetest.Namespace(t, b.admin, "semaphore")
	quiet := slog.New(slog.DiscardHandler)
	open := func(remotes ...string) *PeerStore { return NewPeers(b.admin, "semaphore", remotes, quiet) }
	agents := newTold()

	first := open("c2", "c3")
	if is := b.loads(first); is != "" {
		t.Fatalf("of nothing, %q is read", is)
	}
	stop := b.follow(first, agents)
	agents.set("c2", peer("c2", "n1", 1, "10.2.1.0/24"), peer("c2", "n2", 2, "10.2.2.0/24"))
	agents.set("c3", peer("c3", "n1", 3, "10.3.1.0/24"))
	const both = "c2/n1 1 10.2.1.0/24, c2/n2 2 10.2.2.0/24, c3/n1 3 10.3.1.0/24"
	is := func(want string) func() (bool, string) {
		return func() (bool, string) { got := b.loads(open("c2", "c3")); return got == want, got }
	}
	b.within("the next broker knows both remotes", is(both))

	// A remote of which nothing changed is not written again, neither beside another nor by the next broker.
	quietRemote := b.version("c3")
	agents.set("c2", peer("c2", "n2", 2, "10.2.2.0/24"))
	b.within("a peer that has gone is not kept", is("c2/n2 2 10.2.2.0/24, c3/n1 3 10.3.1.0/24"))
	stop()
	if b.version("c3") != quietRemote {
		t.Error("what did not change was written beside another remote")
	}
	next, received := open("c2", "c3"), b.version("c2")
	stop = b.follow(next, agents)
	// Nor does an empty one of a remote that was heard whole: that it has no peers is known then.
	agents.set("c3")
	b.within("a remote without peers", is("c2/n2 2 10.2.2.0/24"))
	if b.version("c2") != received {
		t.Error("what did not change was written again")
	}
	stop()

	// Of a remote that was taken out of the configuration nothing is read, and what was kept goes.
	without := open("c3")
	if got := b.loads(without); got != "" {
		t.Errorf("of a remote that is not configured, %q is read", got)
	}
	stop = b.follow(without, newTold())
	b.within("a remote that is not configured is forgotten", is(""))
	stop()

	// More peers than a ConfigMap takes: some are kept, and nothing fails.
	many := make([]*semaphorev1.Peer, 30_000)
	for i := range many {
		many[i] = peer("c2", fmt.Sprintf("node-%05d", i), 0, fmt.Sprintf("10.2.%d.%d/32", i/256, i%256))
		if _, err := rand.Read(many[i].GetWireguard().PublicKey); err != nil { // that gzip finds nothing to save
			t.Fatal(err)
		}
	}
	agents.set("c2", many...)
	large := open("c2", "c6", "c11")
	stop = b.follow(large, agents)
	most := func() (bool, string) {
		all, err := large.Load(t.Context())
		return err == nil && len(all["c2"]) > 10_000, fmt.Sprintf("%d of %d, %v, %v", len(all["c2"]), len(many), err,
			large.Problems())
	}
	b.within("most of a large remote is kept", most)
	if p := large.Problems(); len(p) != 0 {
		t.Errorf("problems are %q", p)
	}
	stop()

	// Of the other remotes in its ConfigMap, one that has no room takes nothing from the others.
	agents.set("c6", many[:5000]...)
	agents.set("c11", peer("c11", "n1", 4))
	large = open("c2", "c6", "c11")
	stop = b.follow(large, agents)
	b.within("a small remote is kept beside one without room", func() (bool, string) {
		all, err := open("c2", "c6", "c11").Load(t.Context())
		problems := fmt.Sprint(large.Problems())
		return err == nil && len(all["c11"]) == 1 && len(all["c6"]) == 0 &&
			strings.Contains(problems, "ConfigMap semaphore-peers-0 has no room for those of c6"), fmt.Sprint(len(all), problems)
	})
	b.within("and beside most of the large one", most)
	stop()
}

// TestStoredRate: while nodes of 100 remotes change all the time, for three minutes, the ConfigMaps are written at the
// rate of the bound, whatever a write has of others; each has what changed last soon after that.
func TestStoredRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const remotes, nodes, churn, often = 100, 20, 3 * time.Minute, 700 * time.Millisecond
		var written atomic.Int64
		var stored sync.Map // bodies, by path
		api := kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
			body := []byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
			if r.Method == http.MethodGet {
				have, ok := stored.Load(path.Base(r.URL.Path))
				if ok {
					body = have.([]byte)
				} else {
					answer.StatusCode = http.StatusNotFound
				}
			} else {
				object := &corev1.ConfigMap{}
				body, _ = io.ReadAll(r.Body)
				if err := json.Unmarshal(body, object); err != nil {
					return nil, err
				}
				for _, data := range object.BinaryData {
					written.Add(int64(len(data)))
				}
				stored.Store(object.Name, body)
			}
			answer.Body = io.NopCloser(bytes.NewReader(body))
			return answer, nil
		})
		agents, of := newTold(), map[string][]*semaphorev1.Peer{}
		change := func(cluster string, node int) {
			of[cluster] = slices.Clone(of[cluster])
			of[cluster][node] = peer(cluster, fmt.Sprint("n", node), 0)
			testkit.Value(rand.Read(of[cluster][node].GetWireguard().PublicKey))(t)
		}
		var names []string
		for i := range remotes {
			name := fmt.Sprint("r", i)
			names = append(names, name)
			of[name] = make([]*semaphorev1.Peer, nodes)
			for node := range nodes {
				change(name, node)
			}
			agents.set(name, of[name]...)
		}
		client := kubernetes.NewForConfigOrDie(&rest.Config{QPS: -1, Transport: api,
			ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		s := NewPeers(client, "semaphore", names, slog.New(slog.DiscardHandler))
		testkit.Run(t, func(ctx context.Context) error { return s.Run(ctx, agents) })
		time.Sleep(time.Minute)
		once := written.Swap(0)
		for i := range int(churn / often) {
			change(names[i%remotes], i%nodes)
			agents.set(names[i%remotes], of[names[i%remotes]]...)
			time.Sleep(often)
		}
		if n, most := written.Load(), int64(churn/time.Second)*bytesPerSecond+once; n > most || n < most/2 {
			t.Errorf("%d bytes in %s, want %d at most, and half of them", n, churn, most)
		}
		time.Sleep(2 * time.Minute)
		all := testkit.Value(s.Load(t.Context()))(t)
		for _, name := range names {
			for _, p := range of[name] {
				if got := all[name][p.GetKey().GetNode()].GetWireguard(); !proto.Equal(got, p.GetWireguard()) {
					t.Fatalf("%s has %v, want %v", p.GetKey(), got, p.GetWireguard())
				}
			}
		}
	})
}

// TestStoredPeersAreRestored: what somebody deletes or changes of the stored peers is written again at the next look,
// and reported; nothing is written otherwise.
func TestStoredPeersAreRestored(t *testing.T) {
	b := &bench{t: t, api: kubetest.Start(t)}
	b.admin = kubernetes.NewForConfigOrDie(b.api)
	kubetest.Namespace(t, b.admin, "semaphore")
	quiet := slog.New(slog.DiscardHandler)
	s := NewPeers(b.admin, "semaphore", []string{"c2", "c3"}, quiet)
	s.every = 10 * time.Millisecond
	agents := newTold()
	agents.set("c2", peer("c2", "n1", 1, "10.2.1.0/24"))
	agents.set("c3", peer("c3", "n1", 3, "10.3.1.0/24"))
	b.follow(s, agents)
	const both = "c2/n1 1 10.2.1.0/24, c3/n1 3 10.3.1.0/24"
	is := func() (bool, string) {
		got := b.loads(NewPeers(b.admin, "semaphore", []string{"c2", "c3"}, quiet))
		return got == both, got
	}
	b.within("both are stored", is)
	if reported := s.Reports(); len(reported) != 0 {
		t.Errorf("nobody has changed anything, and %q is the report", reported)
	}
	maps := b.admin.CoreV1().ConfigMaps("semaphore")
	testkit.Must(t, maps.Delete(t.Context(), Name(shard("c2")), metav1.DeleteOptions{}))
	testkit.Value(maps.Patch(t.Context(), Name(shard("c3")), "application/merge-patch+json",
		[]byte(`{"binaryData":{"c3":"AAAA"}}`), metav1.PatchOptions{}))(t)
	b.within("both are stored again", is)
	b.within("the store reports it", func() (bool, string) {
		reported := s.Reports()
		return len(reported) == 2, fmt.Sprint(reported)
	})
}

// TestStoreWithoutRights: the broker leads without the peers of the one before, the status says so, and once it may
// write it does.
func TestStoreWithoutRights(t *testing.T) {
	api := kubetest.Start(t)
	b := &bench{t: t, api: api, admin: kubernetes.NewForConfigOrDie(api)}
	kubetest.Namespace(t, b.admin, "semaphore")
	limited := rest.CopyConfig(api)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
	s := NewPeers(kubernetes.NewForConfigOrDie(limited), "semaphore", []string{"c2"}, slog.New(slog.DiscardHandler))
	if is := b.loads(s); is != "" {
		t.Errorf("without rights, %q is read", is)
	}
	if p := strings.Join(s.Problems(), "\n"); !strings.Contains(
		p,
		`the peers of the previous broker are not known: ConfigMap semaphore-peers-0: configmaps "semaphore-peers-0" is `+
			`forbidden`,
	) {
		t.Errorf("problems are %q", p)
	}
	agents := newTold()
	agents.set("c2", peer("c2", "n1", 1, "10.2.1.0/24"))
	b.follow(s, agents)
	b.within("it is said that nothing is kept", func() (bool, string) {
		p := strings.Join(s.Problems(), "\n")
		return strings.Contains(p, "the peers are not stored for the next broker: ConfigMap semaphore-peers-0: ") &&
			strings.Contains(p, "forbidden"), p
	})
	kubetest.Allow(t, b.admin, "nobody", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"},
		Verbs: []string{"get", "create", "update"}})
	b.within("it is kept, and there is no problem left", func() (bool, string) {
		got := b.loads(NewPeers(b.admin, "semaphore", []string{"c2"}, slog.New(slog.DiscardHandler)))
		return got == "c2/n1 1 10.2.1.0/24" && len(s.Problems()) == 0, fmt.Sprint(got, s.Problems())
	})
}
