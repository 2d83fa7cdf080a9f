package publish

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// reader is one broker of several.
type reader struct {
	cluster string
	replica *replica.Replica
	wire    *bothEnds
	// allowed are the objects that it could see at some time.
	allowed map[string]bool
	// added: the cluster is one of those that have a broker, since the head of the journal was notBefore.
	added     bool
	notBefore uint64
}

// names are the objects that a message names.
func names(m *semaphorev1.PublishRequest) []string {
	var out []string
	for _, c := range m.GetChanges().GetChanges() {
		k := c.GetDelete()
		if c.GetUpsert() != nil {
			k = c.GetUpsert().GetKey()
		}
		out = append(out, replica.KeyOf(k).String())
	}
	return out
}

// TestR26RandomAudiences lets objects and those who may see them change at random, while clusters are added and
// removed, and brokers come and go at any point of their streams. None ever receives so much as the name of an object
// that it was never to see, and at last each holds just what it may.
func TestR26RandomAudiences(t *testing.T) {
	clusters := []string{"c2", "c1", "c3", "c4"} // the own one too
	exportTo := []string{"", "", "c2", "c3", "c2,c3", "c4", "none", "c9", "!"}
	offered, global := labels.SelectorFromSet(labels.Set{"offer": "yes"}),
		labels.SelectorFromSet(labels.Set{"offer": "all"})
	seeds := 300
	if testing.Short() {
		seeds = 60 // the race detector is slow; make test runs all without it
	}
	for seed := range uint64(seeds) {
		rnd := rand.New(rand.NewPCG(seed, 26))
		c := catalog.New(catalog.Rules{
			Features: config.Features{config.Encryption, config.Services, config.Policy}, Own: "c1", Clusters: clusters,
			Mirror: offered, Global: global, LabelDomains: []string{naming.DefaultLabelDomain}, Tombstones: 2 + rnd.IntN(20),
		})
		withheld := []remotes.ExportRule{{Namespaces: []string{"closed"}}}
		now := time.Unix(0, 0)
		offers := map[string][]remotes.ExportRule{"c2": withheld, "c4": withheld}
		c.SetRemotes(clusters, offers, now)
		readers := make([]*reader, len(clusters))
		for i, cluster := range clusters {
			readers[i] = &reader{cluster: cluster, replica: replica.New("c1", cluster, "test", takeAll),
				allowed: map[string]bool{}, added: true}
		}
		objects := map[string]func(){} // each puts one again
		sees := func(r *reader) map[string]*semaphorev1.Object {
			out := map[string]*semaphorev1.Object{}
			all, _ := c.Journal().Snapshot()
			for _, e := range all {
				if e.Value.To.Has(r.cluster) {
					out[replica.KeyOf(e.Value.Object.GetKey()).String()] = e.Value.Object
				}
			}
			return out
		}
		redial := func(r *reader) {
			r.wire = dial(t, NewSession("c1", r.cluster, "test", 0, source{}, c.Rules().KindsFor(r.cluster), c.Journal()),
				r.replica)
			r.wire.sender.notBefore = r.notBefore
		}
		// relink adds or removes one of the clusters, as the exporter does.
		relink := func(r *reader) {
			r.added, r.wire = !r.added, nil
			var linked []string
			for _, r := range readers {
				if r.added {
					linked = append(linked, r.cluster)
				}
			}
			c.SetRemotes(linked, offers, now)
			for _, key := range slices.Sorted(maps.Keys(objects)) {
				objects[key]()
			}
			r.notBefore = c.Journal().Head()
		}
		step := func(r *reader) bool {
			m, err := r.wire.sender.Next()
			if errors.Is(err, errFellBehind) {
				redial(r)
				return true
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if m == nil {
				return false
			}
			for _, name := range names(m) {
				if !r.allowed[name] {
					t.Fatalf("seed %d: %s receives %s, which it was never to see", seed, r.cluster, name)
				}
			}
			r.wire.say(m)
			return true
		}
		for range 250 {
			now = now.Add(time.Second)
			change(c, objects, rnd, exportTo, now)
			if rnd.IntN(20) == 0 {
				relink(readers[rnd.IntN(len(readers))])
			}
			for _, r := range readers {
				if !r.added {
					continue
				}
				for name := range sees(r) {
					r.allowed[name] = true
				}
				if r.wire == nil || rnd.IntN(40) == 0 {
					redial(r)
				}
				for range rnd.IntN(4) {
					if rnd.IntN(3) > 0 {
						step(r)
					}
					r.wire.brokerTakes()
					r.wire.exporterTakes()
				}
			}
		}
		for _, r := range readers {
			if !r.added {
				continue
			}
			for r.wire.arrive(); step(r); r.wire.arrive() {
			}
			got := map[string]*semaphorev1.Object{}
			for _, kind := range semaphorev1.Kinds {
				for key, o := range r.replica.All(kind) {
					got[key.String()] = o
				}
			}
			if d := cmp.Diff(sees(r), got, protocmp.Transform()); d != "" {
				t.Fatalf("seed %d: %s holds something else than it may see (-may see +holds):\n%s", seed, r.cluster, d)
			}
			for _, kind := range c.Rules().Kinds() {
				if n := c.Objects(r.cluster, kind); n != len(maps.Collect(r.replica.All(kind))) {
					t.Fatalf("seed %d: %d of %s are counted for %s", seed, n, kind, r.cluster)
				}
			}
		}
	}
}

// change is any event that a watch could bring. It keeps in objects how each object is put again.
func change(c *catalog.Catalog, objects map[string]func(), rnd *rand.Rand, exportTo []string, now time.Time) {
	meta := metav1.ObjectMeta{Namespace: []string{"shop", "closed"}[rnd.IntN(2)],
		Labels: map[string]string{"offer": []string{"yes", "all", "no"}[rnd.IntN(3)]}}
	if value := exportTo[rnd.IntN(len(exportTo))]; value != "" {
		meta.Annotations = map[string]string{naming.AnnotationExportTo: value}
	}
	var put, remove func()
	switch rnd.IntN(4) {
	case 0:
		meta.Name = fmt.Sprint("web-", rnd.IntN(4))
		meta.Labels[naming.DefaultLabelDomain+"/name"] = "front"
		pod := &corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{PodIP: fmt.Sprint("10.1.1.", rnd.IntN(9))}}
		put, remove = func() { c.PutPod(pod, now) }, func() { c.DeletePod(meta.Namespace, meta.Name, now) }
	case 1:
		meta.Name = fmt.Sprint("echo-", rnd.IntN(2))
		service := &corev1.Service{ObjectMeta: meta,
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: int32(rnd.IntN(3))}}}}
		put, remove = func() { c.PutService(service, now) }, func() { c.DeleteService(meta.Namespace, meta.Name, now) }
	case 2:
		meta.Name = fmt.Sprint("slice-", rnd.IntN(3))
		meta.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("echo-", rnd.IntN(2))
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprint("10.1.1.", rnd.IntN(9))}}}}
		put, remove = func() { c.PutSlice(slice, now) }, func() { c.DeleteSlice(meta.Namespace, meta.Name, now) }
	default:
		meta = metav1.ObjectMeta{Name: fmt.Sprint("n", rnd.IntN(3))}
		node := &corev1.Node{ObjectMeta: meta,
			Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.1.%d.0/24", rnd.IntN(3))}}
		put, remove = func() { c.PutNode(node, now) }, func() { c.DeleteNode(meta.Name, now) }
	}
	key := meta.Namespace + "/" + meta.Name
	if rnd.IntN(5) == 0 {
		delete(objects, key)
		remove()
		return
	}
	objects[key] = put
	put()
}

