package catalog

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// ExportRule says for which clusters some objects are; see config.ExportRule.
type ExportRule struct {
	// Features whose objects it is about: services or policy; all for none.
	Features config.Features
	// Namespaces that it is about; all for none.
	Namespaces []string
	// Selector of labels that it is about; nil for all.
	Selector labels.Selector
	// Clusters that may see these objects.
	Clusters []string
}

func (r ExportRule) matches(feature config.Feature, namespace string, set labels.Set) bool {
	return (len(r.Features) == 0 || r.Features.Has(feature)) &&
		(len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(r.Selector == nil || r.Selector.Matches(set))
}

// SelectedLabels are the keys of labels that decide for whom an object is.
func (r Rules) SelectedLabels() []string {
	var keys []string
	for _, rule := range r.Export {
		if rule.Selector == nil {
			continue
		}
		requirements, _ := rule.Selector.Requirements()
		for _, requirement := range requirements {
			keys = append(keys, requirement.Key())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// audience is which of the others may see an object: those whom the first rule that matches lets see it, and of them
// those whom its annotation names. What cannot be understood names nobody.
func (c *Catalog) audience(feature config.Feature, namespace string, set, annotations map[string]string) (to Audience, problem string) {
	to = c.others
	for i, rule := range c.rules.Export {
		if rule.matches(feature, namespace, set) {
			to = c.ruled[i]
			break
		}
	}
	value, ok := annotations[naming.AnnotationExportTo]
	if !ok {
		return to, ""
	}
	it, ok := c.exportTo[value]
	if !ok {
		it.to, it.problem = parseExportTo(value, c.all)
		if len(c.exportTo) == maxExportTo {
			clear(c.exportTo)
		}
		c.exportTo[strings.Clone(value)] = it
	}
	return c.all.both(to, it.to), it.problem
}

// exportTo is what a value of the annotation says.
type exportTo struct {
	to      Audience
	problem string
}

// maxExportTo is how many values of the annotation are remembered; in a cluster there are a handful.
const maxExportTo = 1000

// exportToNone is the value for nobody.
const exportToNone = "none"

// parseExportTo reads the annotation's value: "c2,c3" or "none". Clusters that are not known are left out.
func parseExportTo(value string, all universe) (to Audience, problem string) {
	if strings.TrimSpace(value) == exportToNone {
		return Nobody, ""
	}
	quoted := fmt.Sprintf("annotation %s: %.200q", naming.AnnotationExportTo, value)
	var named, unknown []string
	for _, part := range strings.Split(value, ",") {
		cluster := strings.TrimSpace(part)
		if err := config.ClusterName(cluster); err != nil {
			return Nobody, fmt.Sprintf("%s is not understood, so nobody sees the object: name clusters, as in \"c2,c3\", or %q", quoted, exportToNone)
		}
		if slices.Contains(all, cluster) {
			named = append(named, cluster)
		} else {
			unknown = append(unknown, cluster)
		}
	}
	to = all.of(func(cluster string) bool { return slices.Contains(named, cluster) })
	if len(unknown) > 0 {
		problem = fmt.Sprintf("%s names %.200q, for which there is no broker: the object is for %s only", quoted, strings.Join(unknown, ", "), to)
	}
	return to, problem
}
