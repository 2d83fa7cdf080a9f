package guard

import "testing"

// FuzzParseComments: whatever comments the rules of the node's table have, a remote that is parsed from them has a
// name and valid subnets.
func FuzzParseComments(f *testing.F) {
	f.Add("c2 10.2.0.0/16 drop", "c2 192.0.2.0/28 nodes 7773")
	f.Add("c2 fd00::/48 count", "c2 192.0.2.0/28 x 99999999999999999999")
	f.Add("c2 10.2.0.0/99 pass", "\xff ::ffff:10.0.0.0/100 y -1")
	f.Fuzz(func(t *testing.T, rule, tunnel string) {
		all := parseComments([]string{rule, rule, tunnel})
		parseTunnelComments(all, []string{tunnel, rule})
		for name, r := range all {
			if name == "" || len(r.Subnets) == 0 {
				t.Errorf("%q and %q say of %q %+v", rule, tunnel, name, r)
			}
			for _, s := range append(r.Subnets, r.Nodes...) {
				if !s.IsValid() {
					t.Errorf("%q and %q say of %q the subnet %s", rule, tunnel, name, s)
				}
			}
		}
	})
}
