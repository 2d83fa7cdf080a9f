package config

import (
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// fuzz checks that a file, whatever it contains, causes no panic, that the result is either an error or a value, and
// that a value that is written and read again is equal.
func fuzz[T any, P interface {
	*T
	validator
}](f *testing.F, seeds ...string) {
	for _, s := range append(seeds, "", "null", "[]", "{", "a: &a [*a]", "---\n---\n", "cluster: c1\n...\n", "? x", "\x00",
		"<<: {cluster: c1}") {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse[T, P](data)
		if (err == nil) == (c == nil) {
			t.Fatalf("value %v and error %v", c, err)
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		written := testkit.Value(yaml.Marshal(c))(t)
		again, err := Parse[T, P](written)
		if err != nil {
			t.Fatalf("what was read is refused once written out: %v\n%s", err, written)
		}
		if !reflect.DeepEqual(c, again) {
			t.Errorf("read %+v, and read again %+v", c, again)
		}
	})
}

func FuzzExporter(f *testing.F) {
	fuzz[Exporter](f,
		"cluster: c1\nlocalBroker: {address: 'b:1'}\n",
		"cluster: c1\nfeatures: [policy]\nlocalBroker: {cluster: c2, address: '[::1]:1'}\nkube: {qps: 1, "+
			"kubeConfigPath: k}\nlisten: {http: ':1', debug: ':2', debugSocket: s}\nmirrorSelector: a=b\nglobalSelector: 'a "+
			"in (b)'\nlabelDomains: [d]\ntls: {certFile: c, keyFile: k, bundleDir: d}\n")
}

func FuzzBroker(f *testing.F) {
	fuzz[described](f,
		"cluster: c1\nremotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]\n",
		"cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: ['fd00::/48'], nodeSubnets: "+
			"[10.0.0.0/24], servicePrefix: p, wireguard: {listenPort: 1, mtu: 1280, persistentKeepalive: "+
			"25s}}]\nmanageIPPools: true\nmirrorNamespace: m\nagents: {namespace: n, serviceAccount: s, audience: a}\nlisten: "+
			"{federation: ':1', peering: ':2'}\n",
		"cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: "+
			"[172.16.0.0/12]}]\nslices: {maxEndpoints: 9}\nglobalServices: {podSubnets: [10.1.0.0/17], silentAfter: 1m, "+
			"settle: 0s, localZones: [z], limits: {services: 1}, rules: [{namespaces: [n], names: [m], prefer: [c1, c2], "+
			"minReady: 2, whenGone: keep}, {}]}\n")
}

func FuzzAgent(f *testing.F) {
	fuzz[Agent](f,
		"cluster: c1\n",
		"cluster: c1\nbackend: kernel\nwgKeyPath: /k\nstateFile: /s\nadoptFrom: [semaphore-wireguard]\nremoveKeys: "+
			"true\nbroker: {address: 'b:1', bundleFile: b, tokenFile: t}\nlisten: {http: ':1', debugSocket: s}\n")
}
