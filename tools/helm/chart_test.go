package helm

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

const deploy = "../../deploy"

// objects are manifests by kind, namespace and name.
type objects map[string]map[string]any

func (o objects) add(t *testing.T, text string) {
	t.Helper()
	var one map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &one); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if one == nil {
		return
	}
	metadata := one["metadata"].(map[string]any)
	key := fmt.Sprint(one["kind"], " ", metadata["namespace"], "/", metadata["name"])
	if o[key] != nil {
		t.Errorf("%s is there twice", key)
	}
	o[key] = one
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c := testkit.Value(loader.Load(deploy))(t)
	return c
}

// template is `helm template` with the values of a text in YAML, for a cluster that serves these types.
func template(t *testing.T, namespace, values string, served ...string) (objects, error) {
	t.Helper()
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(capabilities.APIVersions, served...)
	c := load(t)
	var given map[string]any
	testkit.Must(t, yaml.UnmarshalStrict([]byte(values), &given))
	release := chartutil.ReleaseOptions{Name: "semaphore", Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, given, release, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	out := objects{}
	for _, crd := range c.CRDObjects() { // Helm installs them before all else
		out.add(t, string(crd.File.Data))
	}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			for _, one := range regexp.MustCompile(`(?m)^---\s*$`).Split(text, -1) {
				out.add(t, one)
			}
		}
	}
	return out, nil
}

// kustomize is `kubectl kustomize` of a text in which DEPLOY stands for the manifests, with files beside it.
func kustomize(t *testing.T, text string, files map[string]string) objects {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here := testkit.Value(filepath.Abs(deploy))(t)
	if here, err = filepath.EvalSymlinks(here); err != nil {
		t.Fatal(err)
	}
	rel := testkit.Value(filepath.Rel(dir, here))(t)
	files = maps.Clone(files)
	files["kustomization.yaml"] = strings.ReplaceAll(text, "DEPLOY", rel)
	for name, content := range files {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	built := testkit.Value(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir))(t)
	out := objects{}
	for _, r := range built.Resources() {
		out.add(t, r.MustYaml())
	}
	return out
}

// kustomize's hashes are of these characters; "federation" has ten others.
var hashed = regexp.MustCompile(`^(semaphore-(?:exporter|broker|agent|cluster))-[2456789bcdfghkmt]{10}$`)

// plain is an object without what differs by how a change of a ConfigMap replaces pods: kustomize adds a hash to the
// ConfigMap's name, the chart an annotation to the pods. Configuration files are compared by what they say.
func plain(t *testing.T, in objects) objects {
	t.Helper()
	out := objects{}
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			delete(v, "checksum/config")
			for key, value := range v {
				v[key] = walk(value)
				if m, ok := v[key].(map[string]any); ok && len(m) == 0 && key == "annotations" {
					delete(v, key)
				}
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case string:
			if found := hashed.FindStringSubmatch(v); found != nil {
				return found[1]
			}
		}
		return v
	}
	for _, o := range in {
		o = walk(o).(map[string]any)
		if data, ok := o["data"].(map[string]any); ok && o["kind"] == "ConfigMap" {
			for name, text := range data {
				if strings.HasSuffix(name, ".yaml") {
					var said any
					if err := yaml.UnmarshalStrict([]byte(text.(string)), &said); err != nil {
						t.Errorf("%v: %v", o["metadata"], err)
					}
					data[name] = said
				}
			}
		}
		metadata := o["metadata"].(map[string]any)
		if metadata["name"] == "semaphore-cluster" { // from which kustomize takes the name
			continue
		}
		out[fmt.Sprint(o["kind"], " ", metadata["namespace"], "/", metadata["name"])] = o
	}
	return out
}

