package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/internal/testkit/loopback"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

// must ends the test on an error.
var must = testkit.Must

// run calls semaphorectl, and returns its output and exit code.
func run(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	if err != nil {
		code = 1
		var exit program.ExitError
		if errors.As(err, &exit) {
			code = exit.Code
		}
	}
	return out.String(), code, err
}

// serve starts a part on a socket.
func serve(t *testing.T, rec *debug.Recorder, status func() *semaphorev1.GetStatusResponse) (socket string) {
	t.Helper()
	return serveAnswers(t, rec, status, debug.Answers{})
}

// serveAnswers starts a part on a socket, with what it answers besides its status.
func serveAnswers(t *testing.T, rec *debug.Recorder, status func() *semaphorev1.GetStatusResponse,
	answers debug.Answers) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "part.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- debug.ServeSocket(ctx, socket, debug.NewServer(rec, status, answers)) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	listens(t, socket)
	return socket
}

// listens waits until a server accepts connections on a socket, because the file exists slightly earlier.
func listens(t *testing.T, socket string) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, "a server listens", func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func well() *semaphorev1.GetStatusResponse {
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }
	return &semaphorev1.GetStatusResponse{
		Ready: true,
		Links: []*semaphorev1.LinkStatus{{
			Cluster: "c2", Address: "192.0.2.7:8443", Connected: true, Since: ago(90 * time.Minute),
			LastHeard: ago(2 * time.Second),
			Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_NODE, Objects: 2, Complete: true},
				{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 1, Complete: true}},
		}},
		Nodes: []*semaphorev1.NodeStatus{{Node: "n1", Attached: true, Since: ago(time.Hour), Devices: 1}},
		Devices: []*semaphorev1.DeviceStatus{{
			Cluster: "c2", Interface: "wireguard.c2", Backend: semaphorev1.Backend_BACKEND_KERNEL, ListenPort: 51820, Mtu: 1420,
			PeersWanted: 2, PeersPresent: 2,
			PeersWithHandshake: 1, LastHandshake: ago(time.Minute), Routes: []string{"10.2.0.0/16"},
		}},
	}
}

func TestStatus(t *testing.T) {
	socket := serve(t, debug.NewRecorder("broker", "c1", ""), well)
	out, code, err := run(t, "status", "--socket", socket)
	if code != 0 || err != nil {
		t.Errorf("exit code %d: %v", code, err)
	}
	lines := strings.Split(out, "\n")
	if lines[0] != "broker of c1: all is well" {
		t.Errorf("the verdict is %q", lines[0])
	}
	for _, want := range []string{
		"CLUSTER  STATE      FOR     HEARD", "c2       connected  1h30m0s  2s ago  0       node 2, service 1  192.0.2.7:8443",
		"wireguard.c2  c2       kernel   51820  1420  2/2", "n1    attached  1h0m0s  0       1",
	} {
		// The columns depend on the times in them, and the words do not.
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the status has no %q:\n%s", want, out)
		}
	}
	for _, line := range lines {
		if strings.TrimRight(line, " ") != line {
			t.Errorf("trailing spaces in %q", line)
		}
	}
}

func TestStatusThatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*semaphorev1.GetStatusResponse)
		want  string // in the verdict
		also  string // elsewhere
	}{
		"not ready": {func(s *semaphorev1.GetStatusResponse) { s.Ready = false }, "not ready", ""},
		"not connected": {func(s *semaphorev1.GetStatusResponse) {
			l := s.Links[0]
			l.Connected, l.LastError = false, "connection refused"
			l.Since = timestamppb.New(time.Now().Add(-4 * time.Minute))
		}, "c2 not connected for 4m0s", "the last error: connection refused"},
		"refused": {func(s *semaphorev1.GetStatusResponse) { s.Links[0].Kinds[1].Refused = 3 },
			"3 service objects of c2 refused", "service 1 (3 refused)"},
		"no agent": {func(s *semaphorev1.GetStatusResponse) { s.Nodes[0].Attached = false }, "no agent on node n1",
			"missing"},
		"a device": {func(s *semaphorev1.GetStatusResponse) { s.Devices[0].Problem = "address in use" },
			"device wireguard.c2: address in use", ""},
		"peers": {func(s *semaphorev1.GetStatusResponse) { s.Devices[0].PeersPresent = 1 },
			"device wireguard.c2 has 1 peers, 2 are wanted", "1/2"},
		"a problem": {func(s *semaphorev1.GetStatusResponse) { s.Problems = []string{"node n9: no key"} }, "node n9: no key",
			"uncoded"},
		"on a node": {func(s *semaphorev1.GetStatusResponse) { s.Nodes[0].Problems = []string{"no route"} },
			"node n1: no route", "uncoded"},
		"escape": {func(s *semaphorev1.GetStatusResponse) {
			s.Problems = []string{"\x1b[2J\x1b]0;x\a hidden\r\nall is well"}
		}, "[2J ]0;x  hidden  all is well", "hidden  all is well"},
		"turned": {func(s *semaphorev1.GetStatusResponse) { s.Problems = []string{"a\u202eb"} }, "a b", "  a b"},
		"incomplete": {func(s *semaphorev1.GetStatusResponse) { s.Ready, s.Links[0].Kinds[0].Complete = false, false },
			"not ready", "node 2 (incomplete)"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, debug.NewRecorder("agent", "c1", "n1"), func() *semaphorev1.GetStatusResponse {
				s := well()
				test.spoil(s)
				return s
			})
			out, code, err := run(t, "status", "--socket", socket)
			if code != 2 {
				t.Errorf("exit code %d: %v", code, err)
			}
			if first, _, _ := strings.Cut(out, "\n"); first != "agent of c1 on node n1: "+test.want {
				t.Errorf("the verdict is %q", first)
			}
			if !strings.Contains(out, test.also) {
				t.Errorf("the status has no %q:\n%s", test.also, out)
			}
			if strings.ContainsAny(out, "\x1b\a\r\u202e") {
				t.Errorf("the terminal is commanded: %q", out)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestStatusForPrograms(t *testing.T) {
	socket := serve(t, debug.NewRecorder("broker", "c1", ""), well)
	for _, format := range []string{"json", "yaml"} {
		out, _, err := run(t, "status", "--socket", socket, "-o", format)
		must(t, err)
		data, err := yaml.YAMLToJSON([]byte(out)) // JSON is YAML
		must(t, err)
		var s semaphorev1.GetStatusResponse
		must(t, protojson.Unmarshal(data, &s))
		if s.GetPart() != "broker" || len(s.GetLinks()) != 1 || !s.GetReady() {
			t.Errorf("%s is %v", format, &s)
		}
	}
}

func TestSeveralParts(t *testing.T) {
	exporter := serve(t, debug.NewRecorder("exporter", "c1", ""), well)
	agent := serve(t, debug.NewRecorder("agent", "c1", "n1"), func() *semaphorev1.GetStatusResponse {
		s := well()
		s.Ready = false
		return s
	})
	out, code, _ := run(t, "status", "--socket", exporter, "--socket", agent)
	if code != 2 || !strings.Contains(out, "exporter of c1: all is well") ||
		!strings.Contains(out, "\n\nagent of c1 on node n1: not ready") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	// One part is dead: its socket exists, and nobody listens. The other one is shown nevertheless.
	dead := filepath.Join(t.TempDir(), "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	out, code, err = run(t, "status", "--socket", dead, "--socket", exporter)
	if code != 1 || !strings.HasPrefix(out, "exporter of c1: all is well") ||
		!strings.Contains(err.Error(), dead+" cannot be asked") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

func TestWrongUse(t *testing.T) {
	for _, test := range []struct {
		args string
		want string
	}{
		{"status --socket /nowhere.sock", "no such file"},
		{"status --socket a --address b", "none of the others can be"},
		{"status --address 127.0.0.1:1 --part agent", "an agent is asked through its socket"},
		{"status --address 127.0.0.1:1 --cluster C1", "no cluster name"},
		{"status --address 127.0.0.1:1 --cluster c1 --tls-dir /nowhere", "--tls-dir /nowhere"},
		{"status -o xml", "use table, wide, json or yaml"},
		{"debug watch -o xml", "use text or json"},
		{"pki init --dir x", `"cluster" not set`},
		{"coredns --kubeconfig /nowhere", "how to reach the apiserver"},
		{"coredns --config a --context b", "give one of them"},
		{"coredns --config a --remote c2", "give one of them"},
		{"coredns --config /nowhere --mirror-namespace a", "that of the file"},
		{"coredns --config /nowhere", "open /nowhere"},
		{"coredns --remote global=g", "stands for all clusters"},
		{"coredns --remote C2", "no cluster name"},
		{"coredns --remote c2=9x", "prefix of its mirrors"},
		{"coredns --remote c2 --mirror-namespace a.b", "--mirror-namespace"},
		{"coredns --remote c2 --cluster-domain a_b", "--cluster-domain"},
		{"coredns --remote c2 --remote c2=x", "given twice"},
		{"status extra", "unknown command"},
	} {
		_, code, err := run(t, strings.Fields(test.args)...)
		if code != 1 || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: exit code %d, %v", test.args, code, err)
		}
	}
}

func TestVersion(t *testing.T) {
	if out, _, err := run(t, "version"); err != nil || out != program.Version+"\n" {
		t.Errorf("%q %v", out, err)
	}
}

// TestAddress connects over mTLS, with only the files of `pki init`.
func TestAddress(t *testing.T) {
	dir := t.TempDir()
	for _, cluster := range []string{"c1", "c2"} {
		_, _, err := run(t, "pki", "init", "--cluster", cluster, "--dir", filepath.Join(dir, cluster))
		must(t, err)
	}
	must(t, os.Mkdir(filepath.Join(dir, "bundles"), 0o755))
	for _, cluster := range []string{"c1", "c2"} {
		bundle, _, err := run(t, "pki", "bundle", "--dir", filepath.Join(dir, cluster))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "bundles", cluster+".pem"), []byte(bundle), 0o644))
	}
	source, err := identity.NewSource(config.TLS{
		CertFile: filepath.Join(dir, "c1", "broker", "tls.crt"), KeyFile: filepath.Join(dir, "c1", "broker", "tls.key"),
		BundleDir: filepath.Join(dir, "bundles"),
	})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(source.ServerTLS(func(id spiffeid.ID) error {
		if id != identity.Semaphorectl("c1") {
			return fmt.Errorf("%s may not look", id)
		}
		return nil
	}))))
	semaphorev1.RegisterDebugServiceServer(server, debug.NewServer(debug.NewRecorder("broker", "c1", ""), well,
		debug.Answers{}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	address := listener.Addr().String()
	out, code, err := run(t, "status", "--address", address, "--cluster", "c1", "--tls-dir",
		filepath.Join(dir, "c1", "semaphorectl"))
	if code != 0 || !strings.HasPrefix(out, "broker of c1: all is well") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for name, args := range map[string][]string{
		"another part": {"--cluster", "c1", "--part", "exporter", "--tls-dir",
			filepath.Join(dir, "c1", "semaphorectl")},
		"another cluster":          {"--cluster", "c2", "--tls-dir", filepath.Join(dir, "c2", "semaphorectl")},
		"another cluster's person": {"--cluster", "c1", "--tls-dir", crossed(t, dir)},
	} {
		out, code, err := run(t, append([]string{"status", "--timeout", "2s", "--address", address}, args...)...)
		if code != 1 || out != "" || !strings.Contains(err.Error(), "cannot be asked") {
			t.Errorf("%s: exit code %d, %v\n%s", name, code, err, out)
		}
	}
}

// crossed returns the files of c2's operator, who trusts c1.
func crossed(t *testing.T, dir string) string {
	t.Helper()
	out := t.TempDir()
	must(t, os.CopyFS(out, os.DirFS(filepath.Join(dir, "c2", "semaphorectl"))))
	root, err := os.ReadFile(filepath.Join(dir, "c1", "ca.crt"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(out, "c1.pem"), root, 0o644))
	return out
}

// lines is a writer that passes on complete lines.
type lines struct {
	mu      sync.Mutex
	partial string
	all     chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial += string(p)
	for {
		line, rest, ok := strings.Cut(l.partial, "\n")
		if !ok {
			return len(p), nil
		}
		l.partial = rest
		l.all <- line
	}
}

// TestWatch follows one change through the three parts.
func TestWatch(t *testing.T) {
	recorders := []*debug.Recorder{
		debug.NewRecorder("exporter", "c2", ""), debug.NewRecorder("broker", "c1", ""),
		debug.NewRecorder("agent", "c1", "node-1"),
	}
	args := []string{"debug", "watch", "--recent"}
	for _, r := range recorders {
		args = append(args, "--socket", serve(t, r, well))
	}
	seen := time.Now()
	recorders[0].Record(debug.Event{Source: "c2", Object: "node n1", Action: "export", Detail: "to c1", ObservedAt: seen})

	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cmd := Command()
			out := &lines{all: make(chan string, 100)}
			cmd.SetOut(out)
			cmd.SetErr(io.Discard)
			cmd.SetArgs(append(args, "-o", format))
			done := make(chan error, 1)
			go func() { done <- cmd.ExecuteContext(ctx) }()
			next := func() string {
				t.Helper()
				select {
				case line := <-out.all:
					return line
				case err := <-done:
					t.Fatalf("ended with %v", err)
				case <-time.After(time.Minute):
					t.Fatal("nothing came")
				}
				return ""
			}
			recorded := next()
			recorders[1].Record(debug.Event{Source: "c2", Object: "node n1", Action: "receive", ObservedAt: seen})
			received := next()
			recorders[2].Record(debug.Event{Source: "c2", Object: "peer c2/n1", Action: "create", Detail: "\x1b[31mred"})
			created := next()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Ctrl-C is no error, and it ended with %v", err)
			}
			if format == "json" {
				for _, line := range []string{recorded, received, created} {
					var m map[string]any
					must(t, json.Unmarshal([]byte(line), &m))
				}
				return
			}
			s := newSession(t)
			padding := regexp.MustCompile(` {3,}`) // as wide as the longest measured lag
			for _, line := range []string{recorded, received, created} {
				s.note(padding.ReplaceAllString(line, "   "))
			}
			s.golden("watch", regexp.MustCompile(`^TIME  `))
			for line, want := range map[string]string{
				recorded: "exporter/c2  c2  export  node n1", received: "broker/c1    c2  receive  node n1",
				created: "agent/c1/node-1  c2  create   peer c2/n1",
			} {
				if !strings.Contains(line, want) {
					t.Errorf("%q has no %q", line, want)
				}
			}
			if !strings.Contains(recorded, "  +") || !strings.HasSuffix(recorded, "to c1") {
				t.Errorf("no lag or no detail in %q", recorded)
			}
			if strings.Contains(recorded, "clock") || !strings.Contains(received, " (c2's clock)") ||
				strings.Contains(created, "clock") {
				t.Errorf("whose clock is not printed where there are two, and only there: %q %q %q", recorded, received, created)
			}
			if strings.Contains(created, "\x1b") || !strings.HasSuffix(created, " [31mred") {
				t.Errorf("the terminal is commanded: %q", created)
			}
		})
		// Events of this format count as recent for the next one, so start again.
		if format == "text" {
			args = args[:2]
			for i, name := range []string{"exporter", "broker", "agent"} {
				recorders[i] = debug.NewRecorder(name, "c1", "")
				args = append(args, "--socket", serve(t, recorders[i], well))
			}
			args = append(args, "--recent")
			recorders[0].Record(debug.Event{Source: "c2", Object: "node n1", Action: "export", ObservedAt: seen})
		}
	}
}

