package debug

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Findings is a collector of what a part finds wrong with itself, as verdict.Found returns it. Of a finding only code,
// cluster and count are used: a part that has many objects need not say which.
func Findings(found func() []finding.Finding) prometheus.Collector { return findings{found} }

type findings struct{ found func() []finding.Finding }

var findingsDesc = prometheus.NewDesc("semaphore_findings",
	"Objects of which the part finds something wrong, by the finding's code (docs/troubleshooting.md), its level and the "+
		"remote that it is about (empty for none or several). Absent for what is as it should be.",
	[]string{"code", "level", "cluster"}, nil)

func (f findings) Describe(ch chan<- *prometheus.Desc) { ch <- findingsDesc }

func (f findings) Collect(ch chan<- prometheus.Metric) {
	for _, is := range f.found() {
		ch <- prometheus.MustNewConstMetric(findingsDesc, prometheus.GaugeValue, float64(is.Count), string(is.Code),
			string(is.Code.Level()), is.Cluster)
	}
}
