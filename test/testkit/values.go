package testkit

import "net/netip"

// Prefixes parses prefixes. It panics on an invalid one.
func Prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}
