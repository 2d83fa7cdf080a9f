package broker

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

func exportedService(ns, name string, ports ...int32) *semaphorev1.Object {
	o := players.Service(ns, name, ports...)
	o.GetService().Mirror = false
	o.GetService().MultiCluster = &semaphorev1.MultiClusterExport{
		Labels: []*semaphorev1.Label{{Key: "team", Value: "a"}}}
	return o
}

// debugger returns the client of the broker's DebugService, like semaphorectl.
func (w *world) debugger(t *testing.T) semaphorev1.DebugServiceClient {
	t.Helper()
	return semaphorev1.NewDebugServiceClient(w.socket(w.cfg))
}

// countsExports checks that the status counts exports, imports and conflicts: c2 exports echo in three namespaces, one
// of them denied, and c1 exports one of them with another port.
func (w *world) countsExports(t *testing.T) {
	t.Helper()
	status, err := w.debugger(t).GetStatus(t.Context(), &semaphorev1.GetStatusRequest{})
	want := &semaphorev1.MultiClusterStatus{Imports: 2, Conflicts: 1, Exports: []*semaphorev1.ClusterExports{
		{Cluster: "c1", Services: 1}, {Cluster: "c2", Services: 3}}}
	if err != nil || !proto.Equal(status.GetMultiCluster(), want) {
		t.Errorf("the status has %v, %v; want %v", status.GetMultiCluster(), err, want)
	}
}

// foreignImport creates a ServiceImport of another owner.
func (w *world) foreignImport(t *testing.T, api *mcs.Client) *mcsv1beta1.ServiceImport {
	t.Helper()
	return testkit.Value(api.Imports().Create(t.Context(), &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "theirs"},
		Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.96.99.99"},
			Ports: []mcsv1beta1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}}}}))(t)
}

