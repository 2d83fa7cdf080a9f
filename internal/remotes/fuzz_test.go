package remotes

import (
	"encoding/json"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// FuzzRemoteCluster: whatever a RemoteCluster says, beside one that is in effect: there is no panic, it is accepted or
// refused with a reason, the other stays in effect, the broker has a valid configuration, and what is stored for a
// restart is decided in the same way again.
func FuzzRemoteCluster(f *testing.F) {
	for _, spec := range []string{
		"{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24]}",
		"{podSubnets: [10.2.0.0/17], nodeSubnets: [192.0.2.0/24]}",
		"{podSubnets: [10.3.0.0/16, fd03::/48], nodeSubnets: [192.0.2.0/24], servicePrefix: p, encryption: permissive, " +
			"wireguard: {listenPort: 7775, mtu: 1280, probePort: 0, addressFamily: IPv6, persistentKeepalive: 25s, " +
			"keyMaxAge: 24h}, limits: {services: 1, nodes: 2}}",
		"{broker: {address: 'b:1'}, export: {rules: [{kinds: [services], namespaces: [a], selector: {matchExpressions: " +
			"[{key: k, operator: In, values: [v]}]}, action: Offer}]}}",
		"{trustBundle: x, wireguard: {listenPort: 70000, mtu: -1, persistentKeepalive: 1y, probePort: 65536}}",
		"{podSubnets: ['10.3.0.0/16%eth0', '::ffff:10.3.0.0/112', 10.3.0.1/16], nodeSubnets: [null]}",
	} {
		f.Add("c3", `{"apiVersion": "semaphore.uw.io/v1alpha1", "kind": "RemoteCluster", "metadata": {"name": "c3"}, "spec": `+
			spec+"}", uint16(0))
	}
	f.Add("c1", "null", uint16(7775))
	broker := own(f, "")
	c2 := at(f, 1, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [198.51.100.0/24]}")
	f.Fuzz(func(t *testing.T, name, text string, port uint16) {
		document, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return
		}
		before := Decide(broker, Objects{}, all(c2), nil).InEffect
		objects, names, _, err := Propose(before, []string{string(document)}, time.Unix(2_000_000, 0))
		if err != nil || len(names) == 0 {
			return
		}
		if names[0] == "c2" {
			return
		}
		d := Decide(broker, before, objects, map[string]uint16{names[0]: port})
		v := d.Verdicts[names[0]]
		_, in := d.InEffect[names[0]]
		if v.Reason == "" || v.Accepted() != in || !in && v.Message == "" {
			t.Fatalf("in effect: %v, verdict %+v", in, v)
		}
		if is := d.InEffect["c2"]; !sameSpec(is.Spec, c2.Spec) || is.ListenPort != before["c2"].ListenPort ||
			!d.Verdicts["c2"].Accepted() {
			t.Fatalf("c2 is %+v, %+v", is, d.Verdicts["c2"])
		}
		if d.Broker == nil || len(d.Broker.Remotes) == 0 {
			t.Fatalf("the broker has no configuration beside %+v", d.InEffect)
		}
		if o, in := d.InEffect[names[0]]; in {
			if _, err := ExportRules(&o.Spec); err != nil {
				t.Error(err)
			}
		}
		written, err := json.Marshal(d.InEffect)
		if err != nil {
			t.Fatal(err)
		}
		stored := Objects{}
		if err := json.Unmarshal(written, &stored); err != nil {
			t.Fatal(err)
		}
		again := Decide(broker, stored, objects, map[string]uint16{names[0]: port})
		if a := again.Verdicts[names[0]]; a.Reason != v.Reason && v.Reason == finding.Accepted {
			t.Errorf("accepted, and after a restart %+v", a)
		}
	})
}
