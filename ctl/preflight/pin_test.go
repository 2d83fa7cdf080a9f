package preflight

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestPin: what a cluster says of itself is written only as far as nobody else has it: its name for the one whose key
// is known, subnets that are private and of a usual width for one that is new, and what stands for one that is not.
func TestPin(t *testing.T) {
	p := testkit.Prefixes
	c2 := func() Introduction {
		return Introduction{Here: "c1", There: "ctx2", Says: Remote{"c2", p("10.2.0.0/16"), p("172.18.2.0/24")},
			Others: []Remote{{"c3", p("10.3.0.0/16"), p("172.18.3.0/24")}}}
	}
	had := func(in *Introduction) { in.Before = &Remote{"c2", p("10.2.0.0/16"), p("172.18.2.0/24")} }
	for name, test := range map[string]struct {
		change      func(*Introduction)
		pods, nodes string
		want        string // codes
	}{
		"new":         {func(*Introduction) {}, "10.2.0.0/16", "172.18.2.0/24", ""},
		"again":       {had, "10.2.0.0/16", "172.18.2.0/24", ""},
		"only a root": {func(in *Introduction) { in.RootsOnly = true }, "", "", ""},
		"no proof": {func(in *Introduction) { had(in); in.Doubt = errors.New("another key") }, "10.2.0.0/16",
			"172.18.2.0/24", "NotTheSameCluster"},

		"no proof for a root": {func(in *Introduction) {
			in.RootsOnly, in.Before, in.Doubt = true, &Remote{}, errors.New("another key")
		},
			"", "", "NotTheSameCluster"},
		"doubt of a name that nobody has": {func(in *Introduction) { in.Doubt = errors.New("another key") }, "10.2.0.0/16",
			"172.18.2.0/24", ""},
		"replaced": {func(in *Introduction) {
			had(in)
			in.Doubt, in.Replace, in.Says.Pods = errors.New("another key"), true, p("10.9.0.0/16")
		}, "10.9.0.0/16", "172.18.2.0/24", ""},

		"replaced by public ones": {func(in *Introduction) { had(in); in.Replace, in.Says.Pods = true, p("34.0.0.0/8") },
			"34.0.0.0/8", "172.18.2.0/24", "BoundsUnconfirmed"},
		"narrower": {func(in *Introduction) { had(in); in.Says.Pods = p("10.2.7.0/24") },
			"10.2.0.0/16", "172.18.2.0/24", ""},
		"none read": {func(in *Introduction) { had(in); in.Says.Pods = nil }, "10.2.0.0/16", "172.18.2.0/24", ""},
		"wider": {func(in *Introduction) { had(in); in.Says.Pods = p("10.2.0.0/15") }, "10.2.0.0/16", "172.18.2.0/24",
			"BoundsUnconfirmed"},
		"nodes elsewhere": {func(in *Introduction) { had(in); in.Says.Nodes = p("172.18.2.0/24", "172.18.9.0/24") },
			"10.2.0.0/16", "172.18.2.0/24", "BoundsUnconfirmed"},
		"wider by an operator": {func(in *Introduction) { had(in); in.Pods = p("10.2.0.0/15") }, "10.2.0.0/15",
			"172.18.2.0/24", "SubnetsOverlap"},
		"more by an operator": {func(in *Introduction) { had(in); in.Pods = p("10.2.0.0/16", "34.1.0.0/16") },
			"10.2.0.0/16 34.1.0.0/16", "172.18.2.0/24", ""},
		"public pods": {func(in *Introduction) { in.Says.Pods = p("34.0.0.0/8") }, "34.0.0.0/8", "172.18.2.0/24",
			"BoundsUnconfirmed"},
		"half of the internet": {func(in *Introduction) { in.Says.Pods = p("0.0.0.0/1") }, "0.0.0.0/1", "172.18.2.0/24",
			"BoundsUnconfirmed SubnetsOverlap"},
		"public nodes": {func(in *Introduction) { in.Says.Nodes = p("140.82.112.0/20") }, "10.2.0.0/16", "140.82.112.0/20",
			"BoundsUnconfirmed"},
		"public IPv6": {func(in *Introduction) { in.Says.Pods = p("2001:db8::/64") },
			"2001:db8::/64", "172.18.2.0/24", "BoundsUnconfirmed"},
		"private IPv6": {func(in *Introduction) { in.Says.Pods = p("fd00:2::/48") },
			"fd00:2::/48", "172.18.2.0/24", ""},
		"wide pods": {func(in *Introduction) { in.Says.Pods = p("100.64.0.0/11") },
			"100.64.0.0/11", "172.18.2.0/24", "BoundsUnconfirmed"},
		"wide nodes": {func(in *Introduction) { in.Says.Nodes = p("192.168.0.0/15") },
			"10.2.0.0/16", "192.168.0.0/15", "BoundsUnconfirmed"},
		"nodes of a /16": {func(in *Introduction) { in.Says.Nodes = p("192.168.0.0/16") },
			"10.2.0.0/16", "192.168.0.0/16", ""},
		"pods of another": {func(in *Introduction) { in.Says.Pods = p("10.3.7.0/24") },
			"10.3.7.0/24", "172.18.2.0/24", "SubnetsOverlap"},
		"pods at its nodes": {func(in *Introduction) { in.Says.Pods = p("172.18.3.0/28") },
			"172.18.3.0/28", "172.18.2.0/24", "SubnetsOverlap"},
		"nodes in its pods": {func(in *Introduction) { in.Says.Nodes = p("10.3.7.0/24") },
			"10.2.0.0/16", "10.3.7.0/24", "SubnetsOverlap"},
		"nodes of another": {func(in *Introduction) { in.Says.Nodes = p("172.18.3.0/24") },
			"10.2.0.0/16", "172.18.3.0/24", "BoundsUnconfirmed"},
		"shared by an operator": {func(in *Introduction) { in.Nodes = p("172.18.3.0/24") },
			"10.2.0.0/16", "172.18.3.0/24", ""},
		"its pods, by an operator": {func(in *Introduction) { in.Pods = p("10.3.0.0/24") }, "10.3.0.0/24", "172.18.2.0/24",
			"SubnetsOverlap"},
	} {
		t.Run(name, func(t *testing.T) {
			in := c2()
			test.change(&in)
			pods, nodes, found := Pin(in)
			var codes []string
			for _, f := range found {
				codes = append(codes, string(f.Code))
				if f.Subject == "" || f.Evidence == "" || f.Fix == "" || f.Side != "c1" {
					t.Errorf("incomplete: %+v", f)
				}
			}
			slices.Sort(codes)
			if got := strings.Join(codes, " "); got != test.want {
				t.Errorf("found %q, want %q", got, test.want)
			}
			if got := (Subnets{Prefixes: pods}).String(); got != test.pods {
				t.Errorf("pods %s, want %s", got, test.pods)
			}
			if got := (Subnets{Prefixes: nodes}).String(); got != test.nodes {
				t.Errorf("nodes %s, want %s", got, test.nodes)
			}
		})
	}
}