func compare(t *testing.T, helm, kustomize objects) {
	t.Helper()
	helm, kustomize = plain(t, helm), plain(t, kustomize)
	for _, key := range slices.Sorted(maps.Keys(kustomize)) {
		if helm[key] == nil {
			t.Errorf("the chart does not make %s", key)
		} else if d := cmp.Diff(kustomize[key], helm[key]); d != "" {
			t.Errorf("%s, kustomize (-) and the chart (+):\n%s", key, d)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(helm)) {
		if kustomize[key] == nil {
			t.Errorf("the chart makes %s, and kustomize does not", key)
		}
	}
}

const (
	broker   = "localSubnets: [10.1.0.0/16]\n"
	exporter = "localBroker: {address: '192.0.2.1:30843'}\n"
	names    = `
configMapGenerator:
  - {name: semaphore-cluster, namespace: semaphore, literals: [name=c1]}
  - {name: semaphore-exporter, namespace: semaphore, behavior: merge, files: [config.yaml=exporter.yaml]}
  - {name: semaphore-broker, namespace: semaphore, behavior: merge, files: [config.yaml=broker.yaml]}
  - name: semaphore-subnets
    namespace: semaphore
    behavior: merge
    files: [broker.yaml=subnets.yaml]
    literals: [localSubnets=10.1.0.0/16]
`
)

// TestSameObjects: what the chart makes is what kustomize makes, object by object.
func TestSameObjects(t *testing.T) {
	all := maps.All(map[string]struct{ values, kustomization string }{
		"all features, with all components": {
			values: "createNamespace: true\ncomponents: {adoptServices: true, dns: true, gke: true, " +
				"ippools: true, mcs: true, " +
				"networkPolicies: true, networksets: true, ownNames: true, " +
				"tunnelAddresses: true, monitors: true, alerts: true, dashboard: true}\n" +
				"image: {repository: r.example/semaphore, tag: v1.2.3}\nbroker: {federation: {type: NodePort, " +
				"nodePort: 30843}, remotePodSubnets: {c2: [10.2.0.0/16, 'fd00:2::/64'], eu-1.example.com: [10.4.0.0/16]}}\n",
			kustomization: "resources: [DEPLOY/all]\ncomponents: [DEPLOY/features/adopt-services, DEPLOY/features/dns, " +
				"DEPLOY/features/gke, DEPLOY/features/ippools, DEPLOY/features/mcs, " +
				"DEPLOY/features/network-policies, DEPLOY/features/networksets, DEPLOY/features/own-names, " +
				"DEPLOY/features/tunnel-addresses, " +
				"DEPLOY/features/monitors, " +
				"DEPLOY/features/alerts, DEPLOY/features/dashboard, DEPLOY/cluster-name]\n" +
				"images: [{name: ghcr.io/kube-semaphore/semaphore, newName: r.example/semaphore, newTag: v1.2.3}]\n" + `
patches:
  - target: {kind: Service, name: semaphore-broker-federation}
    patch: |
      - {op: add, path: /spec/type, value: NodePort}
      - {op: add, path: /spec/ports/0/nodePort, value: 30843}
` + strings.Replace(names, "literals: [localSubnets", "literals: ['remotePodSubnets.c2=10.2.0.0/16,fd00:2::/64', "+
				"remotePodSubnets.eu-1.example.com=10.4.0.0/16, localSubnets", 1),
		},
		"variables of exporter and broker": {
			values: "exporter: {env: [{name: A, value: b}]}\nbroker: {env: [{name: C, valueFrom: {secretKeyRef: " +
				"{name: s, key: k}}}, {name: GOMEMLIMIT, value: 7200MiB}]}\ncomponents: {networkPolicies: false}\n",
			kustomization: "resources: [DEPLOY/crds, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\n" +
				"components: [DEPLOY/features/encryption, DEPLOY/features/services, DEPLOY/features/policy, " +
				"DEPLOY/cluster-name]\n" + `
patches:
  - target: {kind: Deployment, name: semaphore-exporter}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: A, value: b}}
  - target: {kind: Deployment, name: semaphore-broker}
    patch: |
      - {op: test, path: /spec/template/spec/containers/0/env/1/name, value: GOMEMLIMIT} # of the manifests
      - {op: remove, path: /spec/template/spec/containers/0/env/1}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: C,
         valueFrom: {secretKeyRef: {name: s, key: k}}}}
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: GOMEMLIMIT, value: 7200MiB}}
` + names,
		},
		"policy alone": {
			values: "features: {encryption: false, services: false}\n",
			kustomization: "resources: [DEPLOY/crds, DEPLOY/exporter, DEPLOY/broker]\ncomponents: [DEPLOY/features/policy, " +
				"DEPLOY/features/network-policies, DEPLOY/cluster-name]\n" + names,
		},
		"an image by its digest, a load balancer": {
			values: "image: {digest: 'sha256:" + strings.Repeat("a", 64) + "'}\n" +
				"broker: {federation: {type: LoadBalancer, annotations: {example.org/internal: 'true'}}}\n",
			kustomization: "resources: [DEPLOY/crds, DEPLOY/exporter, DEPLOY/broker, DEPLOY/agent]\n" +
				"components: [DEPLOY/features/encryption, DEPLOY/features/services, DEPLOY/features/policy, " +
				"DEPLOY/features/network-policies, DEPLOY/cluster-name]\n" +
				"images: [{name: ghcr.io/kube-semaphore/semaphore, digest: 'sha256:" + strings.Repeat("a", 64) + "'}]\n" + `
patches:
  - target: {kind: Service, name: semaphore-broker-federation}
    patch: |
      - {op: add, path: /spec/type, value: LoadBalancer}
      - {op: add, path: /metadata/annotations, value: {example.org/internal: "true"}}
` + names,
		},
	})
	t.Run("an exporter for another cluster", func(t *testing.T) {
		config := "localBroker: {cluster: c1, address: '192.0.2.1:30843'}\n" +
			"kube: {remoteAPIURL: 'https://c2.example:6443', remoteSATokenPath: /etc/semaphore/reader/token}\n"
		helm := testkit.Value(template(t, "semaphore-c2", "cluster: c2\nforeignExporter: true\ncreateNamespace: true\n"+
			"components: {monitors: true}\nfeatures: {encryption: false}\nimage: {tag: v1.2.3}\nexporter: {config: {"+
			"localBroker: {cluster: c1, address: '192.0.2.1:30843'}, "+
			"kube: {remoteAPIURL: 'https://c2.example:6443', remoteSATokenPath: /etc/semaphore/reader/token}}}\n"))(t)
		compare(t, helm, kustomize(t, "namespace: semaphore-c2\nresources: [DEPLOY/crds, DEPLOY/foreign-exporter]\n"+
			"components: [DEPLOY/features/monitors]\n"+
			"images: [{name: ghcr.io/kube-semaphore/semaphore, newTag: v1.2.3}]\nconfigMapGenerator:\n"+
			"  - {name: semaphore-exporter, namespace: semaphore, behavior: merge, files: [config.yaml=exporter.yaml]}\n",
			map[string]string{"exporter.yaml": config + "features: [services, policy]\ncluster: c2\n"}))
	})
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			var values map[string]any
			testkit.Must(t, yaml.Unmarshal([]byte("cluster: c1\n"+c.values), &values))
			for part, text := range map[string]string{"exporter": exporter, "broker": broker} {
				var config map[string]any
				testkit.Must(t, yaml.Unmarshal([]byte(text), &config))
				if values[part] == nil {
					values[part] = map[string]any{}
				}
				values[part].(map[string]any)["config"] = config
			}
			text := testkit.Value(yaml.Marshal(values))(t)
			helm := testkit.Value(template(t, "semaphore", string(text)))(t)
			files := map[string]string{"exporter.yaml": exporter, "broker.yaml": broker, "subnets.yaml": broker}
			switch name {
			case "policy alone":
				files["exporter.yaml"], files["broker.yaml"] = exporter+"features: [policy]\n", broker+"features: [policy]\n"
			case "all features, with all components":
				for file := range files {
					files[file] += "mcs: {enabled: true}\n"
				}
			}
			compare(t, helm, kustomize(t, c.kustomization, files))
		})
	}
}