// TestR26AddedLater: a cluster that is added later receives no name of an object that it was never to see when another
// cluster loses that object, or its own stream resumes.
func TestR26AddedLater(t *testing.T) {
	c := catalog.New(catalog.Rules{
		Features: config.Features{config.Encryption, config.Policy}, Clusters: []string{"c2"},
		LabelDomains: []string{naming.DefaultLabelDomain},
	})
	web := func(exportTo, ip string) { putWeb(c, exportTo, ip) }
	web("c2", "10.1.1.1")
	c.SetRemotes([]string{"c2", "c3", "c4"}, nil, time.Now())
	web("c2", "10.1.1.1")
	added, r := c.Journal().Head(), replica.New("c1", "c3", "test", takeAll)
	connected := func() *bothEnds {
		s := NewSession("c1", "c3", "test", 0, source{}, kinds, c.Journal())
		s.notBefore = added
		w := dial(t, s, r)
		w.arrive()
		return w
	}
	w := connected()
	w.drain()
	receivesNothing := func(what string) {
		t.Helper()
		m, err := w.sender.Next()
		if must(t, err); m != nil {
			t.Errorf("%s: c3 receives %v", what, names(m))
		}
	}
	web("c4", "10.1.1.1")
	receivesNothing("c2 loses the pod")
	web("c4", "10.1.1.2")
	w = connected()
	receivesNothing("a stream resumes after the pod changed")
}

