package deploy_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/ctl"
)

// TestCheckTakesWhatKustomizePrints checks that the overlay that users start from is valid before it is applied, and
// that a mistake in it is found.
func TestCheckTakesWhatKustomizePrints(t *testing.T) {
	manifests, err := kubectl(t, "kustomize", "example/c1")
	must(t, err)
	check := func(text string) (string, error) {
		t.Helper()
		cmd := ctl.Command()
		var out bytes.Buffer
		cmd.SetIn(strings.NewReader(text))
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"check", "-f", "-"})
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := check(manifests); err != nil || strings.Count(out, " is valid\n") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	if strings.Count(manifests, "podSubnets: [10.1.0.0/16]") < 2 {
		t.Fatal("the example has other subnets")
	}
	out, err := check(strings.ReplaceAll(manifests, "podSubnets: [10.1.0.0/16]", "podSubnet: 10.1.0.0/16"))
	if err == nil || !strings.Contains(out, `unknown field "globalServices.podSubnet"`) {
		t.Errorf("a key that does not exist: %v\n%s", err, out)
	}
}
