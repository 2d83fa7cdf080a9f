package status

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

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
		"a device": {func(s *semaphorev1.GetStatusResponse) {
			s.Problems = []string{"device wireguard.c2: address in use"}
		}, "device wireguard.c2: address in use", ""},
		"peers": {func(s *semaphorev1.GetStatusResponse) { s.Devices[0].PeersPresent = 1 },
			"device wireguard.c2 has 1 peers, 2 are desired", "1/2"},
		"a problem": {func(s *semaphorev1.GetStatusResponse) { s.Problems = []string{"node n9: no key"} },
			"node n9: no key", "lease"},
		"escape": {func(s *semaphorev1.GetStatusResponse) {
			s.Problems = []string{"\x1b[2J\x1b]0;x\a hidden\r\nall is well"}
		}, "[2J ]0;x  hidden  all is well", "hidden  all is well"},
		"turned": {func(s *semaphorev1.GetStatusResponse) { s.Problems = []string{"a\u202eb"} }, "a b", "  a b"},
		"incomplete": {func(s *semaphorev1.GetStatusResponse) { s.Ready, s.Links[0].Kinds[0].Complete = false, false },
			"not ready", "node 2 (incomplete)"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), func() *semaphorev1.GetStatusResponse {
				s := ctltest.Well()
				test.spoil(s)
				s.Now = timestamppb.Now()
				return judged(s, finding.Lines(finding.LeaseFailed, "", s.Problems)...)
			})
			out, code, err := ctltest.Run(t, "status", "--socket", socket)
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
	socket := ctltest.Serve(t, debug.NewRecorder("broker", "c1", ""), ctltest.Well)
	for _, format := range []string{"json", "yaml"} {
		out, _, err := ctltest.Run(t, "status", "--socket", socket, "-o", format)
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
	exporter := ctltest.Serve(t, debug.NewRecorder("exporter", "c1", ""), ctltest.Well)
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), func() *semaphorev1.GetStatusResponse {
		s := ctltest.Well()
		s.Ready = false
		return judged(s)
	})
	out, code, _ := ctltest.Run(t, "status", "--socket", exporter, "--socket", agent)
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
	out, code, err = ctltest.Run(t, "status", "--socket", dead, "--socket", exporter)
	if code != 1 || !strings.HasPrefix(out, "exporter of c1: all is well") ||
		!strings.Contains(err.Error(), dead+" cannot be asked") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// TestAddress connects over mTLS, with only the files of `pki init`.
func TestAddress(t *testing.T) {
	dir := ctltest.Linked(t)
	address := ctltest.ListenAs(t, dir, identity.Semaphorectl("c2"), func(server *grpc.Server) {
		semaphorev1.RegisterDebugServiceServer(server, debug.NewServer(debug.NewRecorder("broker", "c2", ""), ctltest.Well,
			debug.Answers{}))
	})
	out, code, err := ctltest.Run(t, "status", "--address", address, "--cluster", "c2", "--tls-dir",
		filepath.Join(dir, "c2", "semaphorectl"))
	if code != 0 || !strings.HasPrefix(out, "broker of c2: all is well") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for name, args := range map[string][]string{
		"another part": {"--cluster", "c2", "--part", "exporter", "--tls-dir",
			filepath.Join(dir, "c2", "semaphorectl")},
		"another cluster":          {"--cluster", "c1", "--tls-dir", filepath.Join(dir, "c1", "semaphorectl")},
		"another cluster's person": {"--cluster", "c2", "--tls-dir", crossed(t, dir)},
	} {
		out, code, err := ctltest.Run(t, append([]string{"status", "--timeout", "2s", "--address", address}, args...)...)
		if code != 1 || out != "" || !strings.Contains(err.Error(), "cannot be asked") {
			t.Errorf("%s: exit code %d, %v\n%s", name, code, err, out)
		}
	}
}

// crossed returns the files of c1's operator, who trusts c2.
func crossed(t *testing.T, dir string) string {
	t.Helper()
	out := t.TempDir()
	must(t, os.CopyFS(out, os.DirFS(filepath.Join(dir, "c1", "semaphorectl"))))
	root, err := os.ReadFile(filepath.Join(dir, "c2", "ca.crt"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(out, "c2.pem"), root, 0o644))
	return out
}
