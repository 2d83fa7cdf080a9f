package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// asProgram is the environment's variable in which a test has this binary be semaphorectl, with these arguments.
const asProgram = "SEMAPHORECTL_TEST_ARGS"

// beProgram runs semaphorectl as its main does, and does not return, if the environment says so.
func beProgram() {
	if args, ok := os.LookupEnv(asProgram); ok {
		cmd := CommandAs("semaphorectl", nil)
		cmd.SetArgs(strings.Fields(args))
		program.Main(cmd)
		os.Exit(0)
	}
}

// TestHostileApiserver: whatever an apiserver answers, no verb writes a character to the terminal that controls it.
func TestHostileApiserver(t *testing.T) {
	const evil = "forbidden\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b[8mevil\u009b2J\u202e\r\x7f"
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: evil})
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	cfg := clientcmdapi.NewConfig()
	cfg.AuthInfos["admin"] = &clientcmdapi.AuthInfo{Token: "token"}
	cfg.Clusters["hostile"] = &clientcmdapi.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
	for _, name := range []string{"c1", "c2"} {
		cfg.Contexts[name] = &clientcmdapi.Context{Cluster: "hostile", AuthInfo: "admin"}
	}
	cfg.CurrentContext = "c1"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must(t, clientcmd.WriteToFile(*cfg, kubeconfig))
	must(t, os.WriteFile(filepath.Join(dir, "remote.yaml"), []byte("apiVersion: semaphore.uw.io/v1alpha1\n"+
		"kind: RemoteCluster\nmetadata: {name: c2}\nspec: {podSubnets: [10.2.0.0/16]}\n"), 0o600))
	reached := 0
	for _, verb := range slices.Concat(slices.Sorted(maps.Keys(exits)), modes) {
		args := exits[verb].unable
		if args == "" {
			args = "--context c1"
		}
		if !strings.Contains(args, "--context") {
			continue
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Dir, cmd.WaitDelay = dir, time.Minute
		cmd.Env = append(os.Environ(), asProgram+"="+verb+" "+args+" --kubeconfig "+kubeconfig)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%s: %v", verb, err)
		}
		for _, r := range string(out) {
			if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
				t.Errorf("%s writes %q to a terminal: %q", verb, r, out)
				break
			}
		}
		if bytes.Contains(out, []byte("evil")) {
			reached++
		}
	}
	if reached < 20 {
		t.Errorf("the text of the apiserver is in the output of %d verbs: the test does not show what it should", reached)
	}
}
