package ctl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// session records what a person at a terminal sees of several calls: the command, its output and its exit code. Texts
// that differ between two runs are replaced.
type session struct {
	t       *testing.T
	text    strings.Builder
	replace *strings.Replacer
}

// differs matches times, durations, fingerprints and keys.
var differs = []struct {
	find *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`/tmp/\S+\.sock`), "SOCKET"},
	{regexp.MustCompile(`\b\d+h\d+m\d+s\b`), "DURATION"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( \d\d:\d\d UTC|T\d\d:\d\d:\d\dZ)?`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}`), "TIME"},
	{regexp.MustCompile(`[+-]\d+(\.\d+)?[mµ]?s\b`), "+LAG"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`(?s)(-----BEGIN [A-Z ]+-----).*?(-----END)`), "$1…$2"},
	{regexp.MustCompile(`(tls\.(?:crt|key)|ca\.crt|[a-z0-9]+\.pem): [A-Za-z0-9+/=]{40,}`), "$1: BASE64"},
}

// note records output.
func (s *session) note(text string) {
	text = s.replace.Replace(text)
	for _, d := range differs {
		text = d.find.ReplaceAllString(text, d.by)
	}
	s.text.WriteString(text + "\n")
}

// call runs a verb. The hidden arguments are not recorded.
func (s *session) call(verb string, hidden ...string) {
	s.t.Helper()
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append(strings.Fields(verb), hidden...))
	code, err := 0, cmd.ExecuteContext(s.t.Context())
	if err != nil {
		fmt.Fprintln(&out, "semaphorectl:", err)
		code = 1
		var exit program.ExitError
		if errors.As(err, &exit) {
			code = exit.Code
		}
	}
	fmt.Fprintf(&s.text, "$ semaphorectl %s\n", s.replace.Replace(verb))
	if out.Len() > 0 {
		s.note(strings.TrimSuffix(out.String(), "\n"))
	}
	if code != 0 {
		fmt.Fprintf(&s.text, "(exit code %d)\n", code)
	}
	s.text.WriteString("\n")
}

// golden compares the calls with the file, and checks the width of lines that are for a person; lines of a document for
// a program may be longer.
func (s *session) golden(name string, document *regexp.Regexp) {
	s.t.Helper()
	golden(s.t, name, s.text.String())
	for line := range strings.Lines(s.text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "semaphorectl: ") {
			continue // an error is one line, for logs
		}
		if n := utf8.RuneCountInString(line); n > cli.LineWidth && (document == nil || !document.MatchString(line)) {
			s.t.Errorf("%s: a line of %d columns: %s", name, n, line)
		}
	}
}

func newSession(t *testing.T, replace ...string) *session {
	return &session{t: t, replace: strings.NewReplacer(replace...)}
}

// TestVerbsOfOperators: the output of an operator's orders to a broker.
func TestVerbsOfOperators(t *testing.T) {
	t.Run("brake", func(t *testing.T) {
		broker := serveControl(t, "broker", operator{})
		s := newSession(t)
		s.call("brake release c2", "--socket", broker)
		s.call("brake release c2 --kind service", "--socket", broker)
		s.call("brake release c2 --kind pods", "--socket", broker)
		s.call("brake release c9", "--socket", broker)
		s.call("brake release", "--socket", broker)
		s.golden("brake", nil)
	})
	t.Run("drain", func(t *testing.T) {
		broker := serveControl(t, "broker", drainer{})
		s := newSession(t)
		s.call("drain cluster c2", "--socket", broker)
		s.call("drain cluster c3 --for 2h", "--socket", broker)
		s.call("drain service c2:shop/echo --dry-run", "--socket", broker)
		s.call("drain node c2/n1", "--socket", broker)
		s.call("drain node c2/n2", "--socket", broker)
		s.call("drain node n1", "--socket", broker)
		s.call("drain cluster", "--socket", broker)
		s.call("drain list", "--socket", broker)
		s.golden("drain", nil)

		s = newSession(t)
		s.call("undrain cluster c2", "--socket", broker)
		s.call("undrain service c2:shop/echo", "--socket", broker)
		s.call("undrain cluster c9", "--socket", broker)
		s.golden("undrain", nil)
	})
	t.Run("drain list", func(t *testing.T) {
		now := time.Now()
		broker := serve(t, debug.NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Now: timestamppb.New(now), Ready: true, Drains: []*semaphorev1.DrainStatus{
				{Target: &semaphorev1.DrainTarget{Cluster: "c2"}, Since: timestamppb.New(now.Add(-time.Hour)),
					By: "ops: new kernels", Endpoints: 12, Services: 3},
				{Target: &semaphorev1.DrainTarget{Cluster: "c3", Node: "n1"}, Since: timestamppb.New(now.Add(-2 * time.Hour)),
					Until: timestamppb.New(now.Add(90*time.Minute + 30*time.Second)), Prefixes: []string{"10.3.1.0/24"}},
			}}
		})
		s := newSession(t)
		s.call("drain list", "--socket", broker)
		s.golden("drain-list", nil)
	})
	t.Run("rotate-key", func(t *testing.T) {
		broker, agent := serveControl(t, "broker", rotator{}), serveControl(t, "agent", rotator{node: "n1"})
		s := newSession(t)
		s.call("rotate-key --node n1", "--socket", broker)
		s.call("rotate-key --all", "--socket", broker)
		s.call("rotate-key --all --remote c9", "--socket", broker)
		s.call("rotate-key", "--socket", agent)
		s.call("rotate-key --force", "--socket", agent)
		s.golden("rotate-key", nil)
	})
}