// putWeb exports a pod.
func putWeb(c *catalog.Catalog, exportTo, ip string) {
	c.PutPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", Labels: map[string]string{naming.DefaultLabelDomain + "/name": "front"},
			Annotations: map[string]string{naming.AnnotationExportTo: exportTo},
		},
		Status: corev1.PodStatus{PodIP: ip},
	}, time.Now())
}

// TestR26WithdrawnOnce: who may no longer see an object receives its withdrawal once, and nothing of what happens to it
// then.
func TestR26WithdrawnOnce(t *testing.T) {
	c := catalog.New(catalog.Rules{
		Features: config.Features{config.Encryption, config.Policy}, Clusters: []string{"c2", "c3"},
		LabelDomains: []string{naming.DefaultLabelDomain},
	})
	web := func(exportTo, ip string) { putWeb(c, exportTo, ip) }
	web("c2,c3", "10.1.1.1")
	r := newReplica()
	w := connect(t, c.Journal(), r)
	w.drain()
	if len(held(r)) != 1 {
		t.Fatalf("c2 holds %v", held(r))
	}
	web("c3", "10.1.1.1")
	w.drain()
	if len(held(r)) != 0 {
		t.Fatalf("c2 holds %v", held(r))
	}
	messages := w.sent["*semaphorev1.PublishRequest_Changes"]
	for i := range 5 {
		web("c3", fmt.Sprint("10.1.2.", i))
		w.drain()
	}
	c.DeletePod("shop", "web", time.Now())
	web("c3", "10.1.3.1")
	w.drain()
	if got := w.sent["*semaphorev1.PublishRequest_Changes"] - messages; got != 0 {
		t.Errorf("changes of what c2 may not see led to %d messages to it", got)
	}
	// A heartbeat says how far the stream is all the same, and the broker takes it for its position.
	beat := w.sender.Heartbeat()
	if got := beat.GetHeartbeat(); got.GetSentRevision() != c.Journal().Head() ||
		got.GetHeadRevision() != c.Journal().Head() {
		t.Errorf("the heartbeat is %v at %d", got, c.Journal().Head())
	}
	w.say(beat)
	w.arrive()
	if w.sender.acked != c.Journal().Head() {
		t.Errorf("the broker is at %d, not %d", w.sender.acked, c.Journal().Head())
	}
}

