package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The values of exporter/publish and internal/streams.
const (
	heartbeatEvery = 5 * time.Second
	welcomeWithin  = 10 * time.Second
	maxRedial      = 15 * time.Second
)

// exporter is a process of semaphore-exporter: the real catalog and sessions, fed by simulated informers.
type exporter struct {
	w       *world
	id      int
	source  *source
	term    uint64
	catalog *catalog.Catalog
	watches [kinds]*watch
	links   []*upLink
	paused  bool
}

// watch is the informer of one kind.
type watch struct {
	kind   int
	listed bool
	// at is the position in the source's log, and version the resourceVersion there.
	at      int
	version uint64
	known   map[ref]metav1.Object
}

// upLink is the exporter's state for one broker.
type upLink struct {
	x       *exporter
	d       *dest
	session *publish.Session
	conn    *conn
	dialed  time.Time
	beat    time.Time
	redial  time.Time
	wait    time.Duration
	acked   uint64
	welcome bool
	// sent are the kinds of the stream; needed is how far a kind must be read before the broker may receive it.
	sent   []semaphorev1.Kind
	needed map[semaphorev1.Kind]uint64
}

func (w *world) newExporter(s *source) *exporter {
	w.ids++
	x := &exporter{w: w, id: w.ids, source: s, term: uint64(w.ids), catalog: catalog.New(w.catalogRules())}
	for kind := range x.watches {
		x.watches[kind] = &watch{kind: kind, known: map[ref]metav1.Object{}}
	}
	for _, d := range w.dests {
		x.links = append(x.links, &upLink{x: x, d: d, needed: map[semaphorev1.Kind]uint64{}})
	}
	w.exporters = append(w.exporters, x)
	x.tracef("starts")
	return x
}

func (x *exporter) tracef(format string, args ...any) {
	x.w.tracef("exporter %d of %s: "+format, append([]any{x.id, x.source.name}, args...)...)
}

// madeOf are the watches from which a kind is made.
var madeOf = map[semaphorev1.Kind][]int{
	semaphorev1.Kind_KIND_NODE:           {kindNode},
	semaphorev1.Kind_KIND_SERVICE:        {kindService},
	semaphorev1.Kind_KIND_ENDPOINT_SLICE: {kindService, kindSlice},
	semaphorev1.Kind_KIND_SET_MEMBER:     {kindPod},
}

// read returns how far the source was read for a kind; ok means that all its watches have listed.
func (x *exporter) read(of semaphorev1.Kind) (version uint64, ok bool) {
	for i, kind := range madeOf[of] {
		v := x.watches[kind]
		if !v.listed {
			return 0, false
		}
		if i == 0 || v.version < version {
			version = v.version
		}
	}
	return version, true
}

// ID, Ready, Read and Newest implement publish.Source.
func (x *exporter) ID() string { return "the source " + x.source.name }

func (x *exporter) Ready(of semaphorev1.Kind) bool { _, ok := x.read(of); return ok }

func (x *exporter) Read(of semaphorev1.Kind) uint64 { version, _ := x.read(of); return version }

func (x *exporter) Newest(of semaphorev1.Kind) uint64 {
	var newest uint64
	for _, kind := range madeOf[of] {
		newest = max(newest, x.watches[kind].version)
	}
	return newest
}

