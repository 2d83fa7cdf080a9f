package exporter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/volume"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// remotesBed is an apiserver with the RemoteCluster CRD and the objects of populate, and keys of three clusters.
type remotesBed struct {
	t       *testing.T
	api     *rest.Config
	admin   kubernetes.Interface
	remotes dynamic.NamespaceableResourceInterface
	files   trust.Dir
	// bundles is a directory with only the own trust bundle.
	bundles string
}

func newRemotesBed(t *testing.T) *remotesBed {
	t.Helper()
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	b := &remotesBed{t: t, api: api, admin: kubernetes.NewForConfigOrDie(api),
		remotes: dynamic.NewForConfigOrDie(api).Resource(v1alpha1.RemoteClusters), files: trust.New(t, "c1", "c2", "c3"),
		bundles: t.TempDir()}
	populate(t, b.admin)
	_, err := b.admin.CoreV1().Namespaces().Apply(t.Context(), applycorev1.Namespace("semaphore"),
		metav1.ApplyOptions{FieldManager: "test"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b.bundles, "c1.pem"), b.bundle("c1"), 0o600))
	return b
}

func (b *remotesBed) bundle(cluster string) []byte {
	b.t.Helper()
	bundle, err := os.ReadFile(filepath.Join(b.files.Files("c1", "exporter").BundleDir, cluster+".pem"))
	must(b.t, err)
	return bundle
}

// remote returns a RemoteCluster with this spec and the trust bundle of its cluster.
func (b *remotesBed) remote(name, spec string) *unstructured.Unstructured {
	b.t.Helper()
	var content map[string]any
	must(b.t, yaml.Unmarshal([]byte(spec), &content))
	content["trustBundle"] = string(b.bundle(name))
	u := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))
	u.SetName(name)
	return u
}

func (b *remotesBed) create(u *unstructured.Unstructured) {
	b.t.Helper()
	kubetest.CreateObject(b.t, b.remotes, u)
}

