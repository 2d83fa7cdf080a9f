package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestDocumentationIsComplete: docs/configuration.md has every key of every file with its default, and no others.
func TestDocumentationIsComplete(t *testing.T) {
	text := string(testkit.Value(os.ReadFile("../../docs/configuration.md"))(t))
	// The smallest valid files: their keys are required, all others have a default.
	checkDocumentation(t, text, "semaphore-exporter", Parse[Exporter],
		`{cluster: own-cluster}`)
	checkDocumentation(
		t,
		text,
		"semaphore-broker",
		Parse[Broker],
		`{cluster: own-cluster, localSubnets: [10.1.0.0/16]}`,
	)
	checkDocumentation(t, text, "semaphore-agent", Parse[Agent],
		`{cluster: own-cluster}`)
}

func checkDocumentation[T any](t *testing.T, text, part string, parse func([]byte) (*T, error), smallest string) {
	t.Run(part, func(t *testing.T) {
		c := testkit.Value(parse([]byte(smallest)))(t)
		var given any
		testkit.Must(t, yaml.Unmarshal([]byte(smallest), &given))
		required := map[string]bool{}
		keysOf(required, "", given)
		want := map[string]string{}
		defaultsOf(want, "", reflect.ValueOf(c).Elem())
		for key := range required {
			want[key] = "required"
		}

		got := documentedDefaults(t, text, part)
		for key, value := range want {
			if documented, ok := got[key]; !ok {
				t.Errorf("%s is not documented", key)
			} else if documented != value {
				t.Errorf("%s: the default is %s, documented is %s", key, value, documented)
			}
		}
		for key := range got {
			if _, ok := want[key]; !ok {
				t.Errorf("%s is documented, but there is no such key", key)
			}
		}
	})
}

// keysOf adds the keys of parsed YAML to keys, in the notation of the documentation: "kube.qps".
func keysOf(keys map[string]bool, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			key := strings.TrimPrefix(path+"."+key, ".")
			keys[key] = true
			keysOf(keys, key, v)
		}
	case []any:
		for _, v := range value {
			keysOf(keys, path+"[]", v)
		}
	}
}

// defaultsOf adds every key below v to defaults, with its value in the notation of the documentation.
func defaultsOf(defaults map[string]string, path string, v reflect.Value) {
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("json")
		if key == "-" {
			continue
		}
		key = strings.TrimPrefix(path+"."+key, ".")
		switch f := reflect.Indirect(v.Field(i)); value := f.Interface().(type) {
		case Duration:
			defaults[key] = "`" + value.String() + "`"
		case Features:
			defaults[key] = "`" + strings.ReplaceAll(fmt.Sprint(value), " ", ", ") + "`"
		default:
			switch {
			case f.Kind() == reflect.Struct:
				defaultsOf(defaults, key, f)
			case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
				defaults[key] = "none"
				if f.Len() > 0 {
					defaultsOf(defaults, key+"[]", f.Index(0))
				}
			case f.Kind() == reflect.Slice && f.Len() == 0, f.Kind() == reflect.String && f.Len() == 0:
				defaults[key] = "none"
			default:
				defaults[key] = "`" + strings.ReplaceAll(fmt.Sprint(value), "own-cluster", "CLUSTER") + "`"
			}
		}
	}
}

var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| ([^|]+) \\| [^|]+ \\|$")

// documentedDefaults returns the keys in the table of the part's section, with their defaults.
func documentedDefaults(t *testing.T, text, part string) map[string]string {
	t.Helper()
	_, section, found := strings.Cut(text, "\n## "+part+"\n")
	if !found {
		t.Fatalf("no section %q", part)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := tableRow.FindAllStringSubmatch(section, -1)
	if lines := strings.Count(section, "\n|"); lines != len(rows)+2 {
		t.Errorf("%d lines of the table are no rows of a key, a type, a default and a meaning", lines-len(rows)-2)
	}
	defaults := map[string]string{}
	for _, row := range rows {
		if _, ok := defaults[row[1]]; ok {
			t.Errorf("%s is documented twice", row[1])
		}
		defaults[row[1]] = row[2]
	}
	return defaults
}
