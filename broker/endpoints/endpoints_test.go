package endpoints

import (
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

func slice(family discoveryv1.AddressType, ports string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: family, Endpoints: endpoints}
	for _, p := range strings.Fields(ports) {
		var number int32
		name, _, _ := strings.Cut(p, ":")
		fmt.Sscan(p[len(name)+1:], &number)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
	}
	return s
}

func at(address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}}
}

func is(ready, terminating bool, address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready,
		Terminating: &terminating}}
}

func many(n int, ready bool, c int) (all []discoveryv1.Endpoint) {
	for i := range n {
		all = append(all, is(ready, false, fmt.Sprintf("10.2.%d.%d", c+i/250, i%250+1)))
	}
	return all
}

func text(subsets []Subset) string {
	var lines []string
	for _, s := range subsets {
		var words []string
		for _, p := range s.Ports {
			words = append(words, fmt.Sprintf("%s/%s/%d", p.Name, p.Protocol, p.Port))
		}
		for _, a := range s.Addresses {
			words = append(words, strings.TrimSuffix("+"+a.IP+"/"+a.Hostname, "/"))
		}
		for _, a := range s.NotReadyAddresses {
			words = append(words, "-"+a.IP)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, "\n")
}

func TestOf(t *testing.T) {
	named := at("10.2.0.7")
	named.Hostname = ptr.To("echo-0")
	for _, c := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		{"nothing", nil, ""},
		{"a slice without endpoints", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80")}, ""},
		{"in the order of the addresses",
			[]*discoveryv1.EndpointSlice{slice("IPv4", "web:80", at("10.2.0.2"), at("10.2.0.1"))},
			"web/TCP/80 +10.2.0.1 +10.2.0.2"},
		{"one family", []*discoveryv1.EndpointSlice{slice("IPv6", "web:80", at("fd00::1")),
			slice("IPv4", "web:80", at("10.2.0.1"))}, "web/TCP/80 +10.2.0.1"},
		{"several slices of the same ports", []*discoveryv1.EndpointSlice{slice("IPv4", "b:2 a:1", at("10.2.0.2")),
			slice("IPv4", "a:1 b:2", at("10.2.0.1"))},
			"a/TCP/1 b/TCP/2 +10.2.0.1 +10.2.0.2"},
		{"other ports", []*discoveryv1.EndpointSlice{slice("IPv4", "web:8080", at("10.2.0.2")),
			slice("IPv4", "web:80", at("10.2.0.1"))},
			"web/TCP/80 +10.2.0.1\nweb/TCP/8080 +10.2.0.2"},
		{"not ready, and one that ends",
			[]*discoveryv1.EndpointSlice{slice("IPv4", "web:80", is(false, false, "10.2.0.1"), is(false, true, "10.2.0.2"),
				is(true, true, "10.2.0.3"))},
			"web/TCP/80 +10.2.0.3 -10.2.0.1"},
		{"twice, once ready", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80", is(false, false, "10.2.0.1")),
			slice("IPv4", "web:80", at("10.2.0.1"))}, "web/TCP/80 +10.2.0.1"},
		{"headless without ports", []*discoveryv1.EndpointSlice{slice("IPv4", "", named)}, "+10.2.0.7/echo-0"},
	} {
		got, truncated := Of(c.slices, discoveryv1.AddressTypeIPv4)
		if text(got) != c.want || truncated {
			t.Errorf("%s:\n%s\nwant\n%s; truncated: %v", c.name, text(got), c.want, truncated)
		}
	}
}

// What Kubernetes' controller leaves of more than a thousand addresses.
func TestTruncated(t *testing.T) {
	for _, c := range []struct {
		name            string
		slices          []*discoveryv1.EndpointSlice
		ready, notReady []int
		truncated       bool
	}{
		{"a thousand", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80", many(1000, true, 0)...)}, []int{1000},
			[]int{0}, false},
		{"one more", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80", many(1001, true, 0)...)}, []int{1000},
			[]int{0}, true},
		{"ready ones first", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80",
			append(many(900, true, 0), many(200, false, 100)...)...)}, []int{900}, []int{100}, true},
		{"too many that are ready",
			[]*discoveryv1.EndpointSlice{slice("IPv4", "web:80", append(many(1100, true, 0), many(200, false, 100)...)...)},
			[]int{1000}, []int{0}, true},
		{"of each subset a part", []*discoveryv1.EndpointSlice{slice("IPv4", "web:80", many(1500, true, 0)...),
			slice("IPv4", "web:81", many(500, true, 100)...)}, []int{750, 250}, []int{0, 0}, true},
	} {
		got, truncated := Of(c.slices, discoveryv1.AddressTypeIPv4)
		var ready, notReady []int
		for _, s := range got {
			ready, notReady = append(ready, len(s.Addresses)), append(notReady, len(s.NotReadyAddresses))
		}
		if fmt.Sprint(ready, notReady, truncated) != fmt.Sprint(c.ready, c.notReady, c.truncated) {
			t.Errorf("%s: %v ready, %v not, truncated: %v; want %v, %v, %v", c.name, ready, notReady, truncated, c.ready,
				c.notReady, c.truncated)
		}
	}
}

func TestLeaves(t *testing.T) {
	of := func(slices ...*discoveryv1.EndpointSlice) *Endpoints {
		subsets, _ := Of(slices, discoveryv1.AddressTypeIPv4)
		return &Endpoints{Subsets: subsets}
	}
	two, one := of(slice("IPv4", "web:80", at("10.2.0.1"), at("10.2.0.2"))),
		of(slice("IPv4", "web:80", at("10.2.0.1"), is(false, false, "10.2.0.2")))
	if !RemovesReadyAddress(two, one) || RemovesReadyAddress(one, two) {
		t.Errorf("of two to one: %v; of one to two: %v", RemovesReadyAddress(two, one), RemovesReadyAddress(one, two))
	}
}