// The exporter watches RemoteClusters. A broker is added and removed, and receives what its rules allow, while the
// streams to other brokers continue without repeats. The exporter also writes the bounds of the agents' broker.
func TestFollowsRemoteClusters(t *testing.T) {
	bed := newRemotesBed(t)
	admin, objects := bed.admin, bed.remotes
	c2, c3 := newBroker(t, bed.files, "c2"), newBroker(t, bed.files, "c3")
	create := func(name, spec string) {
		t.Helper()
		bed.create(bed.remote(name, spec))
	}
	patch := func(name, patch string, sub ...string) {
		t.Helper()
		if !json.Valid([]byte(patch)) {
			t.Fatal(patch)
		}
		_, err := objects.Patch(t.Context(), name, "application/merge-patch+json", []byte(patch),
			metav1.PatchOptions{}, sub...)
		must(t, err)
	}
	exporting := func(name, want string) {
		t.Helper()
		within(t, name+" is "+want, func() bool {
			u := kubetest.GetObject(t, objects, name)
			var o v1alpha1.RemoteCluster
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o))
			c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionExporting)
			return c != nil && c.Reason == want
		})
	}
	own := filepath.Join(t.TempDir(), "broker.yaml")
	must(t, os.WriteFile(own, []byte("localSubnets: [10.1.0.0/16]"), 0o600))
	e := startWith(t, bed.api, bed.files, alone+"subnetsFile: "+own, bed.bundles)

	// At the first address nobody listens.
	create("c2", `{podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24], broker: {address: "127.0.0.1:1", `+
		`otherAddresses: ["`+c2.address+`"]}}`)
	const all = "endpointslice shop/echo-1, node n1, service shop/echo, setmember shop/web"
	within(t, "c2 holds what is exported", func() bool { return c2.holds() == all })
	exporting("c2", "Connected")
	since, received := e.status().GetLinks()[0].GetSince().AsTime(), c2.changes()

	const specOfC3 = `podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 7801}, broker: ` +
		`{address: "`
	const withheld = `export: {rules: [{kinds: [services], namespaces: [shop], action: Withhold}]}`
	create("c3", `{`+specOfC3+c3.address+`"}, `+withheld+`}`)
	within(t, "c3 holds what it may see", func() bool { return c3.holds() == "node n1, setmember shop/web" })
	exporting("c3", "Connected")
	patch("c3", `{"spec":{"export":null}}`)
	within(t, "c3 holds all", func() bool { return c3.holds() == all })
	patch("c3", `{"spec":{"export":{"rules":[{"selector":{"matchLabels":{"semaphore.uw.systems/name":"front"}},`+
		`"action":"Withhold"}]}}}`)
	within(t, "c3 loses what its rule withholds",
		func() bool { return c3.holds() == "endpointslice shop/echo-1, node n1, service shop/echo" })
	if link := e.status().GetLinks()[0]; link.GetCluster() != "c2" || !link.GetConnected() ||
		!link.GetSince().AsTime().Equal(since) {
		t.Errorf("the stream to c2 is another: %v, and began at %s", link, since)
	}
	if n := c2.changes(); n != received {
		t.Errorf("c2 received %d changes while only c3 changed", n-received)
	}

	// The bounds of the agents' broker: c3 by its spec; c2 once its broker has assigned a port of the range.
	written := func() string {
		m, err := admin.CoreV1().ConfigMaps("semaphore").Get(t.Context(), "semaphore-remotes", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return m.Data[bounds.RemotesFile]
	}
	within(t, "c3 is in the bounds", func() bool {
		return strings.Contains(written(), "name: c3") && strings.Contains(written(), "listenPort: 7801")
	})
	patch("c2", `{"status":{"listenPort":4789}}`, "status")
	patch("c3", `{"spec":{"encryption":"permissive"}}`)
	within(t, "c3 is permissive", func() bool { return strings.Contains(written(), "encryption: permissive") })
	if strings.Contains(written(), "name: c2") {
		t.Errorf("a port outside of the range is passed on: %s", written())
	}
	patch("c2", `{"status":{"listenPort":7790}}`, "status")
	within(t, "c2 is in the bounds", func() bool { return strings.Contains(written(), "listenPort: 7790") })
	must(t, os.WriteFile(filepath.Join(filepath.Dir(own), bounds.RemotesFile), []byte(written()), 0o600))
	if s := bounds.LoadSubnets(volume.ReadFile, own, "c1", nil); len(s.Problems) > 0 || len(s.Remotes) != 2 ||
		s.Remotes["c2"].WireGuard.ListenPort != 7790 {
		t.Errorf("an agent reads %+v", s)
	}

	// Neither an operator's change that the broker refuses, nor the broker by a port, changes what agents have of c2. A
	// change of c3 shows that the exporter has seen the one before.
	marker := 0
	for what, wrong := range map[string][]string{
		"it overlaps the own cluster": {`{"spec":{"podSubnets":["10.1.2.0/24"]}}`},
		"it has the port of another":  {`{"status":{"listenPort":7801}}`, "status"},
		"its port is out of range":    {`{"status":{"listenPort":4789}}`, "status"},
		"it has no port":              {`{"status":{"listenPort":null}}`, "status"},
	} {
		patch("c2", wrong[0], wrong[1:]...)
		time.Sleep(2 * 300 * time.Millisecond) // the exporter takes changes together
		marker++
		patch("c3", fmt.Sprintf(`{"spec":{"nodeSubnets":["192.0.2.0/24","198.51.100.%d/32"]}}`, marker))
		within(t, what+": the exporter has seen it",
			func() bool { return strings.Contains(written(), fmt.Sprintf("198.51.100.%d/32", marker)) })
		if now := written(); !strings.Contains(now, "- 10.2.0.0/16") || strings.Contains(now, "10.1.2.0") ||
			!strings.Contains(now, "listenPort: 7790") {
			t.Errorf("%s: agents get %s", what, now)
		}
		patch("c2", `{"spec":{"podSubnets":["10.2.0.0/16"]}}`)
	}
	patch("c2", `{"status":{"listenPort":7790}}`, "status")

	// c3 is removed and added again. Objects deleted in between are not sent late.
	must(t, objects.Delete(t.Context(), "c3", metav1.DeleteOptions{}))
	within(t, "one stream is left", func() bool { return len(e.status().GetLinks()) == 1 })
	must(t, admin.CoreV1().Services("shop").Delete(t.Context(), "echo", metav1.DeleteOptions{}))
	within(t, "c2 knows the end", func() bool { return c2.holds() == "node n1, setmember shop/web" })
	if got := c3.holds(); got != "endpointslice shop/echo-1, node n1, service shop/echo" {
		t.Errorf("c3 received something: it holds %s", got)
	}
	create("c3", `{`+specOfC3+c3.address+`"}}`)
	within(t, "c3 holds what there is", func() bool { return c3.holds() == "node n1, setmember shop/web" })
	if link := e.status().GetLinks()[0]; !link.GetSince().AsTime().Equal(since) {
		t.Errorf("the stream to c2 is another: %v", link)
	}
}

// TestEncryptionLater: an exporter with a configuration that takes a RemoteCluster out of effect does not start:
// encryption needs nodeSubnets, which the object lacks.
func TestEncryptionLater(t *testing.T) {
	bed := newRemotesBed(t)
	c2 := newBroker(t, bed.files, "c2")
	e := startWith(t, bed.api, bed.files, "features: [services, policy]\n"+alone, bed.bundles)
	bed.create(bed.remote("c2", `{podSubnets: [10.2.0.0/16], broker: {address: "`+c2.address+`"}}`))
	within(t, "c2 holds what is exported",
		func() bool { return c2.holds() == "endpointslice shop/echo-1, service shop/echo, setmember shop/web" })
	e.stop()

	cfg := configOf(t, bed.api, bed.files, alone, bed.bundles)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Run(ctx, cfg); err == nil || !strings.Contains(err.Error(),
		"RemoteCluster c2: with this configuration it is no longer in effect: spec.nodeSubnets: none: name the subnets") {
		t.Errorf("the exporter ends with %v", err)
	}
}
