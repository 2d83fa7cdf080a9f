package config

import (
	"strings"
	"testing"
)

func TestAddressFamily(t *testing.T) {
	for _, test := range []struct{ remote, want string }{
		{"nodeSubnets: [192.0.2.0/24], ", "IPv4"},
		{"nodeSubnets: ['2001:db8::/64'], ", "IPv6"},
		{"nodeSubnets: [192.0.2.0/24, '2001:db8::/64'], ", ""},
		{"nodeSubnets: [192.0.2.0/24, '2001:db8::/64'], wireguard: {addressFamily: IPv6}, ", "IPv6"},
		{"nodeSubnets: [192.0.2.0/24], wireguard: {addressFamily: IPv6}, ",
			"error: remotes[0].wireguard.addressFamily: IPv6, and remotes[0].nodeSubnets has no subnet of that family"},
		{"nodeSubnets: [192.0.2.0/24], wireguard: {addressFamily: ipv4}, ",
			`error: remotes[0].wireguard.addressFamily: "ipv4": use IPv4 or IPv6`},
	} {
		c, err := Parse[described]([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{" + test.remote +
			"name: c2, podSubnets: [10.2.0.0/16, 'fd00:2::/48']}]\n"))
		if want, isError := strings.CutPrefix(test.want, "error: "); isError {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, and not %q", test.remote, err, want)
			}
		} else if err != nil || string(c.Families()["c2"]) != test.want {
			t.Errorf("%s: %v, %v, and not %q", test.remote, c, err, test.want)
		}
	}
}
