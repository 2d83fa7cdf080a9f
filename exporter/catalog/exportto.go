package catalog

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// audience returns which remotes receive an object: those whose rules offer it, restricted to those that the annotation
// names. An annotation that cannot be parsed means Nobody.
func (c *Catalog) audience(feature config.Feature, namespace string, set, annotations map[string]string) (to Audience,
	problem string) {
	return c.narrowed(c.offered(c.others, feature, namespace, set), annotations)
}

// narrowed restricts an audience to the clusters that the annotation names, if there is one.
func (c *Catalog) narrowed(to Audience, annotations map[string]string) (Audience, string) {
	value, ok := annotations[naming.AnnotationExportTo]
	if !ok {
		return to, ""
	}
	only, problem := parseExportTo(value, c.clusters)
	return c.clusters.intersect(to, only), problem
}

// offered is an audience without those whose own rules withhold an object from them. The first rule that matches
// decides.
func (c *Catalog) offered(to Audience, feature config.Feature, namespace string, set labels.Set) Audience {
	var withheld []string
	for cluster, rules := range c.perCluster {
		i := slices.IndexFunc(rules,
			func(rule remotes.ExportRule) bool { return rule.Matches(feature, namespace, set) })
		if i >= 0 && !rules[i].Offers {
			withheld = append(withheld, cluster)
		}
	}
	if len(withheld) == 0 {
		return to
	}
	return c.clusters.subtract(to, For(withheld...))
}

// exportToNone is the value for no cluster.
const exportToNone = "none"

// parseExportTo parses "c2,c3" or "none". Clusters that are not configured are left out.
func parseExportTo(value string, all universe) (to Audience, problem string) {
	if strings.TrimSpace(value) == exportToNone {
		return Nobody, ""
	}
	quoted := fmt.Sprintf("annotation %s: %.200q", naming.AnnotationExportTo, value)
	var named, unknown []string
	for _, part := range strings.Split(value, ",") {
		cluster := strings.TrimSpace(part)
		if err := config.ClusterName(cluster); err != nil {
			return Nobody, fmt.Sprintf("%s cannot be parsed, so no cluster receives the object: name clusters, as in "+
				"\"c2,c3\", or %q", quoted, exportToNone)
		}
		if slices.Contains(all, cluster) {
			named = append(named, cluster)
		} else {
			unknown = append(unknown, cluster)
		}
	}
	to = all.filter(func(cluster string) bool { return slices.Contains(named, cluster) })
	if len(unknown) > 0 {
		problem = fmt.Sprintf("%s names %.200q, for which no broker is configured: the object is exported to %s at most",
			quoted, strings.Join(unknown, ", "), to)
	}
	return to, problem
}
