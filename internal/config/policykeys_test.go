package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestPolicyKeys: what admission policies read is what the broker read, in whatever form of YAML the file has it.
func TestPolicyKeys(t *testing.T) {
	const rest = "cluster: c1\n"
	for name, text := range map[string]string{
		"block style":        "localSubnets:\n  - 10.1.0.0/16\n  - 10.101.0.0/16\n" + rest,
		"flow style":         "localSubnets: [10.1.0.0/16, 10.101.0.0/16]\n" + rest,
		"a quoted key":       "\"localSubnets\": [10.1.0.0/16, 10.101.0.0/16]\n" + rest,
		"space before ':'":   "localSubnets : [10.1.0.0/16, 10.101.0.0/16]\n" + rest,
		"one flow map":       "{cluster: c1, localSubnets: [10.1.0.0/16, 10.101.0.0/16]}\n",
		"JSON":               `{"cluster": "c1", "localSubnets": ["10.1.0.0/16", "10.101.0.0/16"]}`,
		"indented":           "  localSubnets: [10.1.0.0/16, 10.101.0.0/16]\n  cluster: c1\n",
		"an anchor":          "localSubnets: &a [10.1.0.0/16, 10.101.0.0/16]\n" + rest,
		"a comment with one": "localSubnets:\n  - 10.1.0.0/16\n  # not ours: 10.2.0.0/16\n  - 10.101.0.0/16\n" + rest,
	} {
		t.Run(name, func(t *testing.T) {
			c := testkit.Value(Parse[Broker]([]byte(text)))(t)
			keys := PolicyKeys(c)
			if got := keys[KeyLocalSubnets]; got != "10.1.0.0/16,10.101.0.0/16" {
				t.Errorf("the policies are given %q", got)
			}
			value := func(key string) (string, bool) { text, found := keys[key]; return text, found }
			if err := ComparePolicyKeys(c, value); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestComparePolicyKeys: a broker does not run beside policies that judge by other subnets, and says what to write.
func TestComparePolicyKeys(t *testing.T) {
	c := &Broker{LocalSubnets: []string{"10.1.0.0/16", "fd00:1::/48"},
		GlobalServices: GlobalServices{PodSubnets: []string{"10.1.0.0/16"}}, LabelDomains: []string{"semaphore.uw.systems"}}
	for name, one := range map[string]struct {
		change func(map[string]string)
		says   string
	}{
		"the same":               {func(map[string]string) {}, ""},
		"another order":          {func(k map[string]string) { k[KeyLocalSubnets] = " fd00:1::/48,\n10.1.0.0/16\n" }, ""},
		"the same subnet":        {func(k map[string]string) { k[KeyLocalSubnets] = "10.1.7.0/16,fd00:1::/48" }, ""},
		"no key":                 {func(k map[string]string) { delete(k, KeyLocalSubnets) }, "localSubnets is"},
		"one less":               {func(k map[string]string) { k[KeyLocalSubnets] = "10.1.0.0/16" }, "localSubnets is"},
		"one more":               {func(k map[string]string) { k[KeyLocalSubnets] += ",10.9.0.0/16" }, "localSubnets is"},
		"no subnet":              {func(k map[string]string) { k[KeyLocalSubnets] += ",pods" }, "localSubnets is"},
		"other pods":             {func(k map[string]string) { k[KeyPodSubnets] = "0.0.0.0/0" }, "podSubnets is"},
		"no pods":                {func(k map[string]string) { delete(k, KeyPodSubnets) }, "podSubnets is"},
		"domains nobody uses":    {func(k map[string]string) { k[KeyLabelDomains] = "example.org" }, "labelDomains is"},
		"a key of somebody else": {func(k map[string]string) { k["x"] = "y" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			keys := PolicyKeys(c)
			one.change(keys)
			dir := t.TempDir()
			for key, text := range keys {
				testkit.Must(t, os.WriteFile(filepath.Join(dir, key), []byte(text), 0o600))
			}
			value, err := PolicyKeysIn(dir)
			testkit.Must(t, err)
			err = ComparePolicyKeys(c, value)
			if one.says == "" && err != nil || one.says != "" && (err == nil || !strings.Contains(err.Error(), one.says) ||
				!strings.Contains(err.Error(), "localSubnets=10.1.0.0/16,fd00:1::/48")) {
				t.Errorf("it says %v; want %q, and what to write", err, one.says)
			}
		})
	}
	c.LabelDomains = []string{"example.org"}
	value := func(key string) (string, bool) {
		text, ok := map[string]string{KeyLocalSubnets: "10.1.0.0/16,fd00:1::/48",
			KeyPodSubnets: "10.1.0.0/16"}[key]
		return text, ok
	}
	if err := ComparePolicyKeys(c, value); err == nil || !strings.Contains(err.Error(), KeyLabelDomains) {
		t.Errorf("policies that do not know a label domain: %v", err)
	}
}

// TestStaticServiceIPs: the bands of KEP-3070.
func TestStaticServiceIPs(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.96.0.0/12": "10.96.0.0/24", "10.101.0.0/16": "10.101.0.0/24", "10.0.0.0/20": "10.0.0.0/24",
		"10.0.0.0/24": "10.0.0.0/28", "10.0.0.0/28": "10.0.0.0/28", "10.0.0.0/30": "10.0.0.0/30",
		"fd00:9::/108": "fd00:9::/120", "10.96.7.1/12": "10.96.0.0/24",
	} {
		if got := StaticServiceIPs([]netip.Prefix{netip.MustParsePrefix(subnet)}); got != want {
			t.Errorf("%s has %s; want %s", subnet, got, want)
		}
	}
}
