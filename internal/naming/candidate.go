package naming

import (
	"net"
	"net/netip"
	"strconv"
)

// MaxCandidates is how many candidates a node has at most: each that does not answer costs its peers 5 s.
const MaxCandidates = 4

// maxDNSName is the length of the longest DNS name.
const maxDNSName = 253

// Candidate reads where other clusters may reach a node: "IP:port", or "name:port"; then at has the port alone.
func Candidate(text string) (at netip.AddrPort, name string, ok bool) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, "", true
	}
	name, port, err := net.SplitHostPort(text)
	n, errPort := strconv.ParseUint(port, 10, 16)
	if err != nil || errPort != nil || n == 0 || len(name) > maxDNSName || !dnsName.MatchString(name) {
		return netip.AddrPort{}, "", false
	}
	return netip.AddrPortFrom(netip.Addr{}, uint16(n)), name, true
}
