package catalog

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// OfferRule offers some objects to one cluster, or withholds them.
type OfferRule struct {
	// Features whose objects the rule matches: services or policy; all if empty.
	Features config.Features
	// Namespaces that the rule matches; all if empty.
	Namespaces []string
	// Selector of labels that the rule matches; all if nil.
	Selector labels.Selector
	// Offers is false if the rule withholds them.
	Offers bool
}

func (r OfferRule) matches(feature config.Feature, namespace string, set labels.Set) bool {
	return (len(r.Features) == 0 || r.Features.Has(feature)) &&
		(len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(r.Selector == nil || r.Selector.Matches(set))
}

// audience returns which remotes receive an object: those whose rules offer it, restricted to those that the annotation
// names. An annotation that cannot be parsed means Nobody.
func (c *Catalog) audience(feature config.Feature, namespace string, set, annotations map[string]string) (to Audience,
	problem string) {
	to = c.offered(c.others, feature, namespace, set)
	value, ok := annotations[naming.AnnotationExportTo]
	if !ok {
		return to, ""
	}
	only, problem := c.parsedExportTo(value)
	return c.clusters.intersect(to, only), problem
}

// parsedExportTo is parseExportTo with a cache.
func (c *Catalog) parsedExportTo(value string) (to Audience, problem string) {
	it, ok := c.exportTo[value]
	if !ok {
		it.to, it.problem = parseExportTo(value, c.clusters)
		if len(c.exportTo) == maxExportTo {
			clear(c.exportTo)
		}
		c.exportTo[strings.Clone(value)] = it
	}
	return it.to, it.problem
}

// offered is an audience without those whose own rules withhold an object from them. The first rule that matches
// decides.
func (c *Catalog) offered(to Audience, feature config.Feature, namespace string, set labels.Set) Audience {
	var withheld []string
	for cluster, rules := range c.perCluster {
		if i := c.MatchOf(cluster, feature, namespace, set); i >= 0 && !rules[i].Offers {
			withheld = append(withheld, cluster)
		}
	}
	if len(withheld) == 0 {
		return to
	}
	return c.clusters.subtract(to, For(withheld...))
}

// MatchOf is which rule of a cluster decides on an object: the first that matches, -1 for none.
func (c *Catalog) MatchOf(cluster string, feature config.Feature, namespace string, set labels.Set) int {
	return slices.IndexFunc(c.perCluster[cluster],
		func(rule OfferRule) bool { return rule.matches(feature, namespace, set) })
}

// exportTo is a parsed value of the annotation.
type exportTo struct {
	to      Audience
	problem string
}

// maxExportTo bounds the cache of parsed values; a cluster has a handful.
const maxExportTo = 1000

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
