package ctltest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

// Linked returns what two operators have after the commands of docs/certificates.md: directories c1 and c2 with keys,
// c1.pem and c2.pem, and bundles/ with both, as in a pod.
func Linked(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "bundles"), 0o755))
	for _, cluster := range []string{"c1", "c2"} {
		_, _, err := Run(t, "pki", "init", "--cluster", cluster, "--dir", filepath.Join(dir, cluster))
		must(t, err)
		Rebundle(t, dir, cluster)
	}
	return dir
}

func Rebundle(t *testing.T, dir, cluster string) {
	t.Helper()
	bundle, _, err := Run(t, "pki", "bundle", "--dir", filepath.Join(dir, cluster))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, cluster+".pem"), []byte(bundle), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "bundles", cluster+".pem"), []byte(bundle), 0o644))
}

// ListenAs starts c2's broker, which accepts one caller, with what register adds to it.
func ListenAs(t *testing.T, dir string, caller spiffeid.ID, register ...func(*grpc.Server)) (address string) {
	t.Helper()
	source, err := identity.NewSource(config.TLS{
		CertFile: filepath.Join(dir, "c2", "broker", "tls.crt"), KeyFile: filepath.Join(dir, "c2", "broker", "tls.key"),
		BundleDir: filepath.Join(dir, "bundles"),
	})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(source.ServerTLS(func(id spiffeid.ID) error {
		if id != caller {
			return fmt.Errorf("%s is nobody we know", id)
		}
		return nil
	}))))
	for _, add := range register {
		add(server)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
	})
	return listener.Addr().String()
}

func Found(t *testing.T, args ...string) (findings map[string]show.Finding, code int) {
	t.Helper()
	out, code, err := Run(t, append([]string{"check", "-o", "json", "--timeout", "30s"}, args...)...)
	var report struct {
		Findings         []show.Finding
		Errors, Warnings int
	}
	if e := json.Unmarshal([]byte(out), &report); e != nil {
		t.Fatalf("%v: %v, %v\n%s", args, e, err, out)
	}
	findings = map[string]show.Finding{}
	worst := 0
	for _, f := range report.Findings {
		findings[string(f.Code)] = f
		worst = max(worst, map[finding.Level]int{finding.OK: 0, finding.NotChecked: 1, finding.Warning: 2,
			finding.Error: 3}[f.Level])
	}
	if code != map[int]int{0: 0, 1: 3, 2: 2, 3: 2}[worst] || (err != nil) != (worst > 0) ||
		(report.Errors > 0) != (worst == 3) {
		t.Errorf("%v: exit code %d, %v; the worst finding is %d", args, code, err, worst)
	}
	return findings, code
}