// TestWatchEndsWithItsParts: a part that stops is named, the others continue, and the end of the last one is an
// error.
func TestWatchEndsWithItsParts(t *testing.T) {
	args, errs := []string{"debug", "watch"}, &lines{all: make(chan string, 100)}
	var recorders []*debug.Recorder
	var stop []func()
	for _, name := range []string{"exporter", "broker"} {
		ctx, cancel := context.WithCancel(t.Context())
		socket, stopped := filepath.Join(t.TempDir(), name+".sock"), make(chan error, 1)
		recorder := debug.NewRecorder(name, "c1", "")
		go func() { stopped <- debug.ServeSocket(ctx, socket, debug.NewServer(recorder, well, debug.Answers{})) }()
		listens(t, socket)
		args, recorders = append(args, "--socket", socket), append(recorders, recorder)
		stop = append(stop, func() {
			cancel()
			must(t, <-stopped)
		})
	}
	out := &lines{all: make(chan string, 100)}
	cmd := Command()
	cmd.SetOut(out)
	cmd.SetErr(errs)
	cmd.SetArgs(append(args, "--recent"))
	ended := make(chan error, 1)
	next := func(from *lines) string {
		t.Helper()
		select {
		case line := <-from.all:
			return line
		case err := <-ended:
			t.Fatalf("ended with %v", err)
		case <-time.After(time.Minute):
			t.Fatal("nothing came")
		}
		return ""
	}
	for _, r := range recorders {
		r.Record(debug.Event{Source: "c2", Object: "node n1", Action: "receive"})
	}
	go func() { ended <- cmd.ExecuteContext(t.Context()) }()
	next(out)
	next(out) // both are watched
	stop[0]()
	if line := next(errs); !strings.HasPrefix(line, "not watched: ") || !strings.Contains(line, "exporter.sock") {
		t.Errorf("the exporter stopped, and it says %q", line)
	}
	recorders[1].Record(debug.Event{Source: "c2", Object: "node n2", Action: "receive"})
	if line := next(out); !strings.Contains(line, "broker/c1") || !strings.Contains(line, "node n2") {
		t.Errorf("of the other part comes %q", line)
	}
	stop[1]()
	var exit program.ExitError
	if err := <-ended; err == nil || errors.As(err, &exit) && exit.Code != 1 {
		t.Errorf("the parts ended, and the watch with %v", err)
	}
}
