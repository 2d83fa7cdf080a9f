package naming

import "testing"

// FuzzNames: names that are joined can be split into the same parts, and the kernel accepts the name of a device.
func FuzzNames(f *testing.F) {
	f.Add("c2", "shop", "web", 2)
	f.Add("a-cluster-with-a-long-name", "a-b", "c.part-3", 1)
	f.Add("c2", "shop", "web.part-02", 1<<30)
	f.Fuzz(func(t *testing.T, cluster, namespace, name string, part int) {
		for _, key := range []string{PubKeyAnnotation(cluster), EndpointAnnotation(cluster)} {
			if got, ok := WireGuardAnnotationCluster(key); ok != (cluster != "") || got != cluster {
				t.Errorf("%q is of %q, %t", key, got, ok)
			}
		}
		if device := Device(cluster); len(device) > maxInterfaceName || cluster != "" &&
			!IsDevice(device, DeviceAlias(cluster)) {
			t.Errorf("the device of %q is %q", cluster, device)
		}
		if _, of := SplitSetPart(ClusterLabel(cluster) + "-" + namespace); of > 1 {
			return // the name of a namespace has no dot
		}
		set := Set(cluster, namespace, name)
		if got, of := SplitSetPart(set); got != set || of != 1 {
			t.Errorf("the set %q is taken for part %d of %q", set, of, got)
		}
		if part > 0 {
			if got, of := SplitSetPart(SetPart(set, part)); got != set || of != part {
				t.Errorf("%q is part %d of %q", SetPart(set, part), of, got)
			}
		}
	})
}
