package kernel_test

import (
	"net/netip"
	"strings"
	"testing"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
)

const (
	forward4      = "ipv4/ip_forward"
	forward6      = "ipv6/conf/all/forwarding"
	reverseFilter = "ipv4/conf/all/rp_filter"
)

func TestSettingProblems(t *testing.T) {
	v4 := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}
	v6 := []netip.Prefix{netip.MustParsePrefix("fd00:2::/48")}
	for name, c := range map[string]struct {
		values   Settings
		networks []RoutedDevice
		want     []string // a part of each
	}{
		"nothing is known": {nil, []RoutedDevice{{"d", v4, true}}, nil},
		"all as it should be": {
			Settings{forward4: 1, reverseFilter: 1, "ipv4/conf/d/forwarding": 1, "ipv4/conf/d/rp_filter": 0},
			[]RoutedDevice{{"d", v4, false}}, nil},
		"nothing is to be routed": {Settings{forward4: 0, forward6: 0}, nil, nil},
		"no forwarding": {Settings{forward4: 0, forward6: 0, "ipv4/conf/d/forwarding": 0},
			[]RoutedDevice{{"d", v4, false}}, []string{"net.ipv4.ip_forward"}},
		"no forwarding of IPv6": {Settings{forward4: 0, forward6: 0}, []RoutedDevice{{"d", v6, false}},
			[]string{"net.ipv6.conf.all.forwarding"}},
		"none of either": {Settings{forward4: 0, forward6: 0}, []RoutedDevice{{"d", v4, false}, {"e", v6, false}},
			[]string{"net.ipv4.ip_forward", "net.ipv6"}},
		"none on the device": {Settings{forward4: 1, "ipv4/conf/d/forwarding": 0}, []RoutedDevice{{"d", v4, false}},
			[]string{"ipv4/conf/d/forwarding"}},
		"strict everywhere": {Settings{reverseFilter: 1, "ipv4/conf/d/rp_filter": 0}, []RoutedDevice{{"d", v4, true}},
			[]string{"rp_filter is strict on d"}},
		"strict on the device": {Settings{reverseFilter: 0, "ipv4/conf/d/rp_filter": 1}, []RoutedDevice{{"d", v4, true}},
			[]string{"rp_filter is strict on d"}},
		"loose on the device": {Settings{reverseFilter: 1, "ipv4/conf/d/rp_filter": 2},
			[]RoutedDevice{{"d", v4, true}}, nil},
		"loose everywhere": {Settings{reverseFilter: 2, "ipv4/conf/d/rp_filter": 1},
			[]RoutedDevice{{"d", v4, true}}, nil},
		"strict, and no shadow": {Settings{reverseFilter: 1, "ipv4/conf/d/rp_filter": 1},
			[]RoutedDevice{{"d", v4, false}}, nil},
		"strict, and no device yet": {Settings{reverseFilter: 1},
			[]RoutedDevice{{"d", v4, true}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := SettingProblems(c.values, c.networks)
			if len(got) != len(c.want) {
				t.Fatalf("%q; want %q", got, c.want)
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("%q; want %q", got[i], c.want[i])
				}
			}
		})
	}
}

// TestSettingsOfADeviceThatIsNotThere: they are not known.
func TestSettingsOfADeviceThatIsNotThere(t *testing.T) {
	got, err := new(Host).Settings([]RoutedDevice{{Device: "none"}})
	if _, known := got["ipv4/conf/none/forwarding"]; known || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}