// TestServiceImports checks that exports of two clusters by ServiceExports give a derived Service and a ServiceImport
// with its IPs, in a namespace that exists and is not denied. The broker waits for the API, and the objects survive a
// restart and the removal of the API. They are removed with the last export.
func TestServiceImports(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	ctx := t.Context()
	ownPods(w.cfg)
	w.cfg.MCS.Enabled = true
	crds := apiextensionsclient.NewForConfigOrDie(w.rest).ApiextensionsV1().CustomResourceDefinitions()
	client := testkit.Value(mcs.New(w.rest, "test"))(t)
	api := client.Imports()
	stop := w.start(w.cfg) // without the API it is ready, and does all else
	defer func() { stop() }()
	kubetest.Namespace(t, w.admin, "shop")

	all := []*semaphorev1.Object{exportedService("shop", "echo", 80), players.Slice("shop", "echo-1", "echo", "10.2.1.5"),
		exportedService("later", "echo", 80), players.Slice("later", "echo-1", "echo", "10.2.1.6"),
		exportedService("kube-system", "kube-dns", 80),
		players.Service("shop", "mirrored", 80)}
	c2 := w.exporter("c2")
	c2.SendAll("c2", "e1", all...)
	ownExporter := func(head uint64, objects ...*semaphorev1.Object) *players.Exporter {
		t.Helper()
		e := w.exporter("c1")
		services, slices := semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE
		e.Greet(players.Hello("c1", "e1", head, services, slices))
		e.Send(players.Snapshot(services, head, objects...)...)
		e.Send(players.Snapshot(slices, head)...)
		e.Acked(head)
		return e
	}
	own := ownExporter(100)
	w.exporter("c3").SendAll("c3", "e1")
	service := func(name string) (*corev1.Service, error) {
		return w.admin.CoreV1().Services("semaphore").Get(ctx, name, metav1.GetOptions{})
	}
	eventually(t, "a mirror, and a derived Service, without the API", func() (bool, string) {
		for _, name := range []string{"c2-shop-73736d-mirrored", "mcs-shop-73736d-echo", "mcs-later-73736d-echo"} {
			if _, err := service(name); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})

	testkit.Value(mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(w.rest)))(t)
	var last *mcsv1beta1.ServiceImport
	imported := func(name, want string) {
		t.Helper()
		eventually(t, name, func() (bool, string) {
			i, err := api.Get(ctx, name, "echo")
			if err != nil {
				return want == "" && apierrors.IsNotFound(err), err.Error()
			}
			last = i
			var ports []string
			for _, p := range i.Spec.Ports {
				ports = append(ports, fmt.Sprint(p.Port))
			}
			var clusters []string
			for _, c := range i.Status.Clusters {
				clusters = append(clusters, c.Cluster)
			}
			s, err := service("mcs-" + name + "-73736d-echo")
			if err != nil || !slices.Equal(s.Spec.ClusterIPs, i.Spec.IPs) || len(i.Status.Conditions) != 1 ||
				i.Status.Conditions[0].Status != metav1.ConditionTrue || i.Labels["team"] != "a" {
				return false, fmt.Sprintf("%v: %+v", err, i)
			}
			got := fmt.Sprintf("%s %s of %s", i.Spec.Type, strings.Join(ports, ","), strings.Join(clusters, ","))
			return got == want, got
		})
	}
	imported("shop", "ClusterSetIP 80 of c2")
	imported("later", "")
	kubetest.Namespace(t, w.admin, "later")
	imported("later", "ClusterSetIP 80 of c2")
	if _, err := service("mcs-kube-system-73736d-kube-dns"); !apierrors.IsNotFound(err) {
		t.Errorf("something is imported into kube-system: %v", err)
	}
	slice, err := w.admin.DiscoveryV1().EndpointSlices("semaphore").Get(ctx, "mcs-shop-73736d-echo-c2-1",
		metav1.GetOptions{})
	if err != nil || slice.Labels[discoveryv1.LabelServiceName] != "mcs-shop-73736d-echo" {
		t.Errorf("the slice is %v, %v", slice, err)
	}

	importSlice := func(ns, cluster string, want string) {
		t.Helper()
		name := "mcs-" + ns + "-73736d-echo-" + cluster + "-1"
		eventually(t, ns+"/"+name, func() (bool, string) {
			s, err := w.admin.DiscoveryV1().EndpointSlices(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return want == "" && apierrors.IsNotFound(err), err.Error()
			}
			_, ofService := s.Labels[discoveryv1.LabelServiceName]
			got := fmt.Sprint(s.Labels[mcsv1beta1.LabelServiceName], " ", s.Labels[mcsv1beta1.LabelSourceCluster], " ",
				ofService, " ", s.Endpoints[0].Addresses)
			return got == want, got
		})
	}
	importSlice("shop", "c2", "echo c2 false [10.2.1.5]")
	// A user deletes the slice, and it is restored.
	testkit.Must(t, w.admin.DiscoveryV1().EndpointSlices("shop").Delete(ctx, "mcs-shop-73736d-echo-c2-1",
		metav1.DeleteOptions{}))
	importSlice("shop", "c2", "echo c2 false [10.2.1.5]")

	// The own cluster exports it too, with another port. c2 has precedence, because it was first.
	own.Send(players.Upserts(101, exportedService("shop", "echo", 80, 81)))
	own.Acked(101)
	imported("shop", "ClusterSetIP 80,81 of c2,c1")
	w.countsExports(t)

	// A user changes it, and it is restored. Labels and annotations of others stay.
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := api.Get(ctx, "shop", "echo")
		if err != nil {
			return err
		}
		now.Spec.Ports, now.Labels["theirs"] = []mcsv1beta1.ServicePort{}, "so"
		_, err = api.Update(ctx, now)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	imported("shop", "ClusterSetIP 80,81 of c2,c1")
	if last.Labels["theirs"] != "so" {
		t.Errorf("the labels are %v", last.Labels)
	}

	// A restart writes nothing, whichever cluster is received first.
	before := last.ResourceVersion
	derived := testkit.Value(service("mcs-shop-73736d-echo"))(t)
	stop()
	stop = w.start(w.cfg)
	own = ownExporter(200, exportedService("shop", "echo", 80, 81))
	w.exporter("c3").SendAll("c3", "e2")
	c2 = w.exporter("c2")
	c2.SendAll("c2", "e2", all...)
	// One that is exported last is imported, and goes again, in the same way.
	c2.Send(players.Upserts(101, exportedService("shop", barrier, 80)))
	of := func(there bool) {
		t.Helper()
		eventually(t, "an import of what is exported last", func() (bool, string) {
			_, err := api.Get(ctx, "shop", barrier)
			return (err == nil) == there && (there || apierrors.IsNotFound(err)), fmt.Sprint(err)
		})
	}
	of(true)
	c2.Send(players.Deletion(102, exportedService("shop", barrier, 80)))
	of(false)
	imported("shop", "ClusterSetIP 80,81 of c2,c1")
	if s, err := service("mcs-shop-73736d-echo"); err != nil || s.ResourceVersion != derived.ResourceVersion {
		t.Errorf("the restart wrote the Service: %v, %v", s.Annotations, err)
	}
	if last.ResourceVersion != before {
		t.Error("the restart wrote the ServiceImport")
	}

	// The API is removed, and the Services stay. When it is back, the imports are written again.
	removed := []string{mcsv1beta1.ServiceExportFullName, mcsv1beta1.ServiceImportFullName}
	for _, name := range removed {
		testkit.Must(t, crds.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	// A definition that is being deleted would take with it what is applied below.
	for _, name := range removed {
		eventually(t, "the API is gone", func() (bool, string) {
			_, err := crds.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(name, ": ", err)
		})
	}
	w.settles(t, c2, 103, "10.2.255.1")
	if s, err := service("mcs-shop-73736d-echo"); err != nil || s.UID != derived.UID {
		t.Errorf("the derived Service is %v, %v", s, err)
	}
	importSlice("shop", "c2", "echo c2 false [10.2.1.5]")
	if ok, text := get("http://" + w.cfg.Listen.HTTP + "/metrics"); !ok ||
		!strings.Contains(text, `semaphore_broker_exports{cluster="c2"} 3`) ||
		!strings.Contains(text, `semaphore_broker_exports{cluster="c1"} 1`) {
		t.Errorf("the metrics lack the exports: %s", text)
	}
	eventually(t, "the broker is ready without the API", func() (bool, string) {
		return get("http://" + w.cfg.Listen.HTTP + "/readyz")
	})
	testkit.Value(mcs.ApplyDefinitions(ctx, dynamic.NewForConfigOrDie(w.rest)))(t)
	imported("shop", "ClusterSetIP 80,81 of c2,c1")

	theirs := w.foreignImport(t, client)
	c2.Send(players.Upserts(105, exportedService("shop", "theirs", 80)))
	c2.Acked(105)
	eventually(t, "the status names theirs", func() (bool, string) {
		status, err := w.debugger(t).GetStatus(ctx, &semaphorev1.GetStatusRequest{})
		return strings.Contains(fmt.Sprint(status.GetFindings()), "shop/theirs"), fmt.Sprint(status.GetFindings(), err)
	})
	left := func() {
		t.Helper()
		if now, err := api.Get(ctx, "shop", "theirs"); err != nil || now.ResourceVersion != theirs.ResourceVersion {
			t.Errorf("somebody's own ServiceImport is %v, %v", now, err)
		}
	}
	left()
	c2.Send(players.Deletion(106, exportedService("shop", "theirs")))
	c2.Acked(106)
	eventually(t, "the export of theirs has gone", func() (bool, string) {
		_, err := service("mcs-shop-73736d-theirs")
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	left()

	// The last export is withdrawn.
	importSlice("shop", "c2", "echo c2 false [10.2.1.5]")
	c2.Send(players.Deletion(107, exportedService("shop", "echo")))
	c2.Acked(107)
	importSlice("shop", "c2", "")
	imported("shop", "ClusterSetIP 80,81 of c1")
	own.Send(players.Deletion(201, exportedService("shop", "echo")))
	own.Acked(201)
	imported("shop", "")
	eventually(t, "no derived Service", func() (bool, string) {
		_, err := service("mcs-shop-73736d-echo")
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})

	// With none the broker removes the slices that it wrote.
	stop()
	w.cfg.MCS.EndpointSlices = config.NoImportSlices
	stop = w.start(w.cfg)
	importSlice("later", "c2", "")

	// The cleanup removes imports, but not the API and the ServiceExports.
	stop()
	mine := testkit.Value(client.Exports().Create(ctx,
		&mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
			Name: "mine"}}))(t)
	exporters := testkit.Value(mcs.New(w.rest, mcs.Exporter))(t)
	mine.Status.Conditions = []metav1.Condition{{Type: "Valid", Status: metav1.ConditionTrue, Reason: "Valid",
		LastTransitionTime: metav1.Now()}}
	testkit.Value(exporters.Exports().UpdateStatus(ctx, mine))(t)
	var out bytes.Buffer
	if err := operator.Run(ctx, w.cfg, operator.Options{}, &out); err != nil || !strings.Contains(out.String(),
		"removed serviceimport later/echo") {
		t.Errorf("%v: %s", err, out.String())
	}
	imported("later", "")
	if mine, err := client.Exports().Get(ctx, "shop", "mine"); err != nil || len(mine.Status.Conditions) > 0 {
		t.Errorf("%v: the conditions are %v", err, mine.Status.Conditions)
	}

	// It does also while ServiceExports are not served, and leaves those of others.
	testkit.Value(api.Create(ctx, &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo",
		Labels: map[string]string{naming.LabelManagedBy: naming.ManagedByBroker}}, Spec: theirs.Spec}))(t)
	testkit.Must(t, crds.Delete(ctx, mcsv1beta1.ServiceExportFullName, metav1.DeleteOptions{}))
	eventually(t, "only ServiceImports are served", func() (bool, string) {
		_, err := crds.Get(ctx, mcsv1beta1.ServiceExportFullName, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
	out.Reset()
	if err := operator.Run(ctx, w.cfg, operator.Options{}, &out); err != nil || out.String() !=
		"removed serviceimport shop/echo\n1 removed\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}
