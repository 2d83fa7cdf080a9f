package kube

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRedirectsAreNotFollowed: the client does not follow an apiserver's redirect, which may lead to a service that
// only this pod can reach.
func TestRedirectsAreNotFollowed(t *testing.T) {
	asked := false
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(inside.Close)
	apiserver := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inside.URL+"/latest/meta-data", http.StatusFound)
	}))
	t.Cleanup(apiserver.Close)
	dir := t.TempDir()
	token, roots := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	testkit.Must(t, os.WriteFile(token, []byte("secret"), 0o600))
	testkit.Must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: apiserver.Certificate().Raw}), 0o600))
	cfg, err := remoteConfig(config.Kube{RemoteAPIURL: apiserver.URL, RemoteSATokenPath: token, RemoteCAPath: roots})
	testkit.Must(t, err)
	_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err == nil || !strings.Contains(err.Error(), "which is not followed") || asked {
		t.Errorf("asked what is inside: %t, %v", asked, err)
	}
}

// TestRemoteAPI: a client reaches an apiserver by its URL, with a ServiceAccount's token from a file and fetched roots.
// Unproven roots are refused, and a new token is used without a restart.
func TestRemoteAPI(t *testing.T) {
	server := kubetest.Start(t)
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(server)
	kubetest.Create(t, admin.CoreV1().ServiceAccounts("default"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "remote"}})
	token, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "remote", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	testkit.Must(t, err)
	roots := server.CAData
	if len(roots) == 0 {
		roots = testkit.Value(os.ReadFile(server.CAFile))(t)
	}
	block, _ := pem.Decode(roots)
	root := testkit.Value(x509.ParseCertificate(block.Bytes))(t)
	sum := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	hash := "sha256:" + hex.EncodeToString(sum[:])

	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/ca.crt", http.StatusFound)
			return
		}
		_, _ = w.Write(roots)
	})
	plain, secure := httptest.NewServer(page), httptest.NewTLSServer(page)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	file := filepath.Join(t.TempDir(), "token")
	testkit.Must(t, os.WriteFile(file, []byte("not yet"), 0o600))
	c := config.Kube{RemoteAPIURL: server.Host, RemoteSATokenPath: file, RemoteCAURL: plain.URL, RemoteCAHash: hash}

	for what, test := range map[string]struct {
		change func(*config.Kube)
		want   string
	}{
		"another hash": {func(c *config.Kube) { c.RemoteCAHash = "sha256:" + strings.Repeat("00", 32) },
			"none has the public key"},
		"a server that nothing proves": {func(c *config.Kube) { c.RemoteCAURL, c.RemoteCAHash = secure.URL, "" }, "x509"},
		"a redirect":                   {func(c *config.Kube) { c.RemoteCAURL += "/moved" }, "302"},
	} {
		wrong := c
		test.change(&wrong)
		if _, err := Config(wrong, "exporter"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", what, err, test.want)
		}
	}

	// Roots from a file: those of another cluster do not prove the apiserver.
	caFile := filepath.Join(t.TempDir(), "ca.crt")
	other := secure.Certificate().Raw
	testkit.Must(t, os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other}), 0o600))
	byFile := config.Kube{RemoteAPIURL: server.Host, RemoteSATokenPath: caFile + ".token", RemoteCAPath: caFile}
	testkit.Must(t, os.WriteFile(byFile.RemoteSATokenPath, []byte(token.Status.Token), 0o600))
	version := func() error {
		cfg, err := Config(byFile, "exporter")
		if err != nil {
			return err
		}
		_, err = kubernetes.NewForConfigOrDie(cfg).Discovery().ServerVersion()
		return err
	}
	if err := version(); err == nil || !strings.Contains(err.Error(), "x509: certificate signed by unknown authority") {
		t.Errorf("with the root of another cluster: %v", err)
	}
	byFile.RemoteCAPath += ".right" // a client caches the content of a file for a while
	testkit.Must(t, os.WriteFile(byFile.RemoteCAPath, roots, 0o600))
	testkit.Must(t, version())

	client := kubernetes.NewForConfigOrDie(testkit.Value(Config(c, "exporter"))(t))
	review := func() (string, error) {
		is, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return is.Status.UserInfo.Username, nil
	}
	if _, err := review(); !apierrors.IsUnauthorized(err) {
		t.Fatalf("with no token: %v", err)
	}
	testkit.Must(t, os.WriteFile(file, []byte(token.Status.Token), 0o600))
	// client-go caches a token for a moment after reading it, and drops it after a refusal.
	testkit.Eventually(t, 3*time.Minute, "the token is read again", func() error {
		name, err := review()
		if err == nil && name != "system:serviceaccount:default:remote" {
			err = errors.New(name)
		}
		return err
	})
}
