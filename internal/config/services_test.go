package config

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

const brokerOfC1 = `
cluster: c1
localSubnets: [10.1.0.0/16, "fd00:1::/48"]
remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]
`

func TestGlobalServices(t *testing.T) {
	c, err := Parse[described]([]byte(brokerOfC1 + `
slices: {maxEndpoints: 1000}
globalServices:
  podSubnets: [10.1.0.0/17, "fd00:1::/48"]
  limits: {services: 3}
  silentAfter: 1m
  settle: 0s
  ownNames: true
  localZones: [zone-a, zone-b]
  rules:
  - {namespaces: [shop], names: [cart, pay], prefer: [c1, c2], minReady: 2, whenGone: withdraw}
  - {names: [web], minReady: 50%}
  - {}
`))
	testkit.Must(t, err)
	want := GlobalServices{
		PodSubnets:  []string{"10.1.0.0/17", "fd00:1::/48"},
		PodPrefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/17"), netip.MustParsePrefix("fd00:1::/48")},
		Limits:      OwnLimits{3, 10_000, 100_000, 10_000},
		SilentAfter: Duration{Duration: time.Minute},
		OwnNames:    true,
		LocalZones:  []string{"zone-a", "zone-b"},
		Rules: []GlobalRule{
			{Namespaces: []string{"shop"}, Names: []string{"cart", "pay"}, Prefer: []string{"c1", "c2"},
				MinReady: new(intstr.FromInt32(2)), WhenGone: Withdraw},
			{Names: []string{"web"}, MinReady: new(intstr.FromString("50%")), WhenGone: Demote},
			{MinReady: new(intstr.FromInt32(1)), WhenGone: Demote},
		},
	}
	if !reflect.DeepEqual(c.GlobalServices, want) {
		t.Errorf("got  %+v\nwant %+v", c.GlobalServices, want)
	}
	if c.Slices.MaxEndpoints != 1000 {
		t.Errorf("slices of %d endpoints", c.Slices.MaxEndpoints)
	}
	own := c.Own()
	if own == nil || own.Name != "c1" || !reflect.DeepEqual(own.PodPrefixes, want.PodPrefixes) ||
		own.Limits.Services != 3 || own.Limits.ChangesPerSecond != 1_000 {
		t.Errorf("the own cluster is taken as %+v", own)
	}
	if c, err = Parse[described]([]byte(brokerOfC1)); err != nil || c.Own() != nil {
		t.Errorf("without pod subnets the own cluster is taken: %v", err)
	}
}

func TestGlobalRuleMatches(t *testing.T) {
	for _, test := range []struct {
		rule GlobalRule
		want bool
	}{
		{GlobalRule{}, true},
		{GlobalRule{Namespaces: []string{"a", "shop"}}, true},
		{GlobalRule{Names: []string{"cart"}}, true},
		{GlobalRule{Namespaces: []string{"shop"}, Names: []string{"cart"}}, true},
		{GlobalRule{Namespaces: []string{"cart"}}, false},
		{GlobalRule{Namespaces: []string{"shop"}, Names: []string{"shop"}}, false},
	} {
		if got := test.rule.Matches("shop", "cart"); got != test.want {
			t.Errorf("%+v matches shop/cart: %v", test.rule, got)
		}
	}
}

