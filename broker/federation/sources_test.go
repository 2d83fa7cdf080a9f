package federation

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestAnotherSource: whether an exporter is refused, by what stands, what the connected one reads and what it reads.
func TestAnotherSource(t *testing.T) {
	for _, c := range []struct {
		name                       string
		stands, connected, offered string
		refused                    bool
	}{
		{"the first one", "", "", "a", false},
		{"the first one does not know what it reads", "", "", "", false},
		{"it comes back", "a", "", "a", false},
		{"a newer one of the same cluster", "a", "a", "a", false},
		{"another cluster beside it", "a", "a", "b", true},
		{"another cluster while it is away", "a", "", "b", true},
		{"another cluster beside one that does not know", "a", "", "b", true},
		{"one that does not know, beside one that does", "a", "a", "", true},
		{"one that does not know, while it is away", "a", "", "", false},
		{"one that does not know, beside another such", "", "", "", false},
		{"etcd was restored in place", uidOf("a"), uidOf("a"), uidOf("a/1"), false},
		{"another cluster, whose etcd was restored", uidOf("a/1"), "", uidOf("b/1"), true},
	} {
		if got := anotherSource(c.stands, c.connected, c.offered); got != c.refused {
			t.Errorf("%s: refused %v; want %v", c.name, got, c.refused)
		}
	}
	for text, plain := range map[string]bool{
		"0c5f0000-0000-4000-8000-000000000001": true, "uid": true, "": false, "a b": false, "a'; reboot; '": false,
		"-a": false, "\x1b[31m": false, "a\nb": false,
	} {
		if got := plainUID.MatchString(text); got != plain {
			t.Errorf("%q can be shown in a command: %v", text, got)
		}
	}
}

// TestLetInIsNoSecondCluster: an exporter is reported as refused while it would be refused, and no longer: not once the
// operator has let its cluster in, and not once the exporter that it would have displaced has gone.
func TestLetInIsNoSecondCluster(t *testing.T) {
	s := begun(Options{}, onlyC2, nil, Engines{})
	l, now := s.all()["c2"], time.Now()
	connect := func(source string, accepted bool) *stream {
		t.Helper()
		m := players.Hello("c2", "e", 0, semaphorev1.Kind_KIND_NODE)
		m.GetHello().SourceId = source
		l.mu.Lock()
		defer l.mu.Unlock()
		st := newStream(t.Context())
		st.session, st.address = l.replica.Open(), "192.0.2.9:1"
		err := s.checkSource(l, st, m.GetHello(), now)
		if (err == nil) != accepted {
			t.Fatalf("%q: %v", source, err)
		}
		if accepted {
			if _, err = st.session.Receive(now, m); err != nil {
				t.Fatal(err)
			}
			s.streamOpened(l, st, now)
		}
		return st
	}
	reported := func(when, want string) {
		t.Helper()
		var lines []string
		for _, f := range s.Findings() {
			if f.Code == finding.SourceRefused {
				lines = append(lines, f.First...)
			}
		}
		if id := s.Status()[0].GetRefusedSourceId(); id != want || (want == "") != (strings.Join(lines, "") == "") {
			t.Errorf("%s: %q is reported as refused, want %q; the finding has %q", when, id, want, lines)
		}
	}
	connect("old", true)
	connect("new", false)
	reported("another cluster tries", "new")
	s.SetSources(map[string]string{"c2": "new"}) // spec.sourceID, as the error says
	reported("the operator has let it in", "")
	st := connect("new", true)
	reported("it is connected", "")
	connect("old", false)
	reported("the earlier cluster tries", "old")
	connect("", false)
	reported("one that does not know what it reads", "unknown")
	s.streamClosed(l, st, nil)
	reported("nothing that it would displace is connected", "")
	connect("", true)
	reported("it is connected", "")
}
