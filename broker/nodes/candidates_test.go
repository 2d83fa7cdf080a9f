package nodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// TestCandidates: what is published of a node for c2, whose device listens on port 7775. An address with + is an
// ExternalIP.
func TestCandidates(t *testing.T) {
	const all, of = naming.ReachableAt, "c2." + naming.ReachableAt
	internal := []config.EndpointKind{config.InternalIP}
	public := []config.EndpointKind{config.ExternalIP, config.InternalIP}
	written := []config.EndpointKind{config.ByAnnotation, config.InternalIP}
	for _, test := range []struct {
		name        string
		kinds       []config.EndpointKind
		addresses   string
		annotations map[string]string
		family      config.Family
		endpoint    string
		candidates  string
		err         string
	}{
		{name: "the default ignores everything else", kinds: internal, addresses: "192.0.2.1 +203.0.113.1",
			annotations: map[string]string{all: "none"}, endpoint: "192.0.2.1:7775"},
		{name: "the default of a node without an address", kinds: internal, err: "no InternalIP"},
		{name: "public addresses come first", kinds: public, addresses: "192.0.2.1 +203.0.113.1 +2001:db8::1",
			endpoint: "203.0.113.1:7775", candidates: "203.0.113.1:7775,[2001:db8::1]:7775,192.0.2.1:7775"},
		{name: "the order is that of the configuration", kinds: []config.EndpointKind{config.InternalIP, config.ExternalIP},
			addresses: "192.0.2.1 +203.0.113.1", endpoint: "192.0.2.1:7775", candidates: "192.0.2.1:7775,203.0.113.1:7775"},
		{name: "of one family", kinds: public, addresses: "192.0.2.1 +203.0.113.1 +2001:db8::1", family: config.IPv6,
			endpoint: "[2001:db8::1]:7775", candidates: "[2001:db8::1]:7775"},
		{name: "no address of the kind: it calls", kinds: public[:1], addresses: "192.0.2.1", candidates: "none"},
		{name: "an address, and one with a forwarded port", kinds: written, addresses: "192.0.2.1",
			annotations: map[string]string{all: "203.0.113.7, 203.0.113.8:17775"}, endpoint: "203.0.113.7:7775",
			candidates: "203.0.113.7:7775,203.0.113.8:17775,192.0.2.1:7775"},
		{name: "that of the remote replaces that of all", kinds: written, addresses: "192.0.2.1",
			annotations: map[string]string{all: "none", of: "203.0.113.8:1"}, endpoint: "203.0.113.8:1",
			candidates: "203.0.113.8:1,192.0.2.1:7775"},
		{name: "none", kinds: written, addresses: "192.0.2.1", annotations: map[string]string{all: " none "},
			candidates: "none"},
		{name: "a name: the endpoint is the first address", kinds: written, addresses: "192.0.2.1",
			annotations: map[string]string{all: "vpn.example.org:17775"}, endpoint: "192.0.2.1:7775",
			candidates: "vpn.example.org:17775,192.0.2.1:7775"},
		{name: "a mistake takes nothing from the others", kinds: written, addresses: "192.0.2.1",
			annotations: map[string]string{all: "203.0.113.7:99999 [2001:db8::7]:1 -x- fe80::1%eth0"},
			endpoint:    "[2001:db8::7]:1", candidates: "[2001:db8::7]:1,192.0.2.1:7775",
			err: `annotation wireguard.semaphore.uw.io/reachable-at: "203.0.113.7:99999": the port is not a number`},
		{name: "too many", kinds: written, addresses: "192.0.2.1",
			annotations: map[string]string{all: "203.0.113.1,203.0.113.2,203.0.113.3,203.0.113.4"},
			endpoint:    "203.0.113.1:7775",
			candidates:  "203.0.113.1:7775,203.0.113.2:7775,203.0.113.3:7775,203.0.113.4:7775",
			err:         "the node has 5 endpoints, and 4 is the most"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := &corev1.Node{}
			n.Annotations = test.annotations
			for _, a := range strings.Fields(test.addresses) {
				kind := corev1.NodeInternalIP
				if strings.HasPrefix(a, "+") {
					kind = corev1.NodeExternalIP
				}
				n.Status.Addresses = append(n.Status.Addresses,
					corev1.NodeAddress{Type: kind, Address: strings.TrimPrefix(a, "+")})
			}
			e := endpoints{kinds: test.kinds, families: map[string]config.Family{"c2": test.family}}
			got, err := e.annotations(n, map[string]Tunnel{"c2": {ListenPort: 7775}})
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%v, want %q", err, test.err)
			}
			if got[naming.EndpointAnnotation("c2")] != test.endpoint ||
				got[naming.CandidatesAnnotation("c2")] != test.candidates {
				t.Errorf("%v; want %s and %s", got, test.endpoint, test.candidates)
			}
			n.Annotations = got
			if want := test.candidates == naming.Nowhere; slices.Contains(Calls(n), "c2") != want {
				t.Errorf("calls %v", Calls(n))
			}
			// Without the kinds, what was published goes.
			e.kinds = internal
			if got, _ := e.annotations(n, map[string]Tunnel{"c2": {ListenPort: 7775}}); test.addresses != "" &&
				(got[naming.EndpointAnnotation("c2")] != "192.0.2.1:7775" && test.family != config.IPv6 ||
					got[naming.CandidatesAnnotation("c2")] != "") {
				t.Error(fmt.Sprint(got))
			}
		})
	}
}
