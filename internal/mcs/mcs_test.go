package mcs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

// counted counts the requests that an apiserver answers, and those of them that read definitions.
type counted struct {
	mu                sync.Mutex
	all, ofDefinition int
	next              http.RoundTripper
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.all++
	if strings.Contains(r.URL.Path, "customresourcedefinitions") {
		c.ofDefinition++
	}
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

func (c *counted) reset() (all, ofDefinition int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, ofDefinition = c.all, c.ofDefinition
	c.all, c.ofDefinition = 0, 0
	return all, ofDefinition
}

// clock is a clock that only the test advances.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// environment is a real apiserver with a namespace, and a client whose requests are counted.
type environment struct {
	t      *testing.T
	crds   *apiextensionsclient.Clientset
	client *Client
	counted
	clock
}

func newEnvironment(t *testing.T) *environment {
	e := &environment{t: t, clock: clock{at: time.Now()}}
	cfg := kubetest.Start(t)
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(cfg), "shop")
	e.crds = apiextensionsclient.NewForConfigOrDie(cfg)
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		e.next = next
		return &e.counted
	})
	var err error
	e.client, err = New(cfg, "test")
	testkit.Must(t, err)
	e.client.served.now = e.now
	return e
}

// define applies both definitions after change, and waits until the apiserver serves them.
func (e *environment) define(change func(*apiextensionsv1.CustomResourceDefinition)) {
	e.t.Helper()
	all := e.crds.ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range testkit.Value(Definitions())(e.t) {
		change(d)
		have, err := all.Get(e.t.Context(), d.Name, metav1.GetOptions{})
		if err == nil {
			d.ResourceVersion = have.ResourceVersion
			_, err = all.Update(e.t.Context(), d, metav1.UpdateOptions{})
		} else {
			_, err = all.Create(e.t.Context(), d, metav1.CreateOptions{})
		}
		testkit.Must(e.t, err)
	}
	testkit.Eventually(e.t, 3*time.Minute, "the API", func() error {
		for _, list := range []string{mcsv1beta1.ServiceImportPluralName, mcsv1beta1.ServiceExportPluralName} {
			version, err := e.client.Version(e.t.Context())
			if err != nil {
				return err
			}
			client, err := e.client.in(version)
			if err != nil {
				return err
			}
			if err := client.Get().Resource(list).Do(e.t.Context()).Error(); err != nil {
				return err
			}
		}
		return nil
	})
	e.reset()
}

func (e *environment) undefine() {
	e.t.Helper()
	for _, name := range names {
		testkit.Must(e.t, e.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(e.t.Context(), name,
			metav1.DeleteOptions{}))
	}
	e.gone()
}

// gone waits until there are no definitions.
func (e *environment) gone() {
	e.t.Helper()
	testkit.Eventually(e.t, 3*time.Minute, "no definition", func() error {
		for _, name := range names {
			if _, err := e.crds.ApiextensionsV1().CustomResourceDefinitions().Get(e.t.Context(), name,
				metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
}

func serviceImport(name string) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Port: 80}}}}
}

// TestRequests: a real apiserver gets two requests for a ServiceImport with a status, and two for the definitions
// within a time, however many imports are written. Each list reads the definitions before and after.
func TestRequests(t *testing.T) {
	e := newEnvironment(t)
	e.define(func(*apiextensionsv1.CustomResourceDefinition) {})
	imports, ctx := e.client.Imports(), t.Context()
	const n = 50
	write := func(i int) {
		t.Helper()
		made, err := imports.Create(ctx, serviceImport(fmt.Sprintf("echo-%d", i)))
		testkit.Must(t, err)
		made.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "c1"}}
		testkit.Value(imports.UpdateStatus(ctx, made))(t)
	}
	is := func(what string, all, ofDefinition int) {
		t.Helper()
		if a, d := e.reset(); a != all || d != ofDefinition {
			t.Errorf("%s: %d requests, %d of them for definitions; not %d and %d", what, a, d, all, ofDefinition)
		}
	}
	for i := range n {
		write(i)
	}
	is("writes of objects", 2*n+2, 2)
	var wait sync.WaitGroup
	e.advance(trusted)
	for i := range n {
		wait.Go(func() {
			_, err := imports.Get(ctx, "shop", fmt.Sprintf("echo-%d", i))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	is("reads at once, when the answer is too old", n+2, 2)
	for i := range n {
		testkit.Must(t, imports.Delete(ctx, "shop", fmt.Sprintf("echo-%d", i), metav1.DeleteOptions{}))
	}
	is("deletions", n, 0)
	for range 2 {
		testkit.Value(imports.Follow("", nil).ListWithContext(ctx, metav1.ListOptions{}))(t)
	}
	is("two lists", 2*(1+4), 2*4)
	if _, err := imports.Get(ctx, "shop", "none"); !apierrors.IsNotFound(err) {
		t.Errorf("an object that does not exist: %v", err)
	}
	is("an object that does not exist", 3, 2)
	if _, err := imports.Create(ctx, func() *mcsv1beta1.ServiceImport {
		i := serviceImport("echo")
		i.Namespace = "none"
		return i
	}()); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace that does not exist: %v", err)
	}
	e.reset()

	// Another writer changed it: the definition may have been applied again since.
	made, err := imports.Create(ctx, serviceImport("echo"))
	testkit.Must(t, err)
	_, err = imports.Update(ctx, func() *mcsv1beta1.ServiceImport {
		i := made.DeepCopy()
		i.Labels = map[string]string{"a": "b"}
		return i
	}())
	testkit.Must(t, err)
	e.reset()
	if _, err := imports.Update(ctx, made); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old object: %v", err)
	}
	testkit.Value(imports.Get(ctx, "shop", "echo"))(t)
	is("a conflict, and a read", 2+2, 2)
}

