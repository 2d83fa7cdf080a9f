// Package definitions applies the CustomResourceDefinitions of the Multi-Cluster Services API, with the rights of
// the person who runs semaphorectl: no part may write CustomResourceDefinitions.
package definitions

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"
)

// All returns the definitions of the release of sigs.k8s.io/mcs-api that this build has.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, data := range [][]byte{crd.ServiceExportCRD, crd.ServiceImportCRD} {
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, d); err != nil {
			return nil, fmt.Errorf("definition of sigs.k8s.io/mcs-api: %w", err)
		}
		all = append(all, d)
	}
	return all, nil
}

// Action is what happens to a definition.
type Action string

const (
	Create Action = "created"
	Update Action = "updated"
	Leave  Action = "left"
)

// decide returns what to do with the definition of a cluster, nil for none, and why. Another installation may have
// applied a newer one, so it never replaces a definition by an older one.
func decide(have, want *apiextensionsv1.CustomResourceDefinition) (Action, string) {
	if have == nil {
		return Create, "there is none"
	}
	if have.DeletionTimestamp != nil {
		return Leave, "it is being deleted: run this again when it has gone"
	}
	is, known := releaseOf(have)
	wanted, _ := releaseOf(want)
	if !known {
		// Releases before v0.4 have no label; their schema lacks fields that this one has.
		if have.Labels[crd.ReleaseVersionLabel] == "" {
			return Update, "it is of a release before v0.4"
		}
		return Leave, fmt.Sprintf("its label %s is %q, which is no release", crd.ReleaseVersionLabel,
			have.Labels[crd.ReleaseVersionLabel])
	}
	switch order := is.compare(wanted); {
	case order < 0:
		return Update, fmt.Sprintf("it is of %s, older than %s", is, wanted)
	case order > 0:
		return Leave, fmt.Sprintf("it is of %s, newer than %s", is, wanted)
	}
	return Leave, fmt.Sprintf("it is of %s", is)
}

// release is the version of a definition: that of the release, and the revision within it.
type release [4]int

func (r release) compare(o release) int {
	for i := range r {
		if c := cmp.Compare(r[i], o[i]); c != 0 {
			return c
		}
	}
	return 0
}

// String returns text such as "v0.5.2, revision 0".
func (r release) String() string {
	return fmt.Sprintf("v%d.%d.%d, revision %d", r[0], r[1], r[2], r[3])
}

// releaseOf reads upstream's labels of a definition.
func releaseOf(d *apiextensionsv1.CustomResourceDefinition) (r release, ok bool) {
	text, ok := strings.CutPrefix(d.Labels[crd.ReleaseVersionLabel], "v")
	if !ok {
		return r, false
	}
	text, _, _ = strings.Cut(text, "-") // a release candidate counts as its release
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return r, false
	}
	for i, part := range append(parts, cmp.Or(d.Labels[crd.CustomResourceDefinitionSchemaRevisionLabel], "0")) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return r, false
		}
		r[i] = n
	}
	return r, true
}

// Applied is the result for one definition.
type Applied struct {
	Name   string
	Action Action
	// Why is a sentence without a subject: "it is of v0.5.2, revision 0".
	Why string
}

// Client reads and writes CustomResourceDefinitions, as the typed client of the apiserver's extensions does.
type Client interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	Create(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition,
		o metav1.CreateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
	Update(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition,
		o metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error)
}

// Apply creates the definitions that are absent and updates older ones. With dryRun it only reports what it would do.
// At the first error it returns what it has done before.
func Apply(ctx context.Context, client Client, dryRun bool) ([]Applied, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	var done []Applied
	for _, want := range all {
		have, err := client.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			have, err = nil, nil
		}
		if err != nil {
			return done, fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
		}
		action, why := decide(have, want)
		if !dryRun {
			switch action {
			case Create:
				_, err = client.Create(ctx, want, metav1.CreateOptions{FieldManager: "semaphorectl"})
			case Update:
				next := have.DeepCopy()
				next.Spec = want.Spec
				if next.Labels == nil {
					next.Labels = map[string]string{}
				}
				for key, value := range want.Labels {
					next.Labels[key] = value
				}
				_, err = client.Update(ctx, next, metav1.UpdateOptions{FieldManager: "semaphorectl"})
			}
			if err != nil {
				return done, fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
			}
		}
		done = append(done, Applied{want.Name, action, why})
	}
	return done, nil
}
