package testkit

import "net/netip"

// Prefixes are the prefixes of some texts. A text that is none panics.
func Prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}
