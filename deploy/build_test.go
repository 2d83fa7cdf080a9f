// Package deploy_test checks the manifests: each kustomization builds, the values agree with the programs' defaults,
// and a real kube-apiserver accepts them and gives each part the permissions that it needs and no others.
package deploy_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// strict decodes Kubernetes types and rejects unknown fields.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// build is `kubectl kustomize`, without a process for each of a hundred calls, and decodes the objects.
func build(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	if testing.Short() {
		t.Skip("builds manifests, which -short leaves out")
	}
	built := testkit.Value(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir))(t)
	var objects []runtime.Object
	for _, resource := range built.Resources() {
		doc := resource.MustYaml()
		data, err := yaml.YAMLToJSONStrict([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v\n%s", dir, err, doc)
		}
		object, _, err := strict.Decode(data, nil, nil)
		if runtime.IsNotRegisteredError(err) { // cert-manager's, see certmanager_test.go
			object, err = foreign(data)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", dir, err, doc)
		}
		objects = append(objects, object)
	}
	return objects
}

// find returns the only object of a type with the name, or with the name and a hash suffix.
func find[T runtime.Object](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, o := range objects {
		object, ok := o.(T)
		if !ok {
			continue
		}
		if n := any(object).(metav1.Object).GetName(); n == name || strings.HasPrefix(n, name+"-") && len(n) == len(name)+11 {
			return object
		}
	}
	var none T
	t.Fatalf("no %T %s", none, name)
	return none
}

// kustomizations returns the directories with a kustomization of the given kind.
func kustomizations(t *testing.T, kind string) []string {
	t.Helper()
	var dirs []string
	must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var k struct{ Kind string }
		if err := yaml.Unmarshal(data, &k); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if k.Kind == kind {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	}))
	return dirs
}

// overlay writes a kustomization. DEPLOY in its text stands for this directory.
func overlay(t *testing.T, text string) string {
	t.Helper()
	// kustomize accepts only relative paths, so the path must have no symlinks.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	here := testkit.Value(filepath.Abs("."))(t)
	if here, err = filepath.EvalSymlinks(here); err != nil {
		t.Fatal(err)
	}
	rel := testkit.Value(filepath.Rel(dir, here))(t)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(text, "DEPLOY", rel)),
		0o644))
	return dir
}

func TestEveryKustomizationBuilds(t *testing.T) {
	for _, dir := range kustomizations(t, "Kustomization") {
		t.Run(dir, func(t *testing.T) {
			for _, o := range build(t, dir) {
				if o.(metav1.Object).GetLabels()[naming.LabelManagedBy] == naming.ManagedByBroker {
					t.Errorf("%T %s has the label of what the broker owns: cleanup would delete it", o, o.(metav1.Object).GetName())
				}
			}
		})
	}
	for _, dir := range kustomizations(t, "Component") {
		if strings.HasPrefix(dir, "cleanup") || dir == "cluster-name" { // tested with the example
			continue
		}
		t.Run(dir, func(t *testing.T) {
			build(t, overlay(t, "resources: [DEPLOY/agent, DEPLOY/broker, DEPLOY/exporter]\ncomponents: [DEPLOY/"+dir+"]\n"))
		})
	}
}

