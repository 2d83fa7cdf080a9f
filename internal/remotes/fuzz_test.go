package remotes

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// FuzzRemoteCluster: whatever a RemoteCluster says, in its metadata and status, too, beside one that is in effect:
// there is no panic, it is accepted or refused with a reason, the other stays in effect, the broker has a valid
// configuration, and what is stored for a restart is decided in the same way again.
func FuzzRemoteCluster(f *testing.F) {
	for _, spec := range []string{
		"{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24]}",
		"{podSubnets: [10.2.0.0/17], nodeSubnets: [192.0.2.0/24]}",
		"{podSubnets: [10.3.0.0/16, fd03::/48], nodeSubnets: [192.0.2.0/24], servicePrefix: p, encryption: permissive, " +
			"wireguard: {listenPort: 7775, mtu: 1280, probePort: 0, addressFamily: IPv6, persistentKeepalive: 25s, " +
			"keyMaxAge: 24h}, size: small, limits: {services: 1, nodes: 2}}",
		"{broker: {address: 'b:1'}, export: {rules: [{kinds: [services], namespaces: [a], selector: {matchExpressions: " +
			"[{key: k, operator: In, values: [v]}]}, action: Offer}]}}",
		"{trustBundle: x, wireguard: {listenPort: 70000, mtu: -1, persistentKeepalive: 1y, probePort: 65536}}",
		"{podSubnets: ['10.3.0.0/16%eth0', '::ffff:10.3.0.0/112', 10.3.0.1/16], nodeSubnets: [null]}",
	} {
		f.Add("c3", `{"apiVersion": "semaphore.uw.io/v1alpha1", "kind": "RemoteCluster", `+
			`"metadata": {"name": "c3"}, "spec": `+
			spec+"}", uint16(0))
	}
	f.Add("c1", "null", uint16(7775))
	f.Add("c3", `{apiVersion: semaphore.uw.io/v1alpha1, kind: RemoteCluster, metadata: {name: "c3\u202e", uid: c2, `+
		`creationTimestamp: "1969-01-01T00:00:00Z", generation: -1, labels: {a: b}, annotations: {a: "\x00"}, finalizers: `+
		`[x]}, `+
		`spec: {podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24]}, status: {listenPort: 65537}}`, uint16(0))
	broker := own(f, "")
	c2 := at(f, 1, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [198.51.100.0/24]}")
	f.Fuzz(func(t *testing.T, name, text string, port uint16) {
		document, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return
		}
		before := Decide(broker, Objects{}, all(c2), nil).InEffect
		objects, names, err := ReadDocuments([]string{string(document)}, time.Unix(2_000_000, 0))
		if err != nil || len(names) == 0 {
			return
		}
		if names[0] == "c2" {
			return
		}
		var applied v1alpha1.RemoteCluster
		if err := yaml.Unmarshal(document, &applied); err != nil {
			t.Fatalf("%q is proposed, and cannot be read: %v", document, err)
		}
		objects[names[0]] = Of(&applied, "d1") // with its own age, generation and port
		maps.Copy(objects, before)
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
		written := testkit.Value(json.Marshal(d.InEffect))(t)
		stored := testkit.Value(ReadObjects(string(written)))(t)
		again := Decide(broker, stored, objects, map[string]uint16{names[0]: port})
		if a := again.Verdicts[names[0]]; a.Reason != v.Reason && v.Reason == finding.Accepted {
			t.Errorf("accepted, and after a restart %+v", a)
		}
	})
}

// FuzzStored: whatever a part finds where it stored the RemoteClusters in effect, there is an error, or only existing
// objects are in effect, each with a spec that is valid beside the others, and the part has a configuration.
func FuzzStored(f *testing.F) {
	const spec = `"spec": {"podSubnets": ["10.2.0.0/16"], "nodeSubnets": ["198.51.100.0/24"]}`
	for _, text := range []string{
		"null", "{}", "[]", `{"c2": null}`, `{"c2": {"name": "c2", "listenPort": 7776, ` + spec + `}}`,
		`{"c2": {"name": "c9", ` + spec + `}}`, `{"c1": {"name": "c1", ` + spec + `}, "c3": {"name": "c3", ` + spec + `}}`,
		`{"c2": {"name": "c2", "created": "0001-01-01T00:00:00Z", "spec": {"podSubnets": ["10.1.0.0/16"]}}}`,
		`{"c2": {"name": "c2", "spec": {"trustBundle": "x", "wireguard": {"listenPort": -1, "mtu": 70000}}}}`,
	} {
		f.Add(text)
	}
	broker := own(f, "")
	objects := all(at(f, 1, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [198.51.100.0/24]}"),
		at(f, 2, "c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24]}"))
	f.Fuzz(func(t *testing.T, text string) {
		before, err := ReadObjects(text)
		if err != nil {
			return
		}
		if before == nil {
			t.Fatalf("%q is nothing, without an error", text)
		}
		d := Decide(broker, before, objects, nil)
		for name, o := range d.InEffect {
			if _, there := objects[name]; !there || o.Name != name {
				t.Fatalf("%q has %s in effect, which no RemoteCluster is called", text, name)
			}
		}
		if _, wrong := broker.WithRemotes((&decider{own: broker}).remotes(d.InEffect)); len(wrong) > 0 {
			t.Fatalf("%q leads to a configuration with faults: %v", text, wrong)
		}
		if d.Broker == nil || len(d.Verdicts) != len(objects) {
			t.Fatalf("%q leads to %+v", text, d)
		}
	})
}
