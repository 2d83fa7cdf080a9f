package apply

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/resid"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/deploy"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// Paths of the manifests and of the overlay in kustomize's in-memory file system.
const (
	manifestsDir = "/deploy"
	overlayDir   = "/overlay"
)

// kustomizationType is that of the overlays' own file.
var kustomizationType = types.TypeMeta{APIVersion: types.KustomizationVersion, Kind: types.KustomizationKind}

// configMap returns kustomize's entry for a ConfigMap with files and literals.
func configMap(name, behavior string, files, literals []string) types.ConfigMapArgs {
	return types.ConfigMapArgs{GeneratorArgs: types.GeneratorArgs{Name: name, Namespace: fleet.DefaultNamespace,
		Behavior: behavior, KvPairSources: types.KvPairSources{FileSources: files, LiteralSources: literals}}}
}

// Overlay returns the files of the overlay that a person would write for these values. manifests is the path by which
// the overlay refers to the manifests, such as ../../deploy. It fails for a value that YAML cannot hold.
func Overlay(v Values, manifests string) (map[string][]byte, error) {
	k := types.Kustomization{TypeMeta: kustomizationType}
	for _, dir := range []string{"crds", "namespace", "exporter", "broker"} {
		k.Resources = append(k.Resources, path.Join(manifests, dir))
	}
	encrypts := v.Features.Has(config.Encryption)
	if encrypts {
		k.Resources = append(k.Resources, path.Join(manifests, "agent"))
	}
	for _, f := range v.Features {
		k.Components = append(k.Components, path.Join(manifests, "features", string(f)))
	}
	for _, c := range v.Components {
		k.Components = append(k.Components, path.Join(manifests, "features", c))
	}
	k.Components = append(k.Components, path.Join(manifests, "cluster-name"))
	k.ConfigMapGenerator = []types.ConfigMapArgs{
		configMap("semaphore-cluster", "", nil, []string{"name=" + v.Cluster}),
		configMap("semaphore-exporter", "merge", []string{"config.yaml=exporter.yaml"}, nil),
		configMap("semaphore-broker", "merge", []string{"config.yaml=broker.yaml"}, nil),
		configMap("semaphore-subnets", "merge", []string{"broker.yaml"}, policyKeys(v)),
	}
	files := map[string]any{"exporter.yaml": exporterConfig(v), "broker.yaml": brokerConfig(v)}
	if v.Namespace != fleet.DefaultNamespace {
		k.Namespace = v.Namespace
		if encrypts {
			files["agent.yaml"] = map[string]any{"broker": map[string]any{"address": "semaphore-broker." + v.Namespace +
				".svc:8444"}}
			k.ConfigMapGenerator = append(k.ConfigMapGenerator,
				configMap("semaphore-agent", "merge", []string{"config.yaml=agent.yaml"}, nil))
		}
	}
	k.Images = imagesOf(v.Image)
	if v.Expose != ClusterIP {
		p := fmt.Sprintf("- {op: add, path: /spec/type, value: %s}\n", v.Expose)
		if v.NodePort != 0 {
			p += fmt.Sprintf("- {op: add, path: /spec/ports/0/nodePort, value: %d}\n", v.NodePort)
		}
		k.Patches = []types.Patch{{Patch: p, Target: &types.Selector{ResId: resid.ResId{
			Gvk: resid.Gvk{Kind: "Service"}, Name: "semaphore-broker-federation"}}}}
	}
	files["kustomization.yaml"] = k
	return encoded(files)
}

func encoded(files map[string]any) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, content := range files {
		text, err := yaml.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = text
	}
	return out, nil
}

// imagesOf returns kustomize's entry for another image; nil for the image of the manifests.
func imagesOf(reference string) []types.Image {
	if reference == "" {
		return nil
	}
	i := types.Image{Name: Repository}
	switch name, digest, ok := strings.Cut(reference, "@"); {
	case ok:
		i.NewName, i.Digest = name, digest
	case strings.LastIndexByte(reference, ':') > strings.LastIndexByte(reference, '/'):
		at := strings.LastIndexByte(reference, ':')
		i.NewName, i.NewTag = reference[:at], reference[at+1:]
	default:
		i.NewName = reference
	}
	return []types.Image{i}
}

func exporterConfig(v Values) map[string]any {
	out := map[string]any{}
	if v.Features.Has(config.Services) { // the own broker receives Services for global services
		out["localBroker"] = map[string]any{"address": "semaphore-broker-federation." + v.Namespace + ".svc:8443"}
	}
	return ofBoth(v, out)
}

const (
	// MCS is the component of the Multi-Cluster Services API.
	MCS = "mcs"
	// OwnNames is the component by which Services lead to other clusters under their own names.
	OwnNames = "own-names"
	// DNS is the component by which the broker keeps its server blocks of CoreDNS current.
	DNS = "dns"
)

// ofBoth adds what exporter and broker have alike. All features need no key.
func ofBoth(v Values, into map[string]any) map[string]any {
	if slices.Contains(v.Components, MCS) {
		into["mcs"] = map[string]any{"enabled": true}
	}
	if len(v.Features) < len(AllFeatures) {
		into["features"] = v.Features
	}
	return into
}