// TestExampleFits checks that the parts of the example, from which users start, fit together: the programs accept the
// files, and the manifests agree with the programs' defaults.
func TestExampleFits(t *testing.T) {
	objects := build(t, "example/c1")
	exporter := parse(t, objects, "semaphore-exporter", config.Parse[config.Exporter])
	broker := parse(t, objects, "semaphore-broker", config.Parse[config.Broker])
	agent := parse(t, objects, "semaphore-agent", config.Parse[config.Agent])
	for _, got := range []string{exporter.Cluster, broker.Cluster, agent.Cluster} {
		equal(t, "cluster of a part", got, "c1")
	}
	pods := map[string]corev1.PodSpec{
		"exporter": find[*appsv1.Deployment](t, objects, "semaphore-exporter").Spec.Template.Spec,
		"broker":   find[*appsv1.Deployment](t, objects, "semaphore-broker").Spec.Template.Spec,
		"agent":    find[*appsv1.DaemonSet](t, objects, "semaphore-agent").Spec.Template.Spec,
	}

	// The identity of agents, the audience of their token, and the address of their broker.
	token := volume(t, pods["agent"], "token").Projected.Sources[0].ServiceAccountToken
	equal(t, "audience of the agents' token", token.Audience, broker.Agents.Audience)
	equal(t, "ServiceAccount of the agents", pods["agent"].ServiceAccountName, broker.Agents.ServiceAccount)
	equal(t, "namespace of the agents", find[*appsv1.DaemonSet](t, objects, "semaphore-agent").Namespace,
		broker.Agents.Namespace)
	peering := find[*corev1.Service](t, objects, "semaphore-broker")
	equal(t, "address of the broker", fmt.Sprintf("%s.%s.svc:%d", peering.Name, peering.Namespace,
		peering.Spec.Ports[0].Port), agent.Broker.Address)
	federation := find[*corev1.Service](t, objects, "semaphore-broker-federation")
	equal(t, "its own broker", exporter.LocalBroker.Cluster, "c1")
	equal(t, "address of its own broker", exporter.LocalBroker.Address,
		fmt.Sprintf("%s.%s.svc:%d", federation.Name, federation.Namespace, federation.Spec.Ports[0].Port))
	if own := broker.Own(); own == nil || own.PodSubnets[0] != broker.LocalSubnets[0] {
		t.Errorf("the broker takes its own exporter as %v", own)
	}
	equal(t, "token", mounted(pods["agent"], "token")+"/"+token.Path, agent.Broker.TokenFile)
	equal(t, "keys", mounted(pods["agent"], "keys"), agent.WGKeyPath)
	// Nodes of an existing semaphore-wireguard keep their keys.
	equal(t, "keys on the host", volume(t, pods["agent"], "keys").HostPath.Path, agent.WGKeyPath)
	equal(t, "bundle", mounted(pods["agent"], "bundles")+"/c1.pem", agent.Broker.BundleFile)
	equal(t, "namespace of the mirrors", broker.MirrorNamespace,
		find[*rbacv1.Role](t, objects, "semaphore-broker-services").Namespace)

	// The agents bound their broker by the broker's own file, in a ConfigMap whose name does not change with its content.
	file := find[*corev1.ConfigMap](t, objects, "semaphore-subnets").Data["broker.yaml"]
	equal(t, "subnets on the agents", mounted(pods["agent"], "subnets")+"/broker.yaml", agent.SubnetsFile)
	equal(t, "volume of the subnets", volume(t, pods["agent"], "subnets").Projected.Sources[0].ConfigMap.Name,
		"semaphore-subnets")
	equal(t, "volume of the remotes", volume(t, pods["agent"], "subnets").Projected.Sources[1].ConfigMap.Name,
		"semaphore-remotes")
	subnets := subnetsOfAgents(file, agent.Cluster)
	equal(t, "problems", fmt.Sprint(subnets.Problems), "[]")
	equal(t, "local subnets", fmt.Sprint(subnets.Local), fmt.Sprint(broker.LocalPrefixes))
	equal(t, "remotes", fmt.Sprint(len(subnets.Remotes)), fmt.Sprint(len(broker.Remotes)))
	for _, r := range broker.Remotes {
		of := subnets.Remotes[r.Name]
		equal(t, "subnets and port of "+r.Name, fmt.Sprint(of.PodPrefixes, of.NodePrefixes, of.WireGuard.ListenPort,
			of.Encryption),
			fmt.Sprint(r.PodPrefixes, r.NodePrefixes, r.WireGuard.ListenPort, r.Encryption))
	}
	// Without an overlay for it, the agents report that and do not run.
	bare := find[*corev1.ConfigMap](t, build(t, "broker"), "semaphore-subnets").Data["broker.yaml"]
	s := subnetsOfAgents(bare, "c1")
	if s.Known || !strings.Contains(fmt.Sprint(s.Problems), "broker.yaml: the file is empty") {
		t.Errorf("without an overlay the agents' subnets are taken: %+v", s)
	}

	// Files, listeners and sockets.
	for part, tls := range map[string]config.TLS{"exporter": exporter.TLS, "broker": broker.TLS} {
		equal(t, part+": certificate", mounted(pods[part], "tls")+"/"+corev1.TLSCertKey, tls.CertFile)
		equal(t, part+": key", mounted(pods[part], "tls")+"/"+corev1.TLSPrivateKeyKey, tls.KeyFile)
		equal(t, part+": bundles", mounted(pods[part], "bundles"), tls.BundleDir)
	}
	for _, part := range []string{"exporter", "broker", "agent"} {
		equal(t, part+": configuration", mounted(pods[part], "config"), "/etc/semaphore/config.yaml")
		equal(t, part+": command", strings.Join(pods[part].Containers[0].Command, " "), "/usr/local/bin/semaphore-"+part)
	}
	for _, c := range []struct{ part, port, listen, socket string }{
		{"exporter", "http", exporter.Listen.HTTP, exporter.Listen.DebugSocket},
		{"broker", "http", broker.Listen.HTTP, broker.Listen.DebugSocket},
		{"broker", "federation", broker.Listen.Federation, broker.Listen.DebugSocket},
		{"broker", "peering", broker.Listen.Peering, broker.Listen.DebugSocket},
		{"agent", "http", agent.Listen.HTTP, agent.Listen.DebugSocket},
	} {
		i := slices.IndexFunc(pods[c.part].Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == c.port })
		equal(t, c.part+": port "+c.port, fmt.Sprintf(":%d", pods[c.part].Containers[0].Ports[i].ContainerPort), c.listen)
		equal(t, c.part+": debug socket", mounted(pods[c.part], "run"), filepath.Dir(c.socket))
	}

	// Each has two replicas, of which one leads. Both are ready, so that a rollout replaces one at a time, and a drained
	// node evicts one.
	for part, election := range map[string]config.LeaderElection{"exporter": exporter.LeaderElection,
		"broker": broker.LeaderElection} {
		d := find[*appsv1.Deployment](t, objects, "semaphore-"+part)
		equal(t, part+": replicas", fmt.Sprint(*d.Spec.Replicas), "2")
		if r := d.Spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable.IntValue() != 0 || r.MaxSurge.IntValue() != 1 ||
			d.Spec.ProgressDeadlineSeconds != nil {
			t.Errorf("%s: strategy %v, progress deadline %v", part, d.Spec.Strategy, d.Spec.ProgressDeadlineSeconds)
		}
		budget := find[*policyv1.PodDisruptionBudget](t, objects, "semaphore-"+part)
		equal(t, part+": pods that may be evicted", budget.Spec.MaxUnavailable.String(), "1")
		if !maps.Equal(budget.Spec.Selector.MatchLabels, d.Spec.Selector.MatchLabels) {
			t.Errorf("%s: the budget is for %v", part, budget.Spec.Selector)
		}
		// The replicas create the Lease, because kubectl would create it after the Deployments, which is too late.
		if slices.ContainsFunc(objects, func(o runtime.Object) bool { _, is := o.(*coordinationv1.Lease); return is }) {
			t.Errorf("%s: there is a Lease", part)
		}
		role := find[*rbacv1.Role](t, objects, election.Lease)
		equal(t, part+": namespace of the right to the lease", role.Namespace, d.Namespace)
		equal(t, part+": the lease", fmt.Sprint(role.Rules[0].ResourceNames), fmt.Sprint([]string{election.Lease}))
		if !election.Enabled || election.Namespace != "" {
			t.Errorf("%s: leader election %+v; want it where the pods are", part, election)
		}
		preferred := d.Spec.Template.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		apart := preferred[0].PodAffinityTerm
		if !maps.Equal(apart.LabelSelector.MatchLabels, d.Spec.Template.Labels) {
			t.Errorf("%s: kept apart from %v, and is %v", part, apart.LabelSelector.MatchLabels, d.Spec.Template.Labels)
		}
	}
	// The leader may write only the slices of the Services without a selector.
	var writable, wanted []string
	for _, rule := range find[*rbacv1.Role](t, objects, "semaphore-broker-leader").Rules {
		if slices.Contains(rule.Resources, "endpointslices") {
			writable = append(writable, rule.ResourceNames...)
		}
	}
	for _, name := range broker.Listen.Services {
		wanted = append(wanted, leader.SliceName(name, discoveryv1.AddressTypeIPv4),
			leader.SliceName(name, discoveryv1.AddressTypeIPv6))
		service := find[*corev1.Service](t, objects, name)
		if len(service.Spec.Selector) > 0 {
			t.Errorf("Service %s has a selector, and leads to standbys", name)
		}
		for _, port := range service.Spec.Ports {
			if !slices.ContainsFunc(pods["broker"].Containers[0].Ports,
				func(p corev1.ContainerPort) bool { return p.Name == port.Name && p.ContainerPort == port.Port }) {
				t.Errorf("Service %s: port %s is none of the broker's", name, port.Name)
			}
		}
	}
	equal(t, "slices that the leader may write", fmt.Sprint(writable), fmt.Sprint(wanted))
	for _, o := range objects {
		service, ok := o.(*corev1.Service)
		if ok && service.Spec.Selector["app.kubernetes.io/component"] == "broker" {
			t.Errorf("Service %s leads to standbys", service.Name)
		}
	}
	for _, name := range []string{"POD_NAME", "POD_NAMESPACE", "POD_UID", "POD_IPS", "NODE_NAME"} {
		if !slices.ContainsFunc(pods["broker"].Containers[0].Env, func(e corev1.EnvVar) bool {
			return e.Name == name &&
				e.ValueFrom != nil
		}) {
			t.Errorf("the broker does not learn its %s", name)
		}
	}

	// The security context has the least privileges.
	for part, pod := range pods {
		sc := pod.Containers[0].SecurityContext
		if sc.Privileged != nil || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem ||
			!slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: security context %v", part, sc)
		}
		add := []corev1.Capability(nil)
		if part == "agent" {
			add = []corev1.Capability{"NET_ADMIN"}
		} else if !*pod.SecurityContext.RunAsNonRoot {
			t.Errorf("%s runs as root", part)
		}
		if !slices.Equal(sc.Capabilities.Add, add) {
			t.Errorf("%s: capabilities %v, want %v", part, sc.Capabilities.Add, add)
		}
	}
}

