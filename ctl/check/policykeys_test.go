package check

import (
	"errors"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

// TestJudgePolicyKeys: subnets that differ are an error, and those that nobody could read are neither right nor wrong.
func TestJudgePolicyKeys(t *testing.T) {
	for name, test := range map[string]struct {
		keys *PolicyKeys
		want string
		says []string
	}{
		"none":     {nil, "", nil},
		"the same": {&PolicyKeys{}, "PolicyKeysAgree", nil},
		"unreadable": {&PolicyKeys{Err: errors.New("forbidden")}, "NOT-CHECKED:PolicyKeysUnreadable",
			[]string{"forbidden"}},
		"others": {&PolicyKeys{Differ: errors.New("localSubnets is one, podSubnets is another")},
			"ERROR:PolicyKeysDiffer", []string{"localSubnets is one", "podSubnets is another"}},
		"unreadable in part": {&PolicyKeys{Err: errors.New("forbidden"), Differ: errors.New("localSubnets is one")},
			"ERROR:PolicyKeysDiffer", []string{"localSubnets is one"}},
	} {
		var got []show.Finding
		for _, f := range Judge(Facts{Now: now, PolicyKeys: test.keys}) {
			if strings.HasPrefix(string(f.Code), "PolicyKeys") {
				got = append(got, f)
			}
		}
		complete(t, got)
		if codes(got) != test.want {
			t.Errorf("%s: %s; want %s", name, codes(got), test.want)
		}
		for _, says := range test.says {
			if len(got) != 1 || !strings.Contains(got[0].Evidence, says) {
				t.Errorf("%s: no %q in %+v", name, says, got)
			}
		}
	}
}
