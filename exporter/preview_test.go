package exporter

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/mcs/definitions"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestPreview checks that the exporter's preview of a RemoteCluster, a label, an annotation or a ServiceExport matches
// what happens when it is applied. A preview changes nothing.
func TestPreview(t *testing.T) {
	bed := newRemotesBed(t)
	c2, at2 := bed.broker("c2")
	c3, at3 := bed.broker("c3")
	at := map[string]string{"c2": at2, "c3": at3}
	object := func(name, spec string) *unstructured.Unstructured {
		t.Helper()
		u := bed.remote(name, spec)
		must(t, unstructured.SetNestedField(u.Object, at[name], "spec", "broker", "address"))
		return u
	}
	text := func(u *unstructured.Unstructured) string {
		data, err := u.MarshalJSON()
		must(t, err)
		return string(data)
	}
	_, err := definitions.Apply(t.Context(),
		apiextensionsclient.NewForConfigOrDie(bed.api).ApiextensionsV1().CustomResourceDefinitions(), false)
	must(t, err)
	e := startWith(t, bed.api, bed.files, "leaderElection: {enabled: false}\nmcs: {enabled: true}", bed.bundles)
	bed.create(object("c2", `{podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24]}`))
	const all = "endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"
	within(t, "c2 holds what is exported", func() bool { return c2.holds() == all })
	sent := c2.changes()

	preview := func(to string, objects ...string) (string, *semaphorev1.PreviewResponse) {
		t.Helper()
		answer, err := e.client.Preview(t.Context(), &semaphorev1.PreviewRequest{Objects: objects, To: to})
		must(t, err)
		var lines []string
		for _, c := range answer.GetChanges() {
			lines = append(lines, strings.Join(strings.Fields(semaphorev1.PreviewActionName(c.GetAction())+" "+
				c.GetObject()+" "+c.GetCluster()+" "+c.GetCode()), " "))
		}
		return strings.Join(lines, "\n"), answer
	}
	is := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
	}
	is("nothing", func() string { s, _ := preview(""); return s }(), "")
	if _, answer := preview("c3"); answer.Exports != nil {
		t.Errorf("nothing is published to c3: %v", answer.Exports)
	}

	// Another remote, whose rules withhold the Services of a namespace.
	third := object("c3", `{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], export: {rules: [
		{kinds: [services], namespaces: [shop], action: Withhold}, {kinds: [policy], selector: {matchLabels: {a: b}},
		action: Withhold}]}}`)
	got, answer := preview("c3", text(third))
	is("a further remote", got, `select spec.export.rules[0] (Withhold) c3
select spec.export.rules[1] (Withhold) c3
export setmember shop/web c3
export 1 objects of kind node c3`)
	if rule := answer.GetChanges(); !strings.Contains(rule[0].GetText(), "matches 2 Services and 0 pods") ||
		!strings.Contains(rule[1].GetText(), "matches 0 Services and 0 pods") {
		t.Errorf("%s; %s", rule[0].GetText(), rule[1].GetText())
	}
	var would []string
	for _, o := range answer.GetExports().GetObjects() {
		k := o.GetKey()
		would = append(would, strings.TrimSpace(semaphorev1.KindName(k.GetKind())+" "+
			strings.TrimPrefix(k.GetNamespace()+"/"+k.GetName(), "/")))
	}
	slices.Sort(would)
	bed.create(third)
	within(t, "c3 holds what the preview said", func() bool { return c3.holds() == strings.Join(would, ", ") })

	// Its rules change, and a subnet that another has.
	changed := object("c3", `{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], export: {rules: [
		{kinds: [policy], action: Withhold}]}}`)
	got, _ = preview("", text(changed))
	is("other rules", got, `select spec.export.rules[0] (Withhold) c3
export service shop/echo c3
withdraw setmember shop/web c3
export 1 objects of kind endpointslice c3`)
	got, _ = preview("", text(object("c3", `{podSubnets: [10.2.0.0/24], nodeSubnets: [192.0.2.0/24]}`)))
	if _, answer := preview("c3", text(object("c3", `{podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24],
		export: {rules: [{action: Withhold}]}}`))); answer.Exports == nil || slices.ContainsFunc(answer.Exports.Objects,
		func(o *semaphorev1.Object) bool { return o.GetNode() == nil }) {
		t.Errorf("all is withheld: %v", answer.Exports)
	}
	if !strings.HasPrefix(got, "reject RemoteCluster c3 c3 SubnetsConflict") {
		t.Errorf("a subnet of another: %s", got)
	}

	// A Service with a label that offers it, and one with an annotation without a known cluster.
	const service = `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"shop","name":"plain",` +
		`"labels":{"mirror.semaphore.uw.io/mirror-service":"true"}%s},"spec":{"ports":[{"port":80}]}}`
	got, _ = preview("", strings.Replace(service, "%s", "", 1))
	is("a label", got, "export service shop/plain c2\nnote service shop/plain")
	got, _ = preview("", strings.Replace(service, "%s",
		`,"annotations":{"semaphore.uw.io/export-to":"c9"}`, 1))
	is("an annotation", got, "refuse export-to")

	// ServiceExports: for a Service that is not offered otherwise, and for a missing one.
	const export = `{"apiVersion":"multicluster.x-k8s.io/v1beta1","kind":"ServiceExport",` +
		`"metadata":{"namespace":"shop","name":"private"}}`
	got, answer = preview("", export)
	is("a ServiceExport", got, "accept serviceexport shop/private\nexport service shop/private c2\n"+
		"export 1 objects of kind endpointslice c2")
	if said := answer.GetChanges()[0].GetText(); said != "would export its Service to c2" {
		t.Error(said)
	}
	got, answer = preview("", strings.Replace(export, "private", "nothing", 1))
	is("a ServiceExport of nothing", got, "reject serviceexport shop/nothing")
	if said := answer.GetChanges()[0].GetText(); !strings.Contains(said, "NoService: there is no Service nothing") {
		t.Error(said)
	}

	for _, bad := range []string{`{`, `{"kind":"ConfigMap","apiVersion":"v1"}`,
		`{"kind":"RemoteCluster","apiVersion":"semaphore.uw.io/v1alpha1","metadata":{"name":"c3"},"spec":{"pods":[]}}`} {
		if _, err := e.client.Preview(t.Context(), &semaphorev1.PreviewRequest{Objects: []string{bad}}); status.Code(err) !=
			codes.InvalidArgument {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if n := c2.changes(); n != sent {
		t.Errorf("previews sent c2 %d changes", n-sent)
	}
	if got := c3.holds(); got != strings.Join(would, ", ") {
		t.Errorf("c3 holds %s", got)
	}
	exports, err := mcs.New(bed.api, "test")
	must(t, err)
	_, err = exports.Exports().Create(t.Context(), &mcsv1beta1.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "private"}})
	must(t, err)
	within(t, "c2 holds what the preview of the ServiceExport said", func() bool {
		return c2.holds() == "endpointslice shop/echo-1, endpointslice shop/private-1, node n1, service shop/echo, "+
			"service shop/private, setmember shop/web"
	})
}