// TestClusterNameTwiceIsRefused checks that the cluster's name is written only once: a second one in a file would be
// ambiguous.
func TestClusterNameTwiceIsRefused(t *testing.T) {
	dir := overlay(t, `
resources: [DEPLOY/agent]
components: [DEPLOY/cluster-name]
configMapGenerator:
  - {name: semaphore-cluster, namespace: semaphore, literals: [name=c1]}
  - {name: semaphore-agent, namespace: semaphore, behavior: merge, literals: ["config.yaml=cluster: c2"]}
`)
	text := find[*corev1.ConfigMap](t, build(t, dir), "semaphore-agent").Data["config.yaml"]
	if c, err := config.Parse[config.Agent]([]byte(text)); err == nil {
		t.Errorf("taken, as %q:\n%s", c.Cluster, text)
	} else if !strings.Contains(err.Error(), `"cluster" already set`) {
		t.Errorf("error does not say that cluster is there twice: %v", err)
	}
}

// TestUserspaceWireGuard checks that userspace devices run in a separate container, which the agent uses through a
// socket.
func TestUserspaceWireGuard(t *testing.T) {
	objects := build(t, overlay(t, `
resources: [DEPLOY/agent]
components: [DEPLOY/features/userspace-wireguard]
images:
  - {name: ghcr.io/kube-semaphore/semaphore, newTag: v1.2.3}
`))
	pod := find[*appsv1.DaemonSet](t, objects, "semaphore-agent").Spec.Template.Spec
	if len(pod.Containers) != 2 || pod.Containers[0].Name != "agent" || pod.Containers[1].Name != "wireguard-go" {
		t.Fatalf("containers %v", pod.Containers)
	}
	agent, carrier := pod.Containers[0], pod.Containers[1]
	equal(t, "image", carrier.Image, agent.Image)
	socket := ""
	for _, e := range agent.Env {
		if e.Name == "SEMAPHORE_USERSPACE_SOCKET" {
			socket = e.Value
		}
	}
	equal(t, "command", strings.Join(carrier.Command, " "), "/usr/local/bin/semaphore-agent wireguard-go --serve "+socket)
	mounts := func(c corev1.Container) map[string]string {
		out := map[string]string{}
		for _, m := range c.VolumeMounts {
			out[m.Name] = m.MountPath
		}
		return out
	}
	if !strings.HasPrefix(socket, mounts(agent)["run"]+"/") || mounts(carrier)["run"] != mounts(agent)["run"] ||
		mounts(carrier)["wireguard-sockets"] != mounts(agent)["wireguard-sockets"] {
		t.Errorf("socket %s; the agent has %v, wireguard-go %v", socket, mounts(agent), mounts(carrier))
	}
	// It has no key, token or configuration.
	if got := slices.Sorted(maps.Keys(mounts(carrier))); !slices.Equal(got, []string{"run", "tun", "wireguard-sockets"}) {
		t.Errorf("wireguard-go has the volumes %v", got)
	}
	if !reflect.DeepEqual(carrier.SecurityContext, agent.SecurityContext) {
		t.Errorf("security contexts %v and %v", carrier.SecurityContext, agent.SecurityContext)
	}
}