func brokerConfig(v Values) map[string]any {
	out := map[string]any{"localSubnets": localSubnets(v)}
	for component, key := range map[string]string{"ippools": "manageIPPools", DNS: "manageCoreDNS",
		"tunnel-addresses": "reserveTunnelAddresses"} {
		if slices.Contains(v.Components, component) {
			out[key] = true
		}
	}
	if v.Features.Has(config.Services) {
		global := map[string]any{"podSubnets": v.PodSubnets}
		if slices.Contains(v.Components, OwnNames) {
			global["ownNames"] = true
		}
		out["globalServices"] = global
	}
	if slices.Contains(v.Components, "networksets") {
		out["sets"] = map[string]any{"namespaced": true}
	}
	if v.Namespace != fleet.DefaultNamespace {
		out["mirrorNamespace"], out["agents"] = v.Namespace, map[string]any{"namespace": v.Namespace}
	}
	return ofBoth(v, out)
}

// Broker returns the configuration of the broker. It fails for one that the broker refuses.
func (v Values) Broker() (*config.Broker, error) {
	of := brokerConfig(v)
	of["cluster"] = v.Cluster
	text, err := yaml.Marshal(of)
	if err != nil {
		return nil, err
	}
	return config.Parse[config.Broker](text)
}

// policyKeys returns the keys of semaphore-subnets by which admission policies judge the broker's writes.
func policyKeys(v Values) []string {
	c := config.Broker{LocalSubnets: localSubnets(v)}
	if v.Features.Has(config.Services) {
		c.GlobalServices.PodSubnets = show.Texts(v.PodSubnets)
	}
	keys := config.PolicyKeys(&c)
	if static := config.StaticServiceIPs(v.ServiceSubnets); static != "" {
		keys[config.KeyStaticServiceIPs] = static
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, key+"="+keys[key])
	}
	return all
}

func localSubnets(v Values) []string {
	return show.Texts(slices.Concat(v.PodSubnets, v.ServiceSubnets, v.NodeSubnets))
}

// Build builds the objects of an installation. It fails if kustomize refuses the overlay.
func Build(v Values) ([]*unstructured.Unstructured, error) { return build(v, "") }

// BuildCleanup builds the objects that remove an installation: docs/removal.md. It fails as Build does.
func BuildCleanup(v Values) ([]*unstructured.Unstructured, error) {
	v.Components = slices.DeleteFunc(slices.Clone(v.Components), func(c string) bool {
		// The cluster may no longer serve their types, and they go with the namespace.
		return c == "monitors" || c == "alerts"
	})
	return build(v, "cleanup")
}

func build(v Values, cleanup string) ([]*unstructured.Unstructured, error) {
	files, err := Overlay(v, "../deploy")
	if err != nil {
		return nil, err
	}
	overlays := map[string]map[string][]byte{overlayDir: files}
	dir := overlayDir
	if cleanup != "" {
		dir = overlayDir + "-cleanup"
		text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../overlay]\n" +
			"components: [../deploy/" + cleanup + "]\n"
		if v.Namespace != fleet.DefaultNamespace {
			text += "namespace: " + v.Namespace + "\n"
		}
		overlays[dir] = map[string][]byte{"kustomization.yaml": []byte(text)}
	}
	return kustomize(overlays, dir)
}

// kustomize builds one of several overlays. It writes all of them, and the manifests, to an in-memory file system.
func kustomize(overlays map[string]map[string][]byte, dir string) ([]*unstructured.Unstructured, error) {
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(deploy.Manifests, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := deploy.Manifests.ReadFile(name)
		if err != nil {
			return err
		}
		return disk.WriteFile(path.Join(manifestsDir, name), data)
	})
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	for overlay, files := range overlays {
		for name, data := range files {
			if err := disk.WriteFile(path.Join(overlay, name), data); err != nil {
				return nil, fmt.Errorf("overlay: %w", err)
			}
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, dir)
	if err != nil {
		return nil, fmt.Errorf("building the manifests: %w", err)
	}
	var out []*unstructured.Unstructured
	for _, r := range built.Resources() {
		data, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("building the manifests: %w", err)
		}
		one := &unstructured.Unstructured{}
		if err := one.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("building the manifests: %w", err)
		}
		// kustomize sets the overlay's namespace also on kinds that it does not know, some of them cluster-scoped.
		if slices.Contains(clusterScoped, one.GetKind()) {
			one.SetNamespace("")
		}
		out = append(out, one)
	}
	sortForApply(out)
	return out, nil
}

// kinds lists kinds in the order in which they are applied: first those that other objects need. Other kinds follow,
// and kinds with pods come last.
var kinds = []string{"Namespace", "CustomResourceDefinition", "SecurityContextConstraints", "ResourceQuota",
	"ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ValidatingAdmissionPolicy",
	"ValidatingAdmissionPolicyBinding", "ConfigMap", "Secret", "Service", "NetworkPolicy", "PodDisruptionBudget"}

// clusterScoped are the cluster-scoped kinds that kustomize does not know, and on which it sets a namespace.
var clusterScoped = []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"SecurityContextConstraints"}

// Runs reports whether objects of a kind have pods.
func Runs(kind string) bool { return slices.Contains([]string{"Deployment", "DaemonSet", "Job"}, kind) }

func sortForApply(all []*unstructured.Unstructured) {
	rank := func(o *unstructured.Unstructured) int {
		if i := slices.Index(kinds, o.GetKind()); i >= 0 {
			return i
		}
		if Runs(o.GetKind()) {
			return len(kinds) + 1
		}
		return len(kinds)
	}
	slices.SortStableFunc(all, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