func TestBadGlobalServices(t *testing.T) {
	refuses[described](t, brokerOfC1, map[string]string{
		"slices: {maxEndpoints: 1001}":  "slices.maxEndpoints: 1001: use 1 to 1000 endpoints",
		"services: {adoptFrom: [kilo]}": `services.adoptFrom: "kilo" is no tool whose Services can be taken over`,
		"services: {adoptFrom: [semaphore-service-mirror, semaphore-service-mirror]}": "listed twice",
		"slices: {maxEndpoints: -1}":              "slices.maxEndpoints: -1",
		"labelDomains: [a.b, a.b]":                `labelDomains[1]: "a.b" is listed twice`,
		"nodeEndpoints: [ExternalIP, ExternalIP]": `nodeEndpoints[1]: "ExternalIP" is listed twice`,
		"globalServices: {podSubnets: [10.2.0.0/16]}": "globalServices.podSubnets: 10.2.0.0/16 is not inside " +
			"of localSubnets",
		"globalServices: {podSubnets: [10.0.0.0/8]}": "globalServices.podSubnets: 10.0.0.0/8 is not inside " +
			"of localSubnets",
		"globalServices: {podSubnets: [10.1.0.1/16]}": "globalServices.podSubnets[0]: 10.1.0.1/16 has bits " +
			"set outside its mask",
		"globalServices: {limits: {services: -1}}": "globalServices.limits.services: -1: use a " +
			"number from 1",
		"globalServices: {limits: {nodes: 1}}":                      `unknown field "globalServices.limits.nodes"`,
		"globalServices: {silentAfter: 0s}":                         "globalServices.silentAfter: 0s: use 15s to 1h0m0s",
		"globalServices: {silentAfter: 30}":                         "globalServices.silentAfter: 30 is no duration",
		"globalServices: {settle: -1s}":                             "globalServices.settle: -1s: use 0s to 1h0m0s",
		"globalServices: {localZones: [a, a]}":                      `globalServices.localZones[1]: "a" is listed twice`,
		"globalServices: {localZones: [a, b, c, d, e, f, g, h, i]}": "globalServices.localZones: 9: use 8 zones at most",
		"globalServices: {localZones: ['']}":                        "globalServices.localZones[0]: is empty",
		"globalServices: {localZones: ['a b']}":                     `globalServices.localZones[0]: "a b" is no zone`,
		"globalServices: {rules: [{namespaces: [a.b]}]}": `globalServices.rules[0].namespaces[0]: "a.b" is no ` +
			`namespace`,
		"globalServices: {rules: [{}, {names: [A]}]}": `globalServices.rules[1].names[0]: "A" is no name of ` +
			`a Service`,
		"globalServices: {rules: [{clusters: [c2, c2]}]}": `globalServices.rules[0].clusters[1]: "c2" is listed ` +
			`twice`,
		"globalServices: {rules: [{clusters: [c2], prefer: [c1]}]}": `globalServices.rules[0].prefer[0]: "c1" takes no ` +
			`part: it is not in clusters`,
		"globalServices: {rules: [{prefer: [c1, c2, c1]}]}": `globalServices.rules[0].prefer[2]: "c1" is listed twice`,
		"globalServices: {ownNames: true}":                  "globalServices.ownNames: needs podSubnets",
		"globalServices: {rules: [{minReady: -1}]}": `globalServices.rules[0].minReady: "-1": use a number of ready ` +
			`endpoints from 1 to 1000000, or a share from 1% to 100%`,
		"globalServices: {rules: [{minReady: 1000001}]}": `globalServices.rules[0].minReady: "1000001": use a number`,
		"globalServices: {rules: [{minReady: 0%}]}":      `globalServices.rules[0].minReady: "0%": use a number`,
		"globalServices: {rules: [{minReady: 101%}]}":    `globalServices.rules[0].minReady: "101%": use a number`,
		"globalServices: {rules: [{minReady: many}]}":    `globalServices.rules[0].minReady: "many": use a number`,
		"globalServices: {rules: [{minReady: 0.5}]}":     "globalServices.rules.minReady: found number 0.5",
		"globalServices: {rules: [{whenGone: drop}]}": `globalServices.rules[0].whenGone: "drop": use keep, demote ` +
			`or withdraw`,
		"globalServices: {rules: [{prefers: [c1]}]}":          `unknown field "globalServices.rules[0].prefers"`,
		"globalServices: {podSubnets: [10.1.0.0/16, '::/0']}": "globalServices.podSubnets[1]: ::/0 is everything",
	})
}

func TestParseMinReady(t *testing.T) {
	for text, want := range map[string]struct {
		count, percent int
		valid          bool
	}{
		"1": {1, 0, true}, " 3 ": {3, 0, true}, "1000000": {MaxMinReady, 0, true}, "1%": {0, 1, true}, "50%": {0, 50, true},
		"100%": {0, 100, true},
		"":     {}, "0": {}, "-1": {}, "1000001": {}, "many": {}, "1.5": {},
		"%": {}, "0%": {}, "101%": {}, "-5%": {}, "50 %": {}, "50%%": {},
	} {
		count, percent, err := ParseMinReady(text)
		if count != want.count || percent != want.percent || (err == nil) != want.valid {
			t.Errorf("%q is %d or %d%%, %v", text, count, percent, err)
		}
	}
}

// TestSystemNamespace: the namespaces that the admission policies of deploy/features deny, too.
func TestSystemNamespace(t *testing.T) {
	for namespace, want := range map[string]bool{"kube-system": true, "kube-public": true, "calico-system": true,
		"tigera-operator": true, "shop": false, "default": false, "my-kube-system": false, "kubernetes": false} {
		if SystemNamespace(namespace) != want {
			t.Errorf("%s: %t", namespace, !want)
		}
	}
}