// TestCleanupFollowsTheOverlay checks that the cleanup of an overlay has its configuration and volumes, and leaves
// nothing of it running.
func TestCleanupFollowsTheOverlay(t *testing.T) {
	dir := overlay(t, `
resources: [DEPLOY/example/c1]
components: [DEPLOY/features/userspace-wireguard, DEPLOY/cleanup]
images:
  - {name: ghcr.io/kube-semaphore/semaphore, newTag: v1.2.3}
`)
	objects := build(t, dir)
	job := find[*batchv1.Job](t, objects, "semaphore-cleanup").Spec.Template.Spec
	ds := find[*appsv1.DaemonSet](t, objects, "semaphore-cleanup").Spec.Template.Spec
	for _, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			t.Errorf("Deployment %s would run", o.Name)
		case *appsv1.DaemonSet:
			if o.Name != "semaphore-cleanup" {
				t.Errorf("DaemonSet %s would run", o.Name)
			}
		case *corev1.Service:
			for _, labels := range []map[string]string{find[*batchv1.Job](t, objects, "semaphore-cleanup").Spec.Template.Labels,
				find[*appsv1.DaemonSet](t, objects, "semaphore-cleanup").Spec.Template.Labels} {
				if labels["app.kubernetes.io/component"] == o.Spec.Selector["app.kubernetes.io/component"] {
					t.Errorf("Service %s would lead to a cleanup", o.Name)
				}
			}
		}
	}
	equal(t, "image of the Job", job.Containers[0].Image, "ghcr.io/kube-semaphore/semaphore:v1.2.3")
	equal(t, "image of the DaemonSet", ds.Containers[0].Image, "ghcr.io/kube-semaphore/semaphore:v1.2.3")
	equal(t, "ServiceAccount of the Job", job.ServiceAccountName, "semaphore-cleanup")
	equal(t, "configuration of the Job", volume(t, job, "config").ConfigMap.Name,
		find[*corev1.ConfigMap](t, objects, "semaphore-broker").Name)
	equal(t, "configuration of the DaemonSet", volume(t, ds, "config").ConfigMap.Name,
		find[*corev1.ConfigMap](t, objects, "semaphore-agent").Name)
	equal(t, "sockets of wireguard-go", mounted(ds, "wireguard-sockets"), "/var/run/wireguard")
	equal(t, "command of the Job", command(job), "/usr/local/bin/semaphore-broker cleanup")
	equal(t, "command of the DaemonSet", command(ds),
		"/usr/local/bin/semaphore-agent cleanup --keys --wait --listen :7774")
}

