package deploy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// program finds a program of the testbed: in the directory SEMAPHORE_TESTBED_BIN, else on
// PATH. Without it the test is skipped, and fails in CI.
func program(t *testing.T, names ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs " + names[0])
	}
	for _, name := range names {
		if dir := os.Getenv("SEMAPHORE_TESTBED_BIN"); dir != "" {
			if path := filepath.Join(dir, name); exec.Command(path, "--help").Run() == nil {
				return path
			}
		}
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	message := fmt.Sprintf("%s is neither in SEMAPHORE_TESTBED_BIN nor on PATH", strings.Join(names, " or "))
	if os.Getenv("CI") == "true" {
		t.Fatal(message)
	}
	t.Skip(message)
	return ""
}

// server is a kube-apiserver with RBAC and an etcd of its own, on loopback.
type server struct {
	admin      *rest.Config
	kubeconfig string
}

func startServer(t *testing.T) *server {
	t.Helper()
	etcd, apiserver := program(t, "etcd", "server"), program(t, "kube-apiserver")
	dir := t.TempDir()
	clientPort, peerPort, apiPort := freePort(t), freePort(t), freePort(t)
	start(t, dir, etcd, "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://"+clientPort, "--advertise-client-urls=http://"+clientPort,
		"--listen-peer-urls=http://"+peerPort, "--initial-advertise-peer-urls=http://"+peerPort, "--initial-cluster=default=http://"+peerPort)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := write(t, filepath.Join(dir, "service-accounts.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	token := rand.Text()
	tokens := write(t, filepath.Join(dir, "tokens.csv"), []byte(token+",admin,admin,system:masters\n"))
	_, port, _ := net.SplitHostPort(apiPort)
	start(t, dir, apiserver, "--etcd-servers=http://"+clientPort, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--cert-dir="+filepath.Join(dir, "certs"), "--token-auth-file="+tokens, "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file="+keyFile, "--service-account-key-file="+keyFile,
		"--service-cluster-ip-range=10.255.0.0/16")

	s := &server{admin: &rest.Config{
		Host: "https://" + apiPort, BearerToken: token, QPS: -1,
		// The server signed its own certificate just now.
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: s.admin.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	s.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(s.admin)
	eventually(t, "the apiserver's /readyz", func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
	})
	return s
}

// kubectl runs kubectl as the administrator.
func (s *server) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return run(t, program(t, "kubectl"), append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
}

// client acts as the user, or as the administrator if that is empty.
func (s *server) client(user string) kubernetes.Interface {
	cfg := rest.CopyConfig(s.admin)
	if user != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups(user)}
	}
	return kubernetes.NewForConfigOrDie(cfg)
}

// groups are those the apiserver puts a ServiceAccount's token into.
func groups(user string) []string {
	parts := strings.Split(user, ":")
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + parts[2], "system:authenticated"}
}

func run(t *testing.T, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return out.String(), nil
}

func start(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("end of the log of %s:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits until f succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
