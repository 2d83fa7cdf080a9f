package explain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// getMCS reads an object of the Multi-Cluster Services API, whose versions have the same fields; nil without an error
// if it does not exist, or the API does not.
func getMCS[T any](ctx context.Context, s *side, plural, namespace, name string) (found *T, err error) {
	for _, resource := range fleet.MCS(plural) {
		if found, err = fleet.Get[T](ctx, s.objects, resource, namespace, name); found != nil || err != nil {
			break
		}
	}
	return found, err
}

// imported reads the ServiceImport in the source's cluster, and the ServiceExports of all clusters.
func (g *pathGatherer) imported(ctx context.Context) {
	n := g.facts.Name
	have, err := getMCS[mcsv1beta1.ServiceImport](ctx, g.source, "serviceimports", n.Namespace, n.Service)
	if err != nil {
		g.notRead(finding.PathName, "%v", err)
		return
	}
	n.Import = &policy.Import{Exists: have != nil}
	if have == nil {
		ns, err := fleet.Get[corev1.Namespace](ctx, g.source.objects, fleet.NamespacesGVR, "", n.Namespace)
		n.Import.NoNamespace = err == nil && ns == nil
	} else {
		for _, c := range have.Status.Clusters {
			n.Import.Clusters = append(n.Import.Clusters, c.Cluster)
		}
		if c := meta.FindStatusCondition(have.Status.Conditions, "Ready"); c != nil && c.Status == metav1.ConditionFalse {
			n.Import.NotReady = c.Reason + ": " + c.Message
		}
	}
	for _, s := range g.sides {
		export, err := getMCS[mcsv1beta1.ServiceExport](ctx, s, "serviceexports", n.Namespace, n.Service)
		if err != nil {
			g.notRead(finding.PathName, "%v", err)
			continue
		}
		if export == nil {
			continue
		}
		e := policy.Export{Cluster: s.name}
		for _, c := range export.Status.Conditions {
			if bad := c.Status == metav1.ConditionTrue; bad == (c.Type == "Conflict") {
				e.Problems = append(e.Problems, c.Type+"="+string(c.Status)+", "+c.Reason+": "+c.Message)
			}
		}
		n.Import.Exports = append(n.Import.Exports, e)
	}
}