// TestAuto: rights, objects and configuration by a type are there where the cluster serves it, and what they need is.
func TestAuto(t *testing.T) {
	mcs, monitors := "multicluster.x-k8s.io/v1beta1/ServiceImport", "monitoring.coreos.com/v1/PodMonitor"
	const configured = "cluster: c1\nexporter: {config: {localBroker: {address: '192.0.2.1:30843'}}}\n" +
		"broker: {config: {globalServices: {podSubnets: [10.1.0.0/16]}}}\n"
	for _, x := range []struct {
		values, served string
		want           string
	}{
		{configured, "", ""},
		{configured, mcs, "broker exporter rights subnets"},
		{configured, "multicluster.x-k8s.io/v1alpha1/ServiceImport", "broker exporter rights subnets"},
		{configured, monitors, "monitor"},
		{"cluster: c1\n", mcs, ""},
		{configured + "features: {services: false}\n", mcs, ""},
		{configured + "components: {mcs: false, monitors: false}\n", mcs + " " + monitors, ""},
		{configured + "components: {mcs: true, monitors: true}\n", "", "broker exporter monitor rights subnets"},
		{strings.Replace(configured, "{config: {", "{config: {mcs: {enabled: false}, ", 1), mcs, "broker rights subnets"},
	} {
		all := testkit.Value(template(t, "semaphore", x.values, strings.Fields(x.served)...))(t)
		var got []string
		if all["ClusterRole <nil>/semaphore-broker-mcs"] != nil {
			got = append(got, "rights")
		}
		for part, file := range map[string]string{"exporter": "config", "broker": "config", "subnets": "broker"} {
			data := all["ConfigMap semaphore/semaphore-"+part]["data"].(map[string]any)
			if strings.Contains(data[file+".yaml"].(string), "mcs:\n  enabled: true") {
				got = append(got, part)
			}
		}
		if all["PodMonitor semaphore/semaphore"] != nil {
			got = append(got, "monitor")
		}
		if slices.Sort(got); strings.Join(got, " ") != x.want {
			t.Errorf("%q, where %q is served: %q, want %s", x.values, x.served, got, x.want)
		}
	}
}