// TestRefusedReads: the error of a read says what the apiserver said: which right is missing, and whose.
func TestRefusedReads(t *testing.T) {
	cfg := rest.CopyConfig(kubetest.Start(t))
	cfg.Impersonate.UserName = "nobody"
	client := testkit.Value(New(cfg, "test"))(t)
	for what, read := range map[string]func(context.Context) (string, error){
		`cannot get resource "customresourcedefinitions"`: client.Version,
		`cannot get resource "clusterproperties"`:         client.ClusterID,
	} {
		if _, err := read(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "nobody" `+what) {
			t.Errorf("%v, want %s", err, what)
		}
	}
}

// TestRememberedVersion: whatever version is remembered, no object counts as absent because its API is absent. If the
// definitions are deleted or serve another version, the next request reports that, or is sent again.
func TestRememberedVersion(t *testing.T) {
	e := newEnvironment(t)
	imports, ctx := e.client.Imports(), t.Context()
	for range 5 {
		if _, err := imports.Get(ctx, "shop", "echo"); !errors.Is(err, ErrNotServed) || apierrors.IsNotFound(err) {
			t.Fatalf("without definitions: %v", err)
		}
	}
	if all, _ := e.reset(); all != 1 {
		t.Errorf("%d requests within the same second while there is no definition", all)
	}
	e.define(func(*apiextensionsv1.CustomResourceDefinition) {})
	e.advance(untrusted)
	made := testkit.Value(imports.Create(ctx, serviceImport("echo")))(t)

	// Only v1alpha1, as in the definitions of v0.2.
	e.define(func(d *apiextensionsv1.CustomResourceDefinition) {
		for i := range d.Spec.Versions {
			d.Spec.Versions[i].Served = d.Spec.Versions[i].Name == "v1alpha1"
		}
	})
	testkit.Eventually(t, 3*time.Minute, "the end of v1beta1", func() error {
		client, err := e.client.in("v1beta1")
		if err == nil {
			err = client.Get().Resource(mcsv1beta1.ServiceImportPluralName).Do(ctx).Error()
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("v1beta1 is still served: %v", err)
		}
		return nil
	})
	if have, err := imports.Get(ctx, "shop", "echo"); err != nil || have.UID != made.UID {
		t.Errorf("in another version: %v", err)
	}
	if have, err := imports.UpdateStatus(ctx, made); err != nil || have.UID != made.UID {
		t.Errorf("a write in another version: %v", err)
	}

	e.undefine()
	for what, do := range map[string]func() error{
		"read":   func() error { _, err := imports.Get(ctx, "shop", "echo"); return err },
		"create": func() error { _, err := imports.Create(ctx, serviceImport("more")); return err },
		"update": func() error { _, err := imports.Update(ctx, made); return err },
		"delete": func() error { return imports.Delete(ctx, "shop", "echo", metav1.DeleteOptions{}) },
	} {
		e.client.served.version, e.client.served.err, e.client.served.until = "v1alpha1", nil, e.now().Add(trusted)
		if err := do(); !errors.Is(err, ErrNotServed) || apierrors.IsNotFound(err) {
			t.Errorf("%s by a remembered version without definitions: %v", what, err)
		}
	}
}

// TestEndingDefinition: while a definition ends, as an object with a finalizer keeps it, the reason of a refused create
// is the end of the API, and no missing right.
func TestEndingDefinition(t *testing.T) {
	e := newEnvironment(t)
	e.define(func(*apiextensionsv1.CustomResourceDefinition) {})
	imports, ctx := e.client.Imports(), t.Context()
	kept := serviceImport("kept")
	kept.Finalizers = []string{"example.org/keep"}
	testkit.Value(imports.Create(ctx, kept))(t)
	crds := e.crds.ApiextensionsV1().CustomResourceDefinitions()
	for _, name := range names {
		testkit.Must(t, crds.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	client := testkit.Value(e.client.in("v1beta1"))(t)
	testkit.Eventually(t, time.Minute, "a create that is refused", func() error {
		err := client.Post().Namespace("shop").Resource(mcsv1beta1.ServiceImportPluralName).
			Body(serviceImport("more")).Param("dryRun", metav1.DryRunAll).Do(ctx).Error()
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("the apiserver answers %v", err)
		}
		return nil
	})
	e.client.served.version, e.client.served.err, e.client.served.until = "v1beta1", nil, e.now().Add(trusted)
	if _, err := imports.Create(ctx, serviceImport("more")); !errors.Is(err, ErrNotServed) {
		t.Errorf("create by a remembered version while the definition ends: %v", err)
	}
	testkit.Must(t, client.Patch(types.MergePatchType).Namespace("shop").Resource(mcsv1beta1.ServiceImportPluralName).
		Name("kept").Body([]byte(`{"metadata":{"finalizers":null}}`)).Do(ctx).Error())
	e.gone()
}

// TestBelievedDeletions: a watch with many deletions reads the definitions once for all deletions before the request,
// and drops those that come with the end of the API.
func TestBelievedDeletions(t *testing.T) { synctest.Test(t, testBelievedDeletions) }

func testBelievedDeletions(t *testing.T) {
	source, questions, answer := watch.NewFake(), make(chan struct{}), make(chan error)
	w := newBelieved(t.Context(), source, func(context.Context) error {
		questions <- struct{}{}
		return <-answer
	})
	defer w.Stop()
	takes := func(n int) {
		t.Helper()
		for range n {
			if event := <-w.ResultChan(); event.Type != watch.Deleted {
				t.Fatalf("event %v", event)
			}
		}
	}
	go source.Modify(serviceImport("modified"))
	if event := <-w.ResultChan(); event.Type != watch.Modified {
		t.Fatalf("event %v", event)
	}
	go source.Delete(serviceImport("first"))
	<-questions
	for i := range 500 { // while the request is in flight
		source.Delete(serviceImport(fmt.Sprint(i)))
	}
	answer <- nil
	asked := 1
	for passed := 0; passed < 501; {
		select {
		case <-questions:
			asked++
			answer <- nil
		case event := <-w.ResultChan():
			if event.Type != watch.Deleted {
				t.Fatalf("event %v", event)
			}
			passed++
		}
	}
	if asked > 3 { // the last one may arrive only when the others are already being checked
		t.Errorf("%d questions for 501 deletions", asked)
	}
	go source.Delete(serviceImport("x"))
	<-questions
	answer <- nil
	takes(1)
	go source.Delete(serviceImport("y"))
	<-questions
	answer <- missing("it is gone")
	if event := <-w.ResultChan(); event.Type != watch.Error {
		t.Errorf("a deletion with the end of the API is passed on: %v", event)
	}
	if _, open := <-w.ResultChan(); open {
		t.Error("the watch continues")
	}
}

// TestBelievedLooks: a watch without events ends with an error five seconds after the API was last served, and not
// while that is unknown.
func TestBelievedLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		answers := []error{nil, errors.New("the apiserver does not answer"), nil, missing("it is gone")}
		w := newBelieved(t.Context(), watch.NewFake(), func(context.Context) error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		})
		defer w.Stop()
		event, open := <-w.ResultChan()
		if took := time.Since(began); !open || event.Type != watch.Error || took != 20*time.Second {
			t.Errorf("after %s: %v, open %t", took, event, open)
		}
		if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) ||
			!strings.Contains(err.Error(), "it is gone") {
			t.Errorf("the error is %v", err)
		}
		if _, open := <-w.ResultChan(); open {
			t.Error("the watch continues")
		}
	})
}
