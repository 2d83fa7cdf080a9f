package finding

import (
	"regexp"
	"strings"
	"testing"
)

// TestCommandsNameTheNamespace: a kubectl command about namespaced objects names their namespace.
func TestCommandsNameTheNamespace(t *testing.T) {
	namespaced := regexp.MustCompile(`\b(pods?|leases|configmaps|roles|events|endpointslices|endpoints|logs|deploy|` +
		`services?|secrets?|serviceexports|serviceimports?)\b`)
	found := 0
	for _, d := range All() {
		verb, ok := strings.CutPrefix(d.Command, "kubectl ")
		if !ok || !namespaced.MatchString(strings.Split(verb, " --as ")[0]) {
			continue
		}
		found++
		if !strings.Contains(d.Command, " -n ") && !strings.HasSuffix(d.Command, " -A") {
			t.Errorf("%s: %s names no namespace", d.Code, d.Command)
		}
	}
	if found < 15 {
		t.Errorf("%d commands were found", found)
	}
}
