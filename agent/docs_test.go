package agent

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/agent/devicemetrics"
)

// descriptions is a Registerer that notes what is registered, as rows of a table.
type descriptions struct {
	prometheus.Registerer
	rows []string
}

var described = regexp.MustCompile(`^Desc{fqName: "(.*?)", help: "(.*?)", (?:unit: ".*?", )?constLabels: {}, variableLabels: {(.*?)}`)

func (d *descriptions) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for desc := range descs {
			m := described.FindStringSubmatch(desc.String())
			d.row(m[1], strings.Split(m[3], ","), m[2])
		}
	}
}

func (d *descriptions) row(name string, labels []string, help string) {
	if labels = slices.DeleteFunc(labels, func(l string) bool { return l == "" }); len(labels) > 0 {
		labels = []string{"`" + strings.Join(labels, "`, `") + "`"}
	}
	d.rows = append(d.rows, "| `"+name+"` | "+strings.Join(labels, "")+" | "+help+" |")
}

// docs/metrics.md has every metric of the agent, with its labels and its help text.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## semaphore-agent\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "| `semaphore_") {
			documented = append(documented, strings.TrimSpace(line))
		}
	}
	d := &descriptions{}
	idle(t).register(d)
	for _, m := range devicemetrics.All {
		d.row(m.Name, slices.Clone(m.Labels), m.Help)
	}
	slices.Sort(d.rows)
	slices.Sort(documented)
	if diff := cmp.Diff(d.rows, documented); diff != "" {
		t.Errorf("docs/metrics.md (-code +documented):\n%s", diff)
	}
}
