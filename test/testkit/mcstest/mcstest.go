// Package mcstest has earlier definitions of the Multi-Cluster Services API, for tests of an upgrade.
package mcstest

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// V02 returns the definitions of ServiceExports and ServiceImports as sigs.k8s.io/mcs-api v0.2.0 has them: v1alpha1
// alone, without the fields that later releases added, and with a default that they lack. Nothing else of their schemas
// differs.
func V02(tb testing.TB) []*apiextensionsv1.CustomResourceDefinition {
	tb.Helper()
	all := testkit.Value(mcs.Definitions())(tb)
	for _, d := range all {
		d.Labels = nil
		d.Spec.Versions = slices.DeleteFunc(d.Spec.Versions,
			func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name != "v1alpha1" })
		d.Spec.Versions[0].Storage = true
	}
	fields := all[1].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
	for _, name := range []string{"ipFamilies", "internalTrafficPolicy", "trafficDistribution"} {
		delete(fields["spec"].Properties, name)
	}
	port := fields["spec"].Properties["ports"].Items.Schema.Properties
	protocol := port["protocol"]
	protocol.Default = &apiextensionsv1.JSON{Raw: []byte(`"TCP"`)}
	port["protocol"] = protocol
	delete(fields["status"].Properties, "conditions")
	delete(fields["status"].Properties, "endpointSliceObjects")
	return all
}
