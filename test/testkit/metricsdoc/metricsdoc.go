// Package metricsdoc is for tests: it compares the metrics that a part registers with their documentation in
// docs/metrics.md.
package metricsdoc

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/prometheus/client_golang/prometheus"
)

// Table is a Registerer that records the registered metrics as rows of a table. Metrics of libraries are left out.
type Table struct {
	prometheus.Registerer
	rows []string
}

// described matches the text of a prometheus.Desc, which has no other accessors.
var described = regexp.MustCompile(
	`^Desc{fqName: "(.*?)", help: "(.*?)", (?:unit: ".*?", )?constLabels: {(.*?)}, variableLabels: {(.*?)}`,
)

func (t *Table) Register(c prometheus.Collector) error {
	t.MustRegister(c)
	return nil
}

func (t *Table) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for desc := range descs {
			m := described.FindStringSubmatch(desc.String())
			labels := strings.Split(m[4], ",")
			for pair := range strings.SplitSeq(m[3], ",") {
				name, _, _ := strings.Cut(pair, "=")
				labels = append(labels, name)
			}
			t.Row(m[1], labels, m[2])
		}
	}
}

// Row adds the row of one metric.
func (t *Table) Row(name string, labels []string, help string) {
	if !strings.HasPrefix(name, "semaphore_") {
		return
	}
	text := ""
	if labels = slices.DeleteFunc(slices.Sorted(slices.Values(labels)),
		func(l string) bool { return l == "" }); len(labels) > 0 {
		text = "`" + strings.Join(labels, "`, `") + "`"
	}
	t.rows = append(t.rows, "| `"+name+"` | "+text+" | "+help+" |")
}

// Compare fails the test unless a section of a file has exactly these rows.
func (t *Table) Compare(tb testing.TB, file, section string) {
	tb.Helper()
	text := testkit.Value(os.ReadFile(file))(tb)
	_, in, _ := strings.Cut(string(text), "\n## "+section+"\n")
	in, _, _ = strings.Cut(in, "\n## ")
	var documented []string
	for line := range strings.Lines(in) {
		if strings.HasPrefix(line, "| `semaphore_") {
			documented = append(documented, strings.TrimSpace(line))
		}
	}
	rows := slices.Compact(slices.Sorted(slices.Values(t.rows)))
	slices.Sort(documented)
	if diff := cmp.Diff(rows, documented); diff != "" {
		tb.Errorf("%s, section %s (-code +documented):\n%s\nas it should be:\n%s", file, section, diff,
			strings.Join(rows, "\n"))
	}
}
