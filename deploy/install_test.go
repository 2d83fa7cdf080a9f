package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestInstallIsKustomize checks that semaphorectl install applies the same objects as kubectl does with these files and
// a hand-written overlay, for any features and components, and that the parts accept the configuration.
func TestInstallIsKustomize(t *testing.T) {
	values := func(change func(*apply.Values)) apply.Values {
		v := apply.Values{Cluster: "c1", Namespace: fleet.DefaultNamespace,
			Features:   config.Features{config.Encryption, config.Services, config.Policy},
			PodSubnets: testkit.Prefixes("10.1.0.0/16", "fd00:1::/48"), ServiceSubnets: testkit.Prefixes("10.101.0.0/16"),
			NodeSubnets: testkit.Prefixes("192.0.2.8/29"), Expose: apply.NodePort}
		change(&v)
		return v
	}
	for name, v := range map[string]apply.Values{
		"default": values(func(v *apply.Values) { v.Components = []string{"ippools"} }),
		"every component": values(func(v *apply.Values) {
			v.Components, v.NodePort = apply.Components(), 30843
			v.Image = "r.example:5000/semaphore@sha256:" + strings.Repeat("a", 64)
		}),
		"userspace": values(func(v *apply.Values) {
			v.Components, v.Image = []string{"userspace-wireguard"}, "r.example:5000/semaphore:v1.2.3"
		}),
		"services alone": values(func(v *apply.Values) {
			v.Features, v.Expose = config.Features{config.Services}, apply.ClusterIP
		}),
		"policy alone": values(func(v *apply.Values) {
			v.Features, v.Expose = config.Features{config.Policy}, apply.LoadBalancer
			v.Components = []string{"openshift"}
		}),
		"other namespace": values(func(v *apply.Values) { v.Namespace = "federation" }),
	} {
		t.Run(name, func(t *testing.T) {
			manifests := testkit.Value(filepath.Abs("."))(t)
			dir := filepath.Join(t.TempDir(), "overlay")
			must(t, os.MkdirAll(dir, 0o755))
			relative := testkit.Value(filepath.Rel(dir, manifests))(t)
			files := testkit.Value(apply.Overlay(v, relative))(t)
			write := func(files map[string][]byte) {
				for name, data := range files {
					must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
				}
			}
			write(files)
			same(t, dir, func() ([]*unstructured.Unstructured, error) { return apply.Build(v) })

			// The cleanup has no object of a type that may be gone, which goes with the namespace.
			without := v
			without.Components = slices.DeleteFunc(slices.Clone(v.Components), func(c string) bool {
				return c == "monitors" || c == "alerts"
			})
			write(testkit.Value(apply.Overlay(without, relative))(t))
			namespace := ""
			if v.Namespace != fleet.DefaultNamespace {
				namespace = "namespace: " + v.Namespace + "\n"
			}
			cleanup := filepath.Join(filepath.Dir(dir), "cleanup")
			must(t, os.MkdirAll(cleanup, 0o755))
			must(t, os.WriteFile(filepath.Join(cleanup, "kustomization.yaml"), []byte("resources: [../overlay]\ncomponents: ["+
				filepath.Join(relative, "cleanup")+"]\n"+namespace), 0o644))
			same(t, cleanup, func() ([]*unstructured.Unstructured, error) { return apply.BuildCleanup(v) })

			testkit.Value(config.Load[config.Exporter](withName(t, files["exporter.yaml"])))(t)
			testkit.Value(config.Load[config.Broker](withName(t, files["broker.yaml"])))(t)
		})
	}
}

// TestAgentlessIsKustomize checks that link --agentless applies the same objects as kubectl does with deploy/reader and
// deploy/foreign-exporter and the overlays in docs/agentless.md, that the exporter accepts its configuration, and that
// the read cluster gets only a reading account.
func TestAgentlessIsKustomize(t *testing.T) {
	f := apply.Foreign{Cluster: "c2", Reader: "c1", Parts: "semaphore", APIURL: "https://api.c2.example:6443",
		Roots:    true,
		Features: config.Features{config.Services, config.Policy}, Image: "r.example:5000/semaphore:v1.2.3"}
	manifests := testkit.Value(filepath.Abs("."))(t)
	for name, one := range map[string]struct {
		overlay func(apply.Foreign, string) (map[string][]byte, error)
		build   func(apply.Foreign) ([]*unstructured.Unstructured, error)
	}{"reader": {apply.ReaderOverlay, apply.BuildReader}, "exporter": {apply.ForeignOverlay, apply.BuildForeign}} {
		dir := filepath.Join(t.TempDir(), name)
		must(t, os.MkdirAll(dir, 0o755))
		relative := testkit.Value(filepath.Rel(dir, manifests))(t)
		files := testkit.Value(one.overlay(f, relative))(t)
		for name, data := range files {
			must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
		}
		same(t, dir, func() ([]*unstructured.Unstructured, error) {
			all, err := one.build(f)
			for _, o := range all { // semaphorectl finds it again by this label
				if labels := o.GetLabels(); labels[apply.ForeignLabel] != "" {
					delete(labels, apply.ForeignLabel)
					o.SetLabels(labels)
				}
			}
			return all, err
		})
		if name == "exporter" {
			file := filepath.Join(dir, "exporter.yaml")
			cfg := testkit.Value(config.Load[config.Exporter](file))(t)
			if cfg.Events || cfg.Kube.RemoteCAPath == "" || !cfg.Foreign() {
				t.Errorf("the exporter's configuration is %+v", cfg)
			}
		}
	}
	built := testkit.Value(apply.BuildReader(f))(t)
	for _, o := range built {
		switch o.GetKind() {
		case "Namespace", "ServiceAccount", "Secret", "ClusterRoleBinding":
		case "ClusterRole":
			rules, _, err := unstructured.NestedSlice(o.Object, "rules")
			must(t, err)
			for _, rule := range rules {
				for _, verb := range rule.(map[string]any)["verbs"].([]any) {
					if verb != "get" && verb != "list" && verb != "watch" {
						t.Errorf("ClusterRole %s: a reader may %v", o.GetName(), rule)
					}
				}
			}
		default:
			t.Errorf("a cluster that is read gets %s %s", o.GetKind(), o.GetName())
		}
	}
}

// withName writes an overlay's file with the cluster's name, as kustomize adds it.
func withName(t *testing.T, text []byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, append(text, "\ncluster: c1\n"...), 0o644))
	return file
}

var must = testkit.Must

// same compares the output of kubectl for a directory with that of install.
func same(t *testing.T, dir string, build func() ([]*unstructured.Unstructured, error)) {
	t.Helper()
	text := testkit.Value(kubectl(t, "kustomize", "--load-restrictor", "LoadRestrictionsNone", dir))(t)
	objects := func(text string) map[string]any {
		out := map[string]any{}
		for one := range strings.SplitSeq(text, "\n---\n") {
			object := unstructured.Unstructured{}
			must(t, yaml.Unmarshal([]byte(one), &object.Object))
			// kubectl ignores the namespace of a cluster-scoped object.
			if strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") ||
				object.GetKind() == "SecurityContextConstraints" {
				object.SetNamespace("")
			}
			out[apply.RefOf(&object).String()] = object.Object
		}
		return out
	}
	built := testkit.Value(build())(t)
	ours := testkit.Value(show.YAML(built))(t)
	if diff := cmp.Diff(objects(text), objects(string(ours))); diff != "" {
		t.Errorf("kubectl kustomize and semaphorectl differ:\n%s", diff)
	}
}
