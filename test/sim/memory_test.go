package sim

import (
	"fmt"
	"os"
	"testing"
)

// TestASuccessionWithoutAChangeWritesNothing plays seeds of leaders that follow one another while nothing changes.
func TestASuccessionWithoutAChangeWritesNothing(t *testing.T) {
	from, n := uint64(1), uint64(200)
	if testing.Short() {
		n = 60
	}
	if os.Getenv("SEEDS") != "" {
		from, n = seeds(t)
	}
	if os.Getenv("SEED") != "" {
		from, n = variable(t, "SEED", 0), 1
	}
	play(t, from, n, Memory, func(f *Failure, seed uint64) string {
		return fmt.Sprintf("%v\nagain: SEED=%d go test ./test/sim -run '%s$'", f, seed, t.Name())
	})
}

// forgetting are mistakes by which a new leader takes less from what its predecessor wrote. Not here is what a
// succession without a change does not show: the owner that writes.Decide compares, since a mirror waits for it
// already.
var forgetting = []mistake{
	{"existing endpoints are not adopted", "memory", []edit{{"broker/mirror/endpoints.go",
		"|| !slices.Contains(w.clusters, cluster) || w.complete[cluster] {",
		"|| !slices.Contains(w.clusters, cluster) || w.complete[cluster] || service != \"\" {"}}},
	{"a name is taken before its owner is complete", "memory", []edit{{"broker/mirror/target.go",
		"return other != cluster && slices.Contains(t.plan.clusters, other) && !t.plan.complete[other]",
		"return other == cluster && slices.Contains(t.plan.clusters, other) && !t.plan.complete[other]"}}},
	{"a remote that was gone counts as present until it is known", "memory", []edit{{"broker/mirror/global.go",
		"Gone: t.isGone(cluster)", "Gone: t.plan.gone[cluster]"}}},
	{"the annotation of gone clusters forgets those that are not known", "memory", []edit{{"broker/mirror/await.go",
		"return !t.isGone(cluster)", "return !t.plan.gone[cluster]"}}},
	{"a global service forgets clusters that are not complete", "memory", []edit{{"broker/mirror/global.go",
		"return !t.plan.complete[cluster] && slices.Contains(t.clustersBefore(), cluster)", "return false"}}},
	{"a global service forgets its settings", "memory", []edit{{"broker/choice/settings.go",
		"return SettingsIn(existing.Annotations).Complete()", "return Settings{}.Complete()"}}},
	{"a global service forgets its ports", "memory", []edit{{"broker/choice/spec.go",
		"	for _, p := range existing.Spec.Ports {", "	for _, p := range existing.Spec.Ports[:0] {"}}},
	{"a global service forgets that an own name leads to it", "memory", []edit{{"broker/mirror/ownname.go",
		"		before = s.Annotations[naming.AnnotationOwnName]\n", ""}}},
	{"hostnames of silent clusters are forgotten", "memory", []edit{{"broker/mirror/endpoints.go",
		"	if m == nil {\n", "	if m == nil || m.unconfirmed {\n"}}},
	{"an own name forgets the families of its Service", "memory", []edit{{"broker/choice/spec.go",
		"	for _, family := range existing.Spec.IPFamilies {", "	for _, family := range existing.Spec.IPFamilies[:0] {"}}},
	{"a Service forgets that it is headless", "memory", []edit{{"broker/mirror/target.go",
		"now.headless = s.Spec.ClusterIP == corev1.ClusterIPNone", "now.headless = false"}}},
	{"a Service forgets that it has hints", "memory", []edit{{"broker/mirror/target.go",
		"now.hints = s.Annotations[corev1.AnnotationTopologyMode] == topologyAuto", "now.hints = false"}}},
	{"unused endpoints count as not ready", "memory", []edit{{"broker/choice/conditions.go",
		"ptr.Deref(e.Conditions.Ready, true) || unused[e.Addresses[0]]", "ptr.Deref(e.Conditions.Ready, true)"}}},
	{"a derived Service forgets its order", "memory", []edit{{"broker/mirror/derived.go",
		"	before := t.clustersBefore()\n", "	before := t.clustersBefore()[:0]\n"}}},
	{"a derived Service is decided before what exists is known", "memory", []edit{{"broker/mirror/derived.go",
		"	if !w.ordered {\n		return\n	}\n", ""}}},
	{"a derived Service forgets the ports of silent clusters", "memory", []edit{{"broker/choice/rule.go",
		"m.Service.Ports = inOrderOf(existing, unionOfPorts(append(services, &semaphorev1.Service{Ports: existing})))", ""}}},
	{"a derived Service forgets the families of silent clusters", "memory", []edit{{"broker/choice/rule.go",
		"m.Service.IpFamilies = existingFamilies(m.Service.IpFamilies, e.Existing)", ""}}},
	{"what a remote has not confirmed is deleted", "memory", []edit{{"broker/apply/writes/retain.go",
		"return !g.confirmed || !g.Heard()", "return g.holds()"}}},
	{"addresses are assigned to parts without regard to what exists", "memory", []edit{
		{"broker/policy/parts.go", "	if part > 0 {\n		return part // a write that is under way can fail\n	}\n",
			"	if part >= 0 {\n		return 0\n	}\n"},
		{"broker/policy/parts.go", "if of != p.baseName(set) || home == object || r.isIn(ip, home) {",
			"if of != p.baseName(set) || home != \"\" || r.isIn(ip, home) {"}}},
	{"existing objects come too late for parts", "memory", []edit{{"broker/policy/parts.go",
		"if of != p.baseName(set) || home == object || r.isIn(ip, home) {",
		"if of != p.baseName(set) || home != \"\" || r.isIn(ip, home) {"}}},
	{"stored peers are not restored", "memory", []edit{{"broker/replica/replica.go",
		"		changes = append(changes, Change{Key: key, New: taken})\n	}\n	return changes",
		"		k.remove(key)\n	}\n	return changes"}}},
	{"presence is known by the nodes of the leader before", "memory", []edit{{"broker/services/services.go",
		"if r := e.remotes[cluster]; r != nil && e.setNodes(r, nodes) {",
		"e.plan.Apply(cluster, nil, e.now())\n	if r := e.remotes[cluster]; r != nil && e.setNodes(r, nodes) {"}}},
	{"stored RemoteClusters are not in effect", "memory", []edit{{"internal/remotes/tracker.go",
		"	maps.Copy(t.objects, before)\n", ""}}},
}