// A RemoteCluster of the values is the object that an overlay has in a file of its own.
func TestRemoteClusters(t *testing.T) {
	text := testkit.Value(os.ReadFile(filepath.Join(deploy, "example/c1/remotes/c2.yaml")))(t)
	const bundle = "    -----BEGIN CERTIFICATE-----\n    AA==\n    -----END CERTIFICATE-----\n"
	var example map[string]any
	testkit.Must(t, yaml.UnmarshalStrict(append(text, bundle...), &example))
	values := map[string]any{"cluster": "c1", "remoteClusters": map[string]any{"c2": example["spec"]}}
	helm := func() (objects, error) {
		text := testkit.Value(yaml.Marshal(values))(t)
		return template(t, "semaphore", string(text))
	}
	all := testkit.Value(helm())(t)
	if d := cmp.Diff(example, all["RemoteCluster <nil>/c2"]); d != "" {
		t.Errorf("the example (-) and the chart (+):\n%s", d)
	}
	values["foreignExporter"] = true
	if _, err := helm(); err == nil || !strings.Contains(err.Error(), "remoteClusters: ") {
		t.Errorf("with foreignExporter: %v", err)
	}
	delete(values, "foreignExporter")
	values["remoteClusters"] = map[string]any{"C_2": map[string]any{}}
	if _, err := helm(); err == nil || !strings.Contains(err.Error(), "C_2") {
		t.Errorf("a name that no cluster has: %v", err)
	}
}

// In another namespace nothing is left in "semaphore".
func TestNamespace(t *testing.T) {
	for values, want := range map[string]int{"cluster: c1\n": 3, "cluster: c1\nfeatures: {encryption: false}\n": 3,
		"cluster: c1\ncomponents: {ownNames: true}\n": 4} {
		all := testkit.Value(template(t, "federation", values))(t)
		parameters := 0
		for key, o := range all {
			if strings.Contains(key, "semaphore/semaphore") {
				t.Errorf("%s is not in the release's namespace", key)
			}
			subjects, _ := o["subjects"].([]any)
			for _, s := range subjects {
				if got := s.(map[string]any)["namespace"]; got != "federation" {
					t.Errorf("%s is for an account of namespace %v", key, got)
				}
			}
			spec, _ := o["spec"].(map[string]any)
			if from, ok := spec["paramRef"].(map[string]any); ok {
				if parameters++; from["namespace"] != "federation" {
					t.Errorf("%s looks for its parameters in %v", key, from)
				}
			}
		}
		if parameters != want || all["ConfigMap federation/semaphore-subnets"] == nil {
			t.Errorf("%q: %d policies have parameters, and their ConfigMap is %v", values, parameters,
				all["ConfigMap federation/semaphore-subnets"])
		}
	}
}

// Values with a mistake are refused with the value's name.
func TestWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                                  "cluster",
		"cluster: C1":                         "cluster",
		"cluster: c1\nfeatures: {mesh: true}": "mesh",
		"cluster: c1\nimage: {digest: v1}":    "digest",
		"cluster: c1\nbroker: {federation: {type: X}}":                  "type",
		"cluster: c1\nexporter: {config: {cluster: c2}}":                "cluster",
		"cluster: c1\nexporters: {}":                                    "exporters",
		"cluster: c1\nbroker: {remotePodSubnets: {C_2: [10.2.0.0/16]}}": "C_2",
		"cluster: c1\nbroker: {remotePodSubnets: {c2: 10.2.0.0/16}}":    "c2",
	} {
		if _, err := template(t, "semaphore", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that names %s", values, err, want)
		}
	}
}

// A file that is not of the chart is not in it.
func TestContents(t *testing.T) {
	c := load(t)
	for _, f := range c.Files {
		if strings.HasSuffix(f.Name, ".go") || strings.HasPrefix(f.Name, "image/") || strings.HasPrefix(f.Name, "example/") {
			t.Errorf("the chart has the file %s", f.Name)
		}
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// docs/helm.md has every value.
func TestValuesAreDocumented(t *testing.T) {
	text := testkit.Value(os.ReadFile("../../docs/helm.md"))(t)
	var walk func(path string, values map[string]any)
	walk = func(path string, values map[string]any) {
		for name, value := range values {
			if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
				walk(path+name+".", inner)
			} else if !strings.Contains(string(text), "| `"+path+name+"` |") {
				t.Errorf("docs/helm.md has no row of %s%s", path, name)
			}
		}
	}
	walk("", load(t).Values)
}
