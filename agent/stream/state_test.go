package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// state returns a state with a number of peers in c2, and with a device without peers in c3.
func state(peers int) map[string]*plan.Desired {
	n := &plan.Desired{
		Device: &semaphorev1.Device{Cluster: "c2", ListenPort: 51820, Mtu: 1380, PodSubnets: []string{"10.2.0.0/16"},
			PersistentKeepalive: durationpb.New(25 * time.Second)},
		Peers: map[string]*semaphorev1.Peer{},
	}
	for i := range peers {
		node := fmt.Sprintf("ip-10-20-%d-%d.eu-west-1.compute.internal", i/256, i%256)
		n.Peers[node] = &semaphorev1.Peer{
			Key: &semaphorev1.PeerKey{Cluster: "c2", Node: node},
			Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: bytes.Repeat([]byte{byte(i), byte(i >> 8)}, 16),
				Address: fmt.Sprintf("10.20.%d.%d:51820", i/256, i%256)},
			AllowedIps: []string{fmt.Sprintf("10.2.%d.%d/32", i/256, i%256)},
		}
	}
	return map[string]*plan.Desired{
		"c2": n,
		"c3": {Device: &semaphorev1.Device{Cluster: "c3", ListenPort: 51821}, Peers: map[string]*semaphorev1.Peer{}},
	}
}

func equal(a, b map[string]*plan.Desired) bool {
	return maps.EqualFunc(a, b, func(a, b *plan.Desired) bool { return a.Equal(b) })
}

// must ends the test on an error.
var must = testkit.Must

func encoded(t testing.TB, cluster string, peers int) []byte {
	t.Helper()
	data, err := encode(cluster, StateFile{Networks: state(peers)})
	must(t, err)
	return data
}

func TestWriteAndRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "agent.state")
	if _, err := LoadState(file, "c1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, replace(file, encoded(t, "c1", 3), at))
	c, err := LoadState(file, "c1")
	must(t, err)
	if !equal(c.Networks, state(3)) || !c.Confirmed.Equal(at) {
		t.Errorf("%v of %s; want that of %s", c.Networks, c.Confirmed, at)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if !bytes.Equal(encoded(t, "c1", 300), encoded(t, "c1", 300)) {
		t.Error("one state is written in two ways")
	}
	removed, err := RemoveState(file)
	if err != nil || len(removed) != 1 {
		t.Errorf("removed %v, %v", removed, err)
	}
	if removed, err = RemoveState(file); err != nil || len(removed) != 0 {
		t.Errorf("removed again %v, %v", removed, err)
	}
}

// TestUnusableStateIsIgnored: a file that is incomplete, damaged or of another cluster is ignored, with a reason.
func TestUnusableStateIsIgnored(t *testing.T) {
	whole := encoded(t, "c1", 3)
	orphan, err := encode("c1",
		StateFile{Networks: map[string]*plan.Desired{"c2": {Device: &semaphorev1.Device{Cluster: "c9"},
			Peers: state(1)["c2"].Peers}}})
	must(t, err)
	for name, c := range map[string]struct {
		data []byte
		word string
	}{
		"empty":             {nil, "first line is not"},
		"text":              {[]byte("hello\n"), "first line is not"},
		"zeroes":            {make([]byte, len(whole)), "first line is not"},
		"cut in the head":   {whole[:40], "damaged"},
		"cut":               {whole[:len(whole)-1], "checksum"},
		"only a head":       {whole[:bytes.IndexByte(whole, '\n')+1], "checksum"},
		"longer":            {append(bytes.Clone(whole), 0), "checksum"},
		"newer":             {bytes.Replace(whole, []byte("state 1 "), []byte("state 2 "), 1), "version 2"},
		"older":             {bytes.Replace(whole, []byte("state 1 "), []byte("state 0 "), 1), "version 0"},
		"another cluster's": {encoded(t, "c7", 3), `to cluster "c7"`},
		"renamed":           {bytes.Replace(encoded(t, "c7", 3), []byte(" c7 "), []byte(" c1 "), 1), "checksum"},
		"without a device":  {orphan, "has no device"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "agent.state")
			must(t, os.WriteFile(file, c.data, 0o600))
			got, err := LoadState(file, "c1")
			// A mistake in a network costs no guard.
			if (got != nil) != (c.word == "has no device") || err == nil || !strings.Contains(err.Error(), c.word) ||
				!strings.Contains(err.Error(), file) {
				t.Errorf("%v, %v; want %q", got, err, c.word)
			}
		})
	}
	// Each byte, one at a time.
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x20
		if _, err := open(damaged, "c1"); err == nil {
			t.Fatalf("byte %d was changed, and the file is taken", i)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.state")
	must(t, os.WriteFile(file, whole, 0o600))
	must(t, os.Symlink(file, filepath.Join(dir, "link")))
	if _, err := LoadState(filepath.Join(dir, "link"), "c1"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a link: %v", err)
	}
	if _, err := LoadState(dir, "c1"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a directory: %v", err)
	}
	must(t, os.Chmod(file, 0o620))
	if _, err := LoadState(file, "c1"); err == nil || !strings.Contains(err.Error(), "other users can write") {
		t.Errorf("a file that others can write: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(encoded(f, "c1", 2))
	f.Add([]byte("semaphore-agent state 1 c1 \n"))
	f.Add([]byte("semaphore-agent state 99999999999999999999 c1 x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body, err := open(data, "c1")
		if err != nil {
			return
		}
		if c, err := decode(body); err == nil {
			again, err := encode("c1", *c)
			must(t, err)
			body, err = open(again, "c1")
			must(t, err)
			if back, err := decode(body); err != nil || !equal(back.Networks, c.Networks) || back.Subnets != c.Subnets {
				t.Errorf("%v: %v", err, back)
			}
		}
	})
}

// source is a state that a test can change.
type source struct {
	mu    sync.Mutex
	now   StateFile
	whole bool
	asked int
}

func (s *source) snapshot() (StateFile, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.now, s.whole
}

func (s *source) set(networks map[string]*plan.Desired, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.whole = StateFile{Networks: networks, Confirmed: at}, true
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, what, testkit.True(ok))
}

// value returns a writer's metric.
func value(t *testing.T, w *StateWriter, name string, labels ...string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(w.Collectors()...)
	n, _ := testkit.Metric(t, reg, "semaphore_agent_state_file_"+name, labels...)
	return n
}

func TestWriter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.state")
	s := &source{}
	w := NewStateWriter(file, "c1", s.snapshot)
	stop := testkit.Run(t, w.Run)
	defer stop()
	w.Changed()
	eventually(t, "it asks", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.asked > 0 })
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("it writes what was never heard whole: %v", err)
	}
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	s.set(state(2), at)
	// However often the state changes, the writer writes only a few times.
	for begin := time.Now(); time.Since(begin) < 300*time.Millisecond; time.Sleep(time.Millisecond) {
		w.Changed()
	}
	stop() // the writer writes pending state when it ends
	c, err := LoadState(file, "c1")
	must(t, err)
	if !equal(c.Networks, state(2)) || !c.Confirmed.Equal(at) {
		t.Errorf("%v of %s", c.Networks, c.Confirmed)
	}
	if n := value(t, w, "writes_total", "ok"); n < 1 || n > 2 {
		t.Errorf("%v writes", n)
	}

	// The next writer finds the same content, and only records that it was confirmed.
	before, err := os.Stat(file)
	must(t, err)
	at = at.Add(30 * time.Second)
	s.set(state(2), at)
	w = NewStateWriter(file, "c1", s.snapshot)
	testkit.Run(t, w.Run)()
	after, err := os.Stat(file)
	must(t, err)
	if !os.SameFile(before, after) || !after.ModTime().Equal(at) || value(t, w, "writes_total", "ok") != 0 {
		t.Errorf("what was there already is written again: %v, of %s", !os.SameFile(before, after), after.ModTime())
	}
	if got := value(t, w, "bytes"); got != float64(after.Size()) {
		t.Errorf("%v bytes; want %d", got, after.Size())
	}
	// If the file is damaged meanwhile, the writer writes it again.
	must(t, os.WriteFile(file, []byte("damaged"), 0o600))
	testkit.Run(t, NewStateWriter(file, "c1", s.snapshot).Run)()
	if _, err := LoadState(file, "c1"); err != nil {
		t.Error(err)
	}
}

// TestWriterFails: a failed write is reported, leaves the old file unchanged, and is tried again.
func TestWriterFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.state")
	must(t, replace(file, encoded(t, "c1", 1), time.Now()))
	// A directory with the new file's name is an obstacle for root, too.
	must(t, os.MkdirAll(filepath.Join(file+".new", "x"), 0o700))
	s := &source{}
	s.set(state(2), time.Now())
	w := NewStateWriter(file, "c1", s.snapshot)
	defer testkit.Run(t, w.Run)()
	w.Changed()
	eventually(t, "it is reported", func() bool { return strings.Contains(w.Problem(), "cannot be written") })
	if c, err := LoadState(file, "c1"); err != nil || !equal(c.Networks, state(1)) {
		t.Errorf("the old file: %v", err)
	}
	if value(t, w, "writes_total", "error") == 0 {
		t.Error("it is not counted")
	}
	must(t, os.RemoveAll(file+".new"))
	eventually(t, "it is written", func() bool { return w.Problem() == "" })
	if c, err := LoadState(file, "c1"); err != nil || !equal(c.Networks, state(2)) {
		t.Errorf("the new file: %v", err)
	}
}