// kinds returns those that the broker may receive now.
func (l *upLink) kinds() []semaphorev1.Kind {
	var kinds []semaphorev1.Kind
	for _, kind := range l.x.catalog.Rules().Kinds() {
		if version, ok := l.x.read(kind); ok && version >= l.needed[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// watch gives the informer of one kind the next event, or makes it list again.
func (x *exporter) watch(kind int, relist bool) bool {
	v := x.watches[kind]
	log := x.source.log[kind]
	if x.paused {
		return false
	}
	if v.listed && v.at == len(log) {
		if v.version == x.source.version {
			return false
		}
		v.version = x.source.version // a bookmark
		x.tracef("has read %ss up to version %d", kindNames[kind], v.version)
		return true
	}
	if !v.listed || relist {
		x.list(v)
		return true
	}
	e := log[v.at]
	v.at++
	v.version = e.version
	x.see(v, e.ref, e.object)
	return true
}

// list gives an informer the current state: it never sees what was created and deleted meanwhile, and reports in any
// order. The first list may be an old one, of an apiserver that lags.
func (x *exporter) list(v *watch) {
	log := x.source.log[v.kind]
	at, version, now := len(log), x.source.version, x.source.objects[v.kind]
	if !v.listed && len(log) > 0 && x.w.chance(x.w.lag) {
		at = max(0, at-x.w.rng.IntN(8))
		if at == 0 && log[0].version == 1 {
			at = 1 // there is no version before the first
		}
		now, version = map[ref]metav1.Object{}, log[0].version-1
		for _, e := range log[:at] {
			version = e.version
			if e.object != nil {
				now[e.ref] = e.object
			} else {
				delete(now, e.ref)
			}
		}
	}
	refs := map[ref]bool{}
	for r := range v.known {
		refs[r] = true
	}
	for r := range now {
		refs[r] = true
	}
	order := slices.SortedFunc(maps.Keys(refs), func(a, b ref) int { return from{"", a}.compareByCluster(from{"", b}) })
	x.w.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	x.tracef("lists %ss at version %d of %d", kindNames[v.kind], version, x.source.version)
	for _, r := range order {
		if v.known[r] != now[r] {
			x.see(v, r, now[r])
		}
	}
	v.at, v.version, v.listed = at, version, true
}

func (x *exporter) see(v *watch, r ref, o metav1.Object) {
	x.tracef("sees %s %s version %s", kindNames[v.kind], r, versionOf(o))
	now := x.w.now
	if o == nil {
		delete(v.known, r)
		switch v.kind {
		case kindNode:
			x.catalog.DeleteNode(r.name, now)
		case kindService:
			x.catalog.DeleteService(r.namespace, r.name, now)
		case kindSlice:
			x.catalog.DeleteSlice(r.namespace, r.name, now)
		case kindPod:
			x.catalog.DeletePod(r.namespace, r.name, now)
		}
		return
	}
	v.known[r] = o
	switch o := o.(type) {
	case *corev1.Node:
		x.catalog.PutNode(o, now)
	case *corev1.Service:
		x.catalog.PutService(o, now)
	case *discoveryv1.EndpointSlice:
		x.catalog.PutSlice(o, now)
	case *corev1.Pod:
		x.catalog.PutPod(o, now)
	}
}

func versionOf(o metav1.Object) string {
	if o == nil {
		return "gone"
	}
	return o.GetResourceVersion()
}

// dial opens a stream to a broker that is ready.
func (l *upLink) dial() bool {
	x := l.x
	kinds := l.kinds()
	if x.paused || l.conn != nil || len(kinds) == 0 || x.w.now.Before(l.redial) {
		return false
	}
	if l.d.leader == nil || l.d.unreachable {
		l.fail("nobody answers")
		return true
	}
	if !l.d.trusts[x.source.name][x.source.key] {
		l.fail("the certificate is not trusted")
		return true
	}
	l.session = publish.NewSession(x.source.name, l.d.name, "sim", x.term, x, kinds, x.catalog.Journal())
	l.session.Exports(x.catalog.Rules().Kinds())
	if x.w.chunk > 0 {
		l.session.MaxChanges = x.w.chunk
	}
	l.sent = kinds
	l.conn = x.w.connect(l, l.d.leader)
	l.dialed, l.beat, l.welcome, l.acked = x.w.now, x.w.now.Add(heartbeatEvery), false, 0
	x.tracef("dials %s: stream %d", l.d.name, l.conn.id)
	l.send(l.session.Hello())
	if x.w.earlyBeats {
		l.send(l.session.Heartbeat()) // the protocol allows heartbeats before Welcome
	}
	return true
}

// fail ends the stream, if there is one, and plans the next.
func (l *upLink) fail(why string) {
	if l.conn != nil {
		l.conn.clientGone = true
		l.conn, l.session = nil, nil
	}
	l.wait = min(max(2*l.wait, 500*time.Millisecond), maxRedial)
	l.redial = l.x.w.now.Add(l.wait)
	l.x.tracef("stream to %s has ended: %s", l.d.name, why)
}

func (l *upLink) send(m *semaphorev1.PublishRequest) {
	l.x.tracef("stream %d: sends %s", l.conn.id, brief{m})
	l.conn.send(&l.conn.up, m)
}

// pump sends one message, if there is one and the stream has room for it.
func (l *upLink) pump() bool {
	if l.x.paused || l.conn == nil || len(l.conn.up) >= l.x.w.window {
		return false
	}
	if n := len(l.kinds()); n > len(l.sent) {
		l.fail("more kinds can be sent")
		l.redial = l.x.w.now
		return true
	}
	m, err := l.session.Next()
	if err != nil {
		l.fail(err.Error())
		return true
	}
	if m == nil {
		if l.x.w.now.Before(l.beat) || !l.welcome {
			return false
		}
		m = l.session.Heartbeat()
	}
	if m.GetHeartbeat() == nil {
		l.x.w.active++
	}
	l.beat = l.x.w.now.Add(heartbeatEvery)
	l.send(m)
	return true
}

// receive handles one message of the broker.
func (l *upLink) receive(m *semaphorev1.PublishResponse) {
	l.x.tracef("stream %d: hears %s", l.conn.id, briefAnswer{m})
	_, err := l.session.Receive(m)
	if lag := (*publish.LagError)(nil); errors.As(err, &lag) {
		maps.Copy(l.needed, lag.Behind)
		l.fail(err.Error())
		l.redial = l.x.w.now
		return
	}
	if err != nil {
		l.x.w.fail("protocol", "the exporter refuses what a broker says: %v", err)
		return
	}
	if m.GetWelcome() != nil {
		l.welcome = true
	}
	if ack := m.GetAck(); ack != nil {
		if ack.GetRevision() < l.acked {
			l.x.w.fail("I3", "%s acknowledges %d after %d", l.d.name, ack.GetRevision(), l.acked)
		}
		l.acked = ack.GetRevision()
		l.wait = 0
	}
}

// tick ends the stream to a broker that does not answer.
func (l *upLink) tick() {
	if l.conn != nil && !l.x.paused && !l.welcome && l.x.w.now.Sub(l.dialed) > welcomeWithin {
		l.fail("no welcome")
	}
}

// crash ends the process; if its node crashes too, brokers do not notice.
func (x *exporter) crash(node bool) {
	x.tracef("is gone")
	for _, l := range x.links {
		if l.conn != nil {
			l.conn.clientGone = true
			if node {
				l.conn.stalled, l.conn.since = true, x.w.now
			} else {
				l.conn.broken, l.conn.stalled = true, false
			}
		}
	}
	x.w.exporters = slices.DeleteFunc(x.w.exporters, func(o *exporter) bool { return o == x })
}
