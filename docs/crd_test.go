package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

var update = flag.Bool("update", false, "write remotecluster.md, to be looked at and committed")

// TestDefinitionIsDocumented: docs/remotecluster.md has each field of the definition, which is made from the Go types.
func TestDefinitionIsDocumented(t *testing.T) {
	var crd apiextensionsv1.CustomResourceDefinition
	testkit.Must(t, yaml.UnmarshalStrict([]byte(read(t, "deploy/crds/remoteclusters.yaml")), &crd))
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("%d versions; the page has one", len(crd.Spec.Versions))
	}
	got := definitionPage(&crd)
	const file = "remotecluster.md"
	if *update {
		testkit.Must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	if read(t, "docs/"+file) != got {
		t.Errorf("docs/%s differs from the definition: go test ./docs -run TestDefinitionIsDocumented -update writes it",
			file)
	}
}

func definitionPage(crd *apiextensionsv1.CustomResourceDefinition) string {
	version, names := crd.Spec.Versions[0], crd.Spec.Names
	schema := version.Schema.OpenAPIV3Schema
	var out strings.Builder
	fmt.Fprintf(&out, `# Fields of a %[1]s

<!-- Made from deploy/crds: go test ./docs -run TestDefinitionIsDocumented -update -->

[Remote clusters](remotes.md) explains how to use the object, with an example. This page has all fields, as the
apiserver checks them.

| | |
| --- | --- |
| apiVersion | `+"`%[2]s/%[3]s`"+` |
| kind | `+"`%[1]s`"+` |
| kubectl | `+"`kubectl get %[4]s`, or `%[5]s`"+` |
| scope | %[6]s |

## The object

| Field | Type | Meaning | Allowed |
| --- | --- | --- | --- |
| `+"`metadata.name`"+` | string | %[7]s | %[8]s |
`, names.Kind, crd.Spec.Group, version.Name, names.Plural, strings.Join(names.ShortNames, "`, `"),
		strings.ToLower(string(crd.Spec.Scope)), cell(schema.Description), cell(strings.Join(rules(schema), ". ")))
	for _, part := range []string{"spec", "status"} {
		of := schema.Properties[part]
		fmt.Fprintf(&out, "\n## %s\n\n%s\n", part, wrapped(of.Description))
		if all := rules(&of); len(all) > 0 {
			out.WriteString("\nThe apiserver rejects an object with one of these messages:\n\n")
			for _, rule := range all {
				fmt.Fprintf(&out, "- %s\n", strings.ReplaceAll(wrapped(rule), "\n", "\n  "))
			}
		}
		out.WriteString("\n| Field | Type | Meaning | Allowed |\n| --- | --- | --- | --- |\n")
		fields(&out, part, &of)
	}
	out.WriteString("\n## Columns of kubectl\n\n`-o wide` adds the last ones.\n\n| Column | Field | Meaning |\n" +
		"| --- | --- | --- |\n")
	for _, c := range version.AdditionalPrinterColumns {
		wide := ""
		if c.Priority > 0 {
			wide = ", with `-o wide`"
		}
		fmt.Fprintf(&out, "| %s%s | `%s` | %s |\n", strings.ToUpper(c.Name), wide, cell(strings.TrimPrefix(c.JSONPath, ".")),
			cell(cmp.Or(c.Description, "see the field")))
	}
	return out.String()
}

// fields writes a row for each field below a path.
func fields(out *strings.Builder, path string, s *apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		at, kind, inner := path+"."+name, field.Type, &field
		allowed := limits(&field)
		if field.Items != nil {
			inner = field.Items.Schema
			at, kind = at+"[]", "list of "+inner.Type+"s"
			allowed = append(allowed, limits(inner)...)
		}
		selector := inner.XMapType != nil // Kubernetes' own type
		switch {
		case selector:
			kind = "LabelSelector"
		case name == "conditions":
			kind = "list of conditions"
		case field.Format == "date-time":
			kind = "time"
		}
		if slices.Contains(s.Required, name) {
			allowed = append([]string{"Required"}, allowed...)
		}
		meaning := field.Description
		if field.Items != nil && inner.Type != "object" && inner.Description != "" {
			meaning += " " + inner.Description
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", at, kind, cell(meaning), cell(strings.Join(allowed, ". ")))
		if !selector && name != "conditions" {
			fields(out, at, inner)
		}
	}
}

// limits is what the schema allows, besides the type.
func limits(s *apiextensionsv1.JSONSchemaProps) (out []string) {
	var values []string
	for _, v := range s.Enum {
		values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
	}
	if len(values) > 0 {
		out = append(out, strings.Join(values, ", "))
	}
	for _, bound := range []struct {
		least, most *int64
		what        string
	}{{s.MinItems, s.MaxItems, "items"}, {s.MinLength, s.MaxLength, "characters"},
		{whole(s.Minimum), whole(s.Maximum), ""}} {
		switch what := strings.TrimSpace(" " + bound.what); {
		case bound.most != nil && bound.least != nil:
			out = append(out, strings.TrimSpace(fmt.Sprintf("%d to %d %s", *bound.least, *bound.most, what)))
		case bound.most != nil:
			out = append(out, strings.TrimSpace(fmt.Sprintf("At most %d %s", *bound.most, what)))
		}
	}
	if s.Pattern != "" {
		out = append(out, "`"+s.Pattern+"`")
	}
	if s.XListType != nil && *s.XListType == "set" {
		out = append(out, "Each once")
	}
	return append(out, rules(s)...)
}

func whole(f *float64) *int64 {
	if f == nil {
		return nil
	}
	n := int64(*f)
	return &n
}

// literals are the texts in an expression in the Common Expression Language.
var literals = regexp.MustCompile(`'((?:[^'\\]|\\.)*)'`)

// rules are the messages of the rules that an apiserver checks beyond the schema, with VALUE for what was written.
func rules(s *apiextensionsv1.JSONSchemaProps) (out []string) {
	for _, r := range s.XValidations {
		text := r.Message
		if r.MessageExpression != "" {
			text = ""
			for i, part := range literals.FindAllStringSubmatch(r.MessageExpression, -1) {
				if i == 0 && !strings.HasPrefix(r.MessageExpression, "self") {
					text = part[1] + "VALUE"
					continue
				}
				if text == "" {
					text = "VALUE"
				}
				text += part[1]
			}
		}
		out = append(out, text)
	}
	return out
}

// cell is a text in a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// wrapped is a paragraph in lines of maxLine characters.
func wrapped(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > maxLine-len("- ") {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}