// TestF03Session: what a broker received before of the same source, and newer, is not contradicted.
func TestF03Session(t *testing.T) {
	const id = "uid"
	node, pods := semaphorev1.Kind_KIND_NODE, semaphorev1.Kind_KIND_SET_MEMBER
	for name, test := range map[string]struct {
		id     string
		held   []*semaphorev1.KindState
		resume bool
		read   map[semaphorev1.Kind]uint64
		behind string
	}{
		"nothing held": {id: id, read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"as far": {id: id,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: id, SourceRevision: 5}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"further": {id: id,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: id, SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}, behind: "map[KIND_NODE:6]"},
		"both kinds": {id: id,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: id, SourceRevision: 6},
				{Kind: pods, SourceId: id, SourceRevision: 9}}, read: map[semaphorev1.Kind]uint64{node: 5, pods: 8},
			behind: "map[KIND_NODE:6 KIND_SET_MEMBER:9]"},
		"of another source": {id: id,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: "other", SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"of no source": {id: "", held: []*semaphorev1.KindState{{Kind: node, SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"a source without revisions": {id: id,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: id, SourceRevision: 6}}, read: map[semaphorev1.Kind]uint64{}},
		"a kind that is not sent": {id: id,
			held: []*semaphorev1.KindState{{Kind: semaphorev1.Kind_KIND_SERVICE, SourceId: id, SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"a stream that resumes": {id: id, resume: true,
			held: []*semaphorev1.KindState{{Kind: node, SourceId: id, SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5, pods: 5}},
		"no kind at all, and one of none": {id: id,
			held: []*semaphorev1.KindState{nil, {Kind: 99, SourceId: id, SourceRevision: 6}},
			read: map[semaphorev1.Kind]uint64{node: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(10)
			k, o := member("pod", "10.1.1.1")
			put(j, k, o, time.Now())
			upTo := func(kind semaphorev1.Kind) uint64 { return test.read[kind] }
			s := NewSession("c1", "c2", "test", 0, source{test.id, upTo, upTo}, kinds, j)
			w := hi(test.held...)
			if test.resume {
				w.GetWelcome().ResumeEpoch, w.GetWelcome().ResumeRevision = j.Epoch(), 1
			}
			_, err := s.Receive(w)
			var lag *LagError
			if test.behind == "" {
				must(t, err)
			} else if !errors.As(err, &lag) || !errors.Is(err, streams.ErrAgain) || fmt.Sprint(lag.Behind) != test.behind ||
				!strings.Contains(err.Error(), "the apiserver lags") {
				t.Errorf("%v, not behind by %s", err, test.behind)
			}
			if m, err := s.Next(); test.behind != "" && (m != nil || err != nil) {
				t.Errorf("it continues with %v, %v", m, err)
			}
			beat := s.Heartbeat().GetHeartbeat()
			if test.behind != "" && (beat.GetSentRevision() != 0 || len(beat.GetSources()) != 0) {
				t.Errorf("the heartbeat is %v", beat)
			}
		})
	}
}

// TestSourceRevisions: each end of a snapshot, and each heartbeat, says how far the source has been read.
func TestSourceRevisions(t *testing.T) {
	j, r := newJournal(10), newReplica()
	k, o := member("pod", "10.1.1.1")
	put(j, k, o, time.Now())
	read := uint64(40)
	for _, unchanged := range []bool{false, true} {
		of := j
		if unchanged { // another life of the exporter
			of = newJournal(10)
			put(of, k, o, time.Now())
		}
		upTo := func(kind semaphorev1.Kind) uint64 { return read + uint64(kind) }
		w := connectFrom(t, source{"uid", upTo, upTo}, of, r)
		s := w.sender
		if beat := s.Heartbeat().GetHeartbeat(); len(beat.GetSources()) != 0 || beat.GetSentRevision() != 0 {
			t.Errorf("before the snapshots, the heartbeat is %v", beat)
		}
		for {
			m, err := s.Next()
			must(t, err)
			if m == nil {
				break
			}
			var got uint64
			var kind semaphorev1.Kind
			switch m := m.GetMessage().(type) {
			case *semaphorev1.PublishRequest_SnapshotEnd:
				got, kind = m.SnapshotEnd.GetSourceRevision(), m.SnapshotEnd.GetKind()
			case *semaphorev1.PublishRequest_SnapshotUnchanged:
				got, kind = m.SnapshotUnchanged.GetSourceRevision(), m.SnapshotUnchanged.GetKind()
			}
			if kind != 0 && got != 40+uint64(kind) {
				t.Errorf("%T has revision %d", m.GetMessage(), got)
			}
			w.say(m)
			w.arrive()
		}
		if unchanged != (w.unchanged() == len(kinds)) {
			t.Errorf("sent were %v", w.sent)
		}
		beat := s.Heartbeat().GetHeartbeat()
		if len(beat.GetSources()) != len(kinds) || beat.GetSources()[1].GetSourceRevision() != 44 {
			t.Errorf("the heartbeat is %v", beat)
		}
	}
}

// TestDigestsOfNonsense: a digest that is none, or of other objects, is answered with a snapshot.
func TestDigestsOfNonsense(t *testing.T) {
	_, o := member("pod", "10.1.1.1")
	right := streams.DigestOf(o)
	for name, test := range map[string]struct {
		state     *semaphorev1.KindState
		unchanged bool
	}{
		"equal":         {&semaphorev1.KindState{Kind: o.GetKey().GetKind(), Objects: 1, Digest: right.Bytes()}, true},
		"another count": {&semaphorev1.KindState{Kind: o.GetKey().GetKind(), Objects: 2, Digest: right.Bytes()}, false},
		"another digest": {&semaphorev1.KindState{Kind: o.GetKey().GetKind(), Objects: 1, Digest: make([]byte, 32)},
			false},
		"one that is short": {&semaphorev1.KindState{Kind: o.GetKey().GetKind(), Objects: 1, Digest: right.Bytes()[:31]},
			false},
		"none": {&semaphorev1.KindState{Kind: o.GetKey().GetKind(), Objects: 1}, false},
		"of another kind": {&semaphorev1.KindState{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 1, Digest: right.Bytes()},
			false},
	} {
		j := newJournal(10)
		k, o := member("pod", "10.1.1.1")
		put(j, k, o, time.Now())
		s := NewSession("c1", "c2", "test", 0, source{}, kinds, j)
		_, err := s.Receive(hi(test.state))
		must(t, err)
		if types, _ := sent(t, s); slices.Contains(types, "snapshot_unchanged") != test.unchanged {
			t.Errorf("%s: sent are %q", name, types)
		}
	}
}
