package certs

import (
	"os"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbPKI: the output for an authority in a directory, from its creation to its replacement.
func TestVerbPKI(t *testing.T) {
	t.Chdir(t.TempDir())
	s := ctltest.NewSession(t)
	s.Call("pki init --cluster c1 --dir c1")
	s.Call("pki init --cluster c1 --dir c1")
	s.Call("pki init --cluster c1")
	s.Call("pki show --dir c1")
	s.Call("pki bundle --dir c1")
	s.Call("pki rotate --dir c1 --part broker")
	s.Golden("pki", nil)

	s = ctltest.NewSession(t)
	s.Call("pki rotate-ca --dir c1")
	s.Call("pki rotate-ca --dir c1 --step 2")
	s.Call("pki rotate-ca --dir c1 --step 1")
	s.Call("pki show --dir c1")
	s.Call("pki rotate-ca --dir c1 --step 2")
	s.Call("pki rotate-ca --dir c1 --step 3")
	s.Golden("pki-rotate-ca", nil)

	_, _, err := ctltest.Run(t, "pki", "init", "--cluster", "c2", "--dir", "c2")
	must(t, err)
	bundle, _, err := ctltest.Run(t, "pki", "bundle", "--dir", "c2")
	must(t, err)
	must(t, os.WriteFile("c2.pem", []byte(bundle), 0o600))
	s = ctltest.NewSession(t)
	s.Call("pki secrets --dir c1 --peer-bundle c2=c2.pem")
	s.Call("pki secrets --dir c1 --peer-bundle c3=c2.pem")
	s.Golden("pki-secrets", nil)
}