// TestVerbPolicy: the output for sets in the desired state, and for one that differs.
func TestVerbPolicy(t *testing.T) {
	odd := webSet()
	odd.Name, odd.Namespace, odd.Connected = "db", "pay", false
	odd.Objects = []*semaphorev1.SetObject{{Name: "c2-pay-db", Wanted: 2, Present: 1}}
	odd.Missing, odd.Leftover = []string{"10.2.0.6"}, []string{"10.2.0.7", "10.2.0.8", "10.2.0.9", "10.2.0.10"}
	web := webSet()
	odd.LastHeard, web.LastHeard = nil, nil
	var sets []*semaphorev1.PolicySet
	broker := brokerWith(t, func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error) { return sets, nil })
	s := newSession(t)
	s.call("policy", "--socket", broker)
	sets = []*semaphorev1.PolicySet{web}
	s.call("policy c2/shop --pods", "--socket", broker)
	sets = []*semaphorev1.PolicySet{odd, web}
	s.call("policy", "--socket", broker)
	s.call("policy c2//web", "--socket", broker)
	s.golden("policy", nil)
}

// TestVerbHistory: the output for what the parts remember of an object.
func TestVerbHistory(t *testing.T) {
	exporter, broker := debug.NewRecorder("exporter", "c2", ""), debug.NewRecorder("broker", "c1", "")
	sockets := []string{"--socket", serve(t, exporter, well), "--socket", serve(t, broker, well)}
	seen := time.Now().Add(-time.Second)
	for _, r := range []struct {
		of *debug.Recorder
		debug.Event
	}{
		{exporter, debug.Event{Object: "service shop/echo", Action: "export", Detail: "to c1"}},
		{broker, debug.Event{Object: "service shop/echo", Action: "receive"}},
		{broker, debug.Event{Object: "service c2-shop-73736d-echo", Action: "create", Detail: "written to the apiserver"}},
		{broker, debug.Event{Object: "service shop/other", Action: "receive"}},
	} {
		r.Source, r.ObservedAt = "c2", seen
		r.of.Record(r.Event)
	}
	s := newSession(t)
	s.call("history service/shop/echo", sockets...)
	s.call("history service/shop/gone", sockets...)
	s.call("history pod/shop/echo-0", sockets...)
	s.golden("history", regexp.MustCompile(`^TIME  `)) // an event is one line
}

// TestVerbMigrate: the output for files of the original tools, complete and incomplete.
func TestVerbMigrate(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"broker.yaml": "localSubnets: [10.1.0.0/16]\nremotes:\n- name: c2\n  podSubnets: [10.2.0.0/16]\n" +
			"  nodeSubnets: [192.0.2.0/24]\n",
		"exporter.yaml": "cluster: c1\nbrokers:\n- {cluster: c1, address: \"own:8443\"}\n- {cluster: c2, " +
			"address: \"b2:8443\"}\n",
		"clusters.json": `{"local": {"name": "c1", "kubeConfigPath": "/k"},
			"remotes": [{"name": "c2", "kubeConfigPath": "/k2",
			"podSubnet": "10.2.0.0/16"}]}`,
		"other.yaml": "hello: world\n",
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	must(t, os.Mkdir("bundles", 0o755))
	must(t, os.WriteFile("bundles/c2.pem", []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"),
		0o600))
	s := newSession(t)
	s.call("migrate exporter.yaml broker.yaml --bundles bundles")
	s.call("migrate exporter.yaml broker.yaml")
	s.call("migrate clusters.json")
	s.call("migrate other.yaml")
	s.call("migrate")
	s.golden("migrate", nil)
}

// TestVerbCoreDNS: lines of the blocks may be as long as in CoreDNS's format.
func TestVerbCoreDNS(t *testing.T) {
	s := newSession(t)
	s.call("coredns --remote c2")
	s.call("coredns --remote c2=9x")
	s.golden("coredns", regexp.MustCompile(`^        (name|answer) `))
}

// TestVerbPKI: the output for an authority in a directory, from its creation to its replacement.
func TestVerbPKI(t *testing.T) {
	t.Chdir(t.TempDir())
	s := newSession(t)
	s.call("pki init --cluster c1 --dir c1")
	s.call("pki init --cluster c1 --dir c1")
	s.call("pki init --cluster c1")
	s.call("pki show --dir c1")
	s.call("pki bundle --dir c1")
	s.call("pki rotate --dir c1 --part broker")
	s.golden("pki", nil)

	s = newSession(t)
	s.call("pki rotate-ca --dir c1")
	s.call("pki rotate-ca --dir c1 --step 2")
	s.call("pki rotate-ca --dir c1 --step 1")
	s.call("pki show --dir c1")
	s.call("pki rotate-ca --dir c1 --step 2")
	s.call("pki rotate-ca --dir c1 --step 3")
	s.golden("pki-rotate-ca", nil)

	_, _, err := run(t, "pki", "init", "--cluster", "c2", "--dir", "c2")
	must(t, err)
	bundle, _, err := run(t, "pki", "bundle", "--dir", "c2")
	must(t, err)
	must(t, os.WriteFile("c2.pem", []byte(bundle), 0o600))
	s = newSession(t)
	s.call("pki secrets --dir c1 --peer-bundle c2=c2.pem")
	s.call("pki secrets --dir c1 --peer-bundle c3=c2.pem")
	s.golden("pki-secrets", nil)
}

// TestVerbBundle: the output if a cluster cannot be reached.
func TestVerbBundle(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: c1
contexts: [{name: c1, context: {cluster: c1, user: c1}}]
clusters: [{name: c1, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: c1, user: {}}]
`), 0o600))
	t.Chdir(t.TempDir())
	s := newSession(t)
	s.call("bundle --context c9", "--kubeconfig", kubeconfig)
	s.golden("bundle-unreachable", nil)
}
