package mcs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/yaml"
)

// This file applies the CustomResourceDefinitions of the API, with the rights of the person who runs semaphorectl: no
// part may write CustomResourceDefinitions.

var definitionsOf = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// Definitions returns those of the release of sigs.k8s.io/mcs-api that this build has. It fails if they cannot be
// decoded.
func Definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
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

type Action string

const (
	Created Action = "created"
	Updated Action = "updated"
	Left    Action = "left"
)

// decideDefinition returns what to do with the definition that a cluster has, and why. Another installation may have
// applied a newer one, so it never replaces a definition by an older one.
func decideDefinition(have, want metav1.Object) (Action, string) {
	if have.GetDeletionTimestamp() != nil {
		return Left, "it is being deleted: run this again when it has gone"
	}
	is, known := releaseOf(have)
	wanted, _ := releaseOf(want)
	if !known {
		// Releases before v0.4 have no label; their schema lacks fields that this one has.
		if have.GetLabels()[crd.ReleaseVersionLabel] == "" {
			return Updated, "it is of a release before v0.4"
		}
		return Left, fmt.Sprintf("its label %s is %q, which is no release", crd.ReleaseVersionLabel,
			have.GetLabels()[crd.ReleaseVersionLabel])
	}
	switch order := slices.Compare(is[:], wanted[:]); {
	case order < 0:
		return Updated, fmt.Sprintf("it is of %s, older than %s", is, wanted)
	case order > 0:
		return Left, fmt.Sprintf("it is of %s, newer than %s", is, wanted)
	}
	return Left, fmt.Sprintf("it is of %s", is)
}

// release is the version of a definition: that of the release, and the revision within it.
type release [4]int

// String returns text such as "v0.5.2, revision 0".
func (r release) String() string {
	return fmt.Sprintf("v%d.%d.%d, revision %d", r[0], r[1], r[2], r[3])
}

// releaseOf reads upstream's labels of a definition.
func releaseOf(d metav1.Object) (r release, ok bool) {
	text, ok := strings.CutPrefix(d.GetLabels()[crd.ReleaseVersionLabel], "v")
	if !ok {
		return r, false
	}
	text, _, _ = strings.Cut(text, "-") // a release candidate counts as its release
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return r, false
	}
	for i, part := range append(parts, cmp.Or(d.GetLabels()[crd.CustomResourceDefinitionSchemaRevisionLabel], "0")) {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return r, false
		}
		r[i] = n
	}
	return r, true
}

type Applied struct {
	Name   string
	Action Action
	// Why is a sentence without a subject: "it is of v0.5.2, revision 0".
	Why string
}

// ApplyDefinitions creates the definitions that are absent and updates older ones. It ends with the first request that
// fails, and returns the definitions before that one.
func ApplyDefinitions(ctx context.Context, client dynamic.Interface) ([]Applied, error) {
	all, err := Definitions()
	if err != nil {
		return nil, err
	}
	definitions := client.Resource(definitionsOf)
	var done []Applied
	for _, d := range all {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
		if err != nil {
			return done, err
		}
		want := &unstructured.Unstructured{Object: content}
		action, why := Created, "there is none"
		have, err := definitions.Get(ctx, d.Name, metav1.GetOptions{})
		if err == nil {
			action, why = decideDefinition(have, want)
		}
		switch {
		case apierrors.IsNotFound(err):
			_, err = definitions.Create(ctx, want, metav1.CreateOptions{FieldManager: "semaphorectl"})
		case action == Updated:
			labels := have.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			maps.Copy(labels, d.Labels)
			have.SetLabels(labels)
			have.Object["spec"] = content["spec"]
			_, err = definitions.Update(ctx, have, metav1.UpdateOptions{FieldManager: "semaphorectl"})
		}
		if err != nil {
			return done, fmt.Errorf("CustomResourceDefinition %s: %w", d.Name, err)
		}
		done = append(done, Applied{d.Name, action, why})
	}
	return done, nil
}
