package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

// Keys of the ConfigMap semaphore-subnets beside broker.yaml, which admission policies read: lists with commas. A
// policy cannot parse YAML, and it refuses a name that it does not find.
const (
	KeyLocalSubnets = "localSubnets"
	// KeyPodSubnets has globalServices.podSubnets.
	KeyPodSubnets = "podSubnets"
	// KeyLabelDomains has labelDomains; without it the policies know the two default ones.
	KeyLabelDomains = "labelDomains"
	// KeyStaticServiceIPs has the service addresses that the apiserver assigns only on request. The broker does not know
	// them.
	KeyStaticServiceIPs = "staticServiceIPs"
	// KeyRemotePodSubnets, followed by the name of a remote, has the pod subnets of that remote: those in which endpoints
	// under own names of Services are. The broker itself does not need them.
	KeyRemotePodSubnets = "remotePodSubnets."
)

// RemotePodSubnets returns the key for a remote, and its required value.
func RemotePodSubnets(remote string, subnets []netip.Prefix) (key, value string) {
	all := make([]string, len(subnets))
	for i, s := range subnets {
		all[i] = s.String()
	}
	return KeyRemotePodSubnets + remote, strings.Join(all, ",")
}

// PolicyKeys returns the required keys and values of the ConfigMap semaphore-subnets for a broker's configuration.
func PolicyKeys(c *Broker) map[string]string {
	out := map[string]string{KeyLocalSubnets: strings.Join(c.LocalSubnets, ",")}
	if len(c.GlobalServices.PodSubnets) > 0 {
		out[KeyPodSubnets] = strings.Join(c.GlobalServices.PodSubnets, ",")
	}
	for _, domain := range c.LabelDomains {
		if domain != naming.DefaultLabelDomain && domain != naming.PolicyLabelDomain {
			out[KeyLabelDomains] = strings.Join(c.LabelDomains, ",")
		}
	}
	return out
}

// StaticServiceIPs returns the lower band of each service subnet, from which the apiserver assigns no address by itself
// while others are free: min(max(16, size/16), 256) addresses (KEP-3070).
func StaticServiceIPs(services []netip.Prefix) string {
	var all []string
	for _, s := range services {
		free := s.Addr().BitLen() - s.Bits()
		band := min(max(free-4, 4), 8, free)
		all = append(all, netip.PrefixFrom(s.Masked().Addr(), s.Addr().BitLen()-band).String())
	}
	return strings.Join(all, ",")
}

// ComparePolicyKeys returns an error if the keys that the policies read differ from a broker's configuration: the
// broker would try again and again to write an object that the policies refuse; no operator configured an object that
// they let through. value returns a key of the ConfigMap.
func ComparePolicyKeys(c *Broker, value func(key string) (text string, found bool)) error {
	var differ []string
	for _, key := range []string{KeyLocalSubnets, KeyPodSubnets, KeyLabelDomains} {
		want, needed := PolicyKeys(c)[key]
		have, found := value(key)
		if key == KeyLabelDomains && !needed && !found {
			continue
		}
		if !SameList(have, want) {
			differ = append(differ, fmt.Sprintf("%s is %q and must be %q", key, strings.TrimSpace(have), want))
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("the ConfigMap semaphore-subnets, by which admission policies judge what the broker writes, "+
		"differs from its configuration: %s; in an overlay, add literals such as %s=%s to its configMapGenerator "+
		"(semaphorectl install does), and apply it", strings.Join(differ, "; "), KeyLocalSubnets,
		PolicyKeys(c)[KeyLocalSubnets])
}

// PolicyKeysIn returns the keys of a ConfigMap that is mounted in a directory: those that ComparePolicyKeys asks for,
// and more. A key may be missing; it fails if one exists and cannot be read.
func PolicyKeysIn(dir string, more ...string) (func(key string) (string, bool), error) {
	keys := map[string]string{}
	for _, key := range append([]string{KeyLocalSubnets, KeyPodSubnets, KeyLabelDomains}, more...) {
		data, err := volume.ReadFile(filepath.Join(dir, key))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("the ConfigMap semaphore-subnets in %s: %w", dir, err)
		default:
			keys[key] = string(data)
		}
	}
	return func(key string) (string, bool) { text, found := keys[key]; return text, found }, nil
}

// SameList reports whether two values of a key have the same elements; subnets are compared by what they contain.
func SameList(a, b string) bool { return slices.Equal(elements(a), elements(b)) }

func elements(list string) []string {
	var all []string
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if prefix, err := netip.ParsePrefix(text); err == nil {
			text = prefix.Masked().String()
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
