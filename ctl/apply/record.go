package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// RecordName is the name of the ConfigMap, in the namespace of the parts, that records the installation.
const RecordName = "semaphore-installation"

type Ref struct {
	schema.GroupVersionKind
	Namespace, Name string
}

func RefOf(o *unstructured.Unstructured) Ref {
	return Ref{o.GroupVersionKind(), o.GetNamespace(), o.GetName()}
}

// String returns a text such as "Deployment semaphore/semaphore-broker".
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// same reports whether both name the same object, whatever the version of its API.
func (r Ref) same(o Ref) bool {
	return r.GroupKind() == o.GroupKind() && r.Namespace == o.Namespace && r.Name == o.Name
}

// Record is a cluster's record of its installation: the wishes, the values derived from them, and the installed
// objects.
type Record struct {
	Wishes  Wishes
	Values  Values
	Version string
	Objects []Ref
}

func (r *Record) Without(others []Ref) (out []Ref) {
	for _, one := range r.Objects {
		if !slices.ContainsFunc(others, one.same) {
			out = append(out, one)
		}
	}
	return out
}

// Object returns the ConfigMap of a record. It fails for a value that YAML cannot hold.
func (r *Record) Object() (*unstructured.Unstructured, error) {
	wishes, err := yaml.Marshal(r.Wishes)
	if err != nil {
		return nil, err
	}
	values, err := yaml.Marshal(r.Values)
	if err != nil {
		return nil, err
	}
	var objects strings.Builder
	for _, o := range r.Objects {
		fmt.Fprintf(&objects, "%s %s %s/%s\n", o.GroupVersion(), o.Kind, o.Namespace, o.Name)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": RecordName, "namespace": r.Values.Namespace,
			"labels": map[string]any{"app.kubernetes.io/name": "semaphore"}},
		"data": map[string]any{"wishes.yaml": string(wishes), "values.yaml": string(values), "version": r.Version,
			"objects": objects.String()},
	}}, nil
}

// ParseRecord reads the data of a ConfigMap of Record.Object. It fails for one that this cannot have written.
func ParseRecord(data map[string]string) (*Record, error) {
	r := &Record{Version: data["version"]}
	if err := yaml.Unmarshal([]byte(data["wishes.yaml"]), &r.Wishes); err != nil {
		return nil, fmt.Errorf("wishes.yaml: %w", err)
	}
	if err := yaml.Unmarshal([]byte(data["values.yaml"]), &r.Values); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	for line := range strings.Lines(data["objects"]) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("objects: %q names no object", strings.TrimSpace(line))
		}
		gv, err := schema.ParseGroupVersion(fields[0])
		if err != nil {
			return nil, fmt.Errorf("objects: %w", err)
		}
		namespace, name, _ := strings.Cut(fields[2], "/")
		r.Objects = append(r.Objects, Ref{gv.WithKind(fields[1]), namespace, name})
	}
	return r, nil
}