// TestDocumentedOverlays checks the other overlays in docs/install.md and docs/removal.md.
func TestDocumentedOverlays(t *testing.T) {
	kinds := func(t *testing.T, text string) []string {
		var got []string
		for _, o := range build(t, overlay(t, text)) {
			switch o.(type) {
			case *appsv1.Deployment, *appsv1.DaemonSet, *batchv1.Job, *rbacv1.ClusterRole:
				got = append(got, o.GetObjectKind().GroupVersionKind().Kind+"/"+o.(metav1.Object).GetName())
			}
		}
		slices.Sort(got)
		return got
	}
	for _, c := range []struct{ name, text, want string }{
		{"policy alone", `
resources: [DEPLOY/crds, DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker]
components: [DEPLOY/features/policy, DEPLOY/cluster-name]
configMapGenerator: [{name: semaphore-cluster, namespace: semaphore, literals: [name=c1]}]`,
			"ClusterRole/semaphore-broker-confined ClusterRole/semaphore-broker-policy ClusterRole/semaphore-broker-remotes " +
				"ClusterRole/semaphore-exporter-policy ClusterRole/semaphore-exporter-remotes " +
				"ClusterRole/semaphore-exporter-source ClusterRole/semaphore-viewer Deployment/semaphore-broker " +
				"Deployment/semaphore-exporter"},
		{"removal of encryption from the nodes", `
resources: [DEPLOY/namespace, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]
components: [DEPLOY/cleanup/nodes]`,
			"ClusterRole/semaphore-broker-confined ClusterRole/semaphore-broker-remotes " +
				"ClusterRole/semaphore-exporter-remotes ClusterRole/semaphore-exporter-source ClusterRole/semaphore-viewer " +
				"DaemonSet/semaphore-cleanup Deployment/semaphore-broker Deployment/semaphore-exporter"},
		{"removal of a feature's rights", `
resources: []
components: [DEPLOY/features/encryption]`,
			"ClusterRole/semaphore-broker-encryption ClusterRole/semaphore-exporter-encryption"},
		{"keys that stay", `
resources: [DEPLOY/agent]
components: [DEPLOY/cleanup/nodes]
patches:
  - target: {kind: DaemonSet, name: semaphore-cleanup}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/args, value: [cleanup, --wait, --listen, ":7774"]}`,
			"DaemonSet/semaphore-cleanup"},
	} {
		t.Run(c.name, func(t *testing.T) { equal(t, "objects", strings.Join(kinds(t, c.text), " "), c.want) })
	}
}

func command(pod corev1.PodSpec) string {
	return strings.Join(append(slices.Clone(pod.Containers[0].Command), pod.Containers[0].Args...), " ")
}

// parse parses the configuration file of a part like the part does.
func parse[T any](t *testing.T, objects []runtime.Object, name string, parser func([]byte) (*T, error)) *T {
	t.Helper()
	text := find[*corev1.ConfigMap](t, objects, name).Data["config.yaml"]
	c, err := parser([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return c
}

func volume(t *testing.T, pod corev1.PodSpec, name string) corev1.Volume {
	t.Helper()
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		t.Fatalf("no volume %s", name)
	}
	return pod.Volumes[i]
}

// mounted returns the mount path of a volume in the first container.
func mounted(pod corev1.PodSpec, volume string) string {
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.Name == volume {
			return m.MountPath
		}
	}
	return ""
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}
