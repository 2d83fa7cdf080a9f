package certs

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestRotateCommands runs the commands of docs/certificates.md in order: each names the next step, and check finds
// nothing wrong after any step on either side.
func TestRotateCommands(t *testing.T) {
	dir := ctltest.Linked(t)
	address := ctltest.ListenAs(t, dir, identity.Exporter("c1"))
	c1 := filepath.Join(dir, "c1")
	well := func(when string) {
		t.Helper()
		if f, code := ctltest.Found(t, "--dir", c1, "--peer-bundle", "c2="+filepath.Join(dir, "c2.pem"), "--address",
			address,
			"--expect", "spiffe://c2/broker"); code != 0 {
			t.Errorf("%s: exit code %d\n%+v", when, code, f)
		}
	}
	next := func(want string, args ...string) {
		t.Helper()
		out, code, err := ctltest.Run(t, append([]string{"pki", "rotate-ca", "--dir", c1}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: exit code %d, %v\n%s; want %q", args, code, err, out, want)
		}
	}
	well("before")
	_, _, err := ctltest.Run(t, "pki", "rotate", "--dir", c1, "--days", "90", "--part", "exporter")
	must(t, err)
	well("rotated")
	if out, code, err := ctltest.Run(t, "pki", "show", "--dir", c1); code != 0 || !strings.Contains(out, "89 days") ||
		!strings.Contains(out, "364 days") || strings.Count(out, "\n") != 5 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	shown := func() (doc struct {
		Certificates []certificate
		Replacing    bool
	}) {
		t.Helper()
		out, code, err := ctltest.Run(t, "pki", "show", "--dir", c1, "-o", "json")
		must(t, err)
		must(t, json.Unmarshal([]byte(out), &doc))
		if code != 0 || !slices.ContainsFunc(doc.Certificates, func(c certificate) bool {
			return c.Name == "spiffe://c1/exporter" && c.Valid && c.NotAfter.Sub(c.NotBefore) < 91*day &&
				strings.Contains(out, c.Fingerprint)
		}) {
			t.Errorf("exit code %d\n%s", code, out)
		}
		return doc
	}
	if doc := shown(); doc.Replacing || len(doc.Certificates) != 4 {
		t.Errorf("steady: %+v", doc)
	}
	next("is not being replaced. To begin:\n  semaphorectl pki rotate-ca --dir " + c1 + " --step 1")
	next("Then step 2:\n  semaphorectl pki rotate-ca --dir "+c1+" --step 2", "--step", "1")
	next("Then step 2:") // repeated, it does nothing
	if out, _, _ := ctltest.Run(t, "pki", "show", "--dir", c1); !strings.Contains(out, "next/ca.crt") ||
		!strings.Contains(out, "is being replaced") {
		t.Errorf("while it is replaced:\n%s", out)
	}
	if doc := shown(); !doc.Replacing || len(doc.Certificates) != 5 {
		t.Errorf("while it is replaced: %+v", doc)
	}
	ctltest.Rebundle(t, dir, "c1") // to c2
	well("step 1")
	next("Then step 3:", "--step", "2", "--days", "30")
	well("step 2")
	next("step 3 is done", "--step", "3")
	ctltest.Rebundle(t, dir, "c1")
	well("step 3")
	if _, code, err := ctltest.Run(t, "pki", "rotate-ca", "--dir", c1, "--step", "2"); code != 1 ||
		!strings.Contains(err.Error(), "the next one is 1") {
		t.Errorf("out of turn: exit code %d, %v", code, err)
	}
	if _, code, err := ctltest.Run(t, "pki", "rotate", "--dir", c1, "--days", "0"); code != 1 ||
		!strings.Contains(err.Error(), "must be above 0") {
		t.Errorf("no days: exit code %d, %v", code, err)
	}
}
