package report

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/waiting"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxNote, truncateEvent)
	testkit.OneLine(t, maxMessage, truncate)
}

// offering is a catalog that offers Services to c2: all as mirrors, or all as global ones.
func offering(mirror, global labels.Selector) *catalog.Catalog {
	return catalog.New(catalog.Rules{Features: config.Features{config.Services}, Clusters: []string{"c2"},
		Mirror: mirror, Global: global})
}

// withPorts is a Service of the namespace shop that has something to offer, and external one that has nothing.
func withPorts(name, uid string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10",
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}}
}

func external(namespace, name, uid string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}}
}

// TestConditionOfAnOffer: a Service with a setting that is ignored is offered all the same, and the reason says so. One
// that no cluster has confirmed is not known to be.
func TestConditionOfAnOffer(t *testing.T) {
	taken, refused, silent := (&answer{}).set("", true), (&answer{}).set("it has no port", true), &answer{}
	for _, test := range []struct {
		c2, c3        *answer
		ignored, want string
	}{
		{taken, taken, "", `Normal "status":"True","reason":"Offered","message":"offered to c2, c3 as a mirror"`},
		{taken, silent, "", `Normal "status":"True","reason":"Offered","message":"offered to c2 as a mirror; not confirmed ` +
			`yet by c3"`},
		{taken, silent, "x", `Warning "status":"True","reason":"InvalidServiceSetting","message":"offered to c2 as a ` +
			`mirror; not confirmed yet by c3; x"`},
		{silent, silent, "", `Warning "status":"Unknown","reason":"NotConfirmed","message":"not confirmed yet by c2, c3"`},
		{silent, silent, "x", `Warning "status":"Unknown","reason":"NotConfirmed","message":"not confirmed yet by c2, c3; ` +
			`x"`},
		{silent, refused, "x", `Warning "status":"False","reason":"Refused","message":"cluster c3: it has no port; not ` +
			`confirmed yet by c2; x"`},
	} {
		f := NewFeedback(nil, nil, func() map[string]Broker { return map[string]Broker{"c2": test.c2, "c3": test.c3} }, nil,
			nil)
		e, _ := f.statusOf(f.brokers(), &catalog.Offer{To: []string{"c2", "c3"}, Mirror: true, IgnoredSettings: test.ignored},
			&eventState{verdicts: map[string]string{}})
		want := strings.Replace(test.want, " ", ` {"type":"Offered",`, 1) + "}"
		if got := e.reason.EventType() + " " + condition(e); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// silent is a broker of another cluster that answers about one revision, and then about none.
type silent struct {
	Broker
	version, answers uint64
}

func (b *silent) Verdict(_ catalog.Key, revision uint64) (objection string, known bool) {
	return "", revision == b.answers
}

func (b *silent) VerdictVersion() uint64 { return b.version }

// TestAnAnswerEndsWithTheOffer: a Service that is no longer offered to a cluster, and then again, is not confirmed by
// that cluster's answer from before, and neither is another Service of its name. A cluster that goes is noticed
// whatever the versions of offers and verdicts add up to.
func TestAnAnswerEndsWithTheOffer(t *testing.T) {
	c := offering(labels.Everything(), labels.Nothing())
	now, uid := time.Now(), "u"
	put := func(to string) {
		s := withPorts("web", uid)
		s.Annotations = map[string]string{naming.AnnotationExportTo: to}
		c.PutService(s, now)
	}
	b := &silent{}
	brokers := map[string]Broker{"c2": b}
	f := NewFeedback(nil, c, func() map[string]Broker { return brokers }, nil, nil)
	says := func(want string) {
		t.Helper()
		f.dueEvents(now)
		s := f.services[key{"shop", "web"}]
		if !strings.Contains(s.current, want) {
			t.Errorf("it says %+v, want %q", s, want)
		}
		s.writtenEvent = s.current // so that only versions lead to the next pass
	}
	put("c2")
	before := c.OffersVersion()
	put("none")
	b.version = c.OffersVersion() - before // offers grow by as much as verdicts lose when c2 goes
	put("c2")
	says("not confirmed yet by c2")
	confirmed := func() {
		t.Helper()
		b.answers, f.seen = c.Offers()[0].Revision, nil
		says("offered to c2")
	}
	confirmed()
	c.DeleteService("shop", "web", now) // as kubectl replace --force does between two passes
	uid = "another"
	put("c2")
	says("not confirmed yet by c2")
	confirmed()
	put("none")
	delete(brokers, "c2")
	says("it is not offered to other clusters")
	brokers["c2"], b.answers = b, 0
	put("c2")
	says("not confirmed yet by c2")
}

// flapping is a broker of another cluster that gives another answer each time it is asked.
type flapping struct {
	Broker
	asked int
	// wait is how long an answer takes; such a broker objects to nothing.
	wait time.Duration
}

func (b *flapping) Verdict(catalog.Key, uint64) (objection string, known bool) {
	b.asked++
	if b.wait > 0 {
		time.Sleep(b.wait)
		return "", true
	}
	return fmt.Sprint("objection ", b.asked), true
}

func (b *flapping) VerdictVersion() uint64 { return uint64(b.asked) }

// TestAPassAsksForBrokersOnce: a pass over all Services asks once for the brokers, and passes that take long take a
// tenth of the time.
func TestAPassAsksForBrokersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, took, length = 4, time.Second, 10 * time.Minute
		c := offering(labels.Everything(), labels.Nothing())
		for i := range services {
			c.PutService(withPorts(fmt.Sprint("s", i), ""), time.Now())
		}
		slow, listed := &flapping{wait: took / services}, 0
		f := NewFeedback(nil, c, func() map[string]Broker {
			listed++
			return map[string]Broker{"c2": slow}
		}, nil, nil)
		f.Settle, f.Complete = 2*length, func() bool { return false }
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		_ = f.Run(ctx)
		passes := slow.asked / services
		if most := int(length / (share * took)); passes < most/2 || passes > most {
			t.Errorf("%d passes of %s in %s, want %d at most", passes, took, length, most)
		}
		if listed != passes {
			t.Errorf("%d passes asked for the brokers %d times", passes, listed)
		}
	})
}

// TestABrokerThatChangesItsMind: a broker of another cluster that changes its answers about all Services again and
// again leads to few writes for each of them, and a Service that was not written yet comes before them.
func TestABrokerThatChangesItsMind(t *testing.T) {
	const services, most = 50, 24
	c := offering(labels.Everything(), labels.Nothing())
	put := func(name string) { c.PutService(withPorts(name, name), time.Now()) }
	for i := range services {
		put(fmt.Sprint("s", i))
	}
	hostile := &flapping{}
	f := NewFeedback(nil, c, func() map[string]Broker { return map[string]Broker{"c2": hostile} }, nil,
		nil)
	writes := map[string]int{}
	now := time.Now()
	// As if everything that is due could be written at once, for an hour.
	for range time.Hour / PollInterval {
		now = now.Add(PollInterval)
		for _, e := range f.dueEvents(now) {
			s := f.services[key{e.offer.Namespace, e.offer.Name}]
			s.writes.Add(ofEvents, now)
			s.writtenEvent = s.current
			writes[e.offer.Name]++
		}
	}
	if len(writes) != services {
		t.Errorf("%d of %d Services were written", len(writes), services)
	}
	for name, n := range writes {
		if n > most {
			t.Errorf("%s was written %d times in an hour, and %d is the most", name, n, most)
			break
		}
	}
	now = now.Add(ofEvents.Most)
	put("z-new")
	if due := f.dueEvents(now); len(due) < services || due[0].offer.Name != "z-new" {
		t.Errorf("of %d that are due the new Service is not the first", len(due))
	}
}

// TestOneNamespaceInDeletion: a namespace in which nothing may be created any more delays the Events of no other, and a
// missing right delays all.
func TestOneNamespaceInDeletion(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	c := offering(labels.Nothing(), labels.Everything())
	for _, ns := range []string{"ends", "stays"} {
		kubetest.Namespace(t, admin, ns)
		c.PutService(external(ns, "web", ns), time.Now())
	}
	testkit.Must(t, admin.CoreV1().Namespaces().Delete(t.Context(), "ends", metav1.DeleteOptions{}))
	write := func(cfg *rest.Config) *Feedback {
		f := NewFeedback(kubernetes.NewForConfigOrDie(cfg), c, func() map[string]Broker { return nil },
			NewFeedbackMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		due := f.dueEvents(time.Now())
		if len(due) != 2 {
			t.Fatalf("%d Events are due", len(due))
		}
		for _, e := range due {
			testkit.Must(t, f.write(t.Context(), e))
		}
		return f
	}
	f := write(cfg)
	all := testkit.Value(admin.EventsV1().Events("stays").List(t.Context(), metav1.ListOptions{}))(t)
	if len(all.Items) != 1 || !f.noEventsUntil.IsZero() || f.waiting() {
		t.Errorf("%d Events, no more until %s, waits: %t", len(all.Items), f.noEventsUntil, f.waiting())
	}
	nobody := rest.CopyConfig(cfg)
	nobody.Impersonate.UserName = "nobody"
	if f = write(nobody); f.noEventsUntil.IsZero() || !f.waiting() {
		t.Error("a missing right is not noticed")
	}
	repeats := 0
	for _, s := range f.services {
		repeats += s.writes.Times
	}
	if repeats != 1 {
		t.Errorf("%d writes count, and the first was refused", repeats)
	}
}

// TestOfferedToTheOwnClusterAlone: the own broker receives each global Service and each export. Its owner learns why no
// other cluster does.
func TestOfferedToTheOwnClusterAlone(t *testing.T) {
	const annotation = "annotation semaphore.uw.io/export-to: "
	for _, test := range []struct {
		service, export string // the annotation on each; empty for none
		reason          finding.Code
		says            string
	}{
		{"c2", "", finding.Offered, "offered to c1, c2"},
		{"none", "", finding.NotOffered, annotation + `"none" names none`},
		{"none", "", finding.Refused, `cluster c1: its name is too long; it is not offered to other clusters: ` + annotation},
		{"c2;c3", "", finding.NotOffered, annotation + `"c2;c3" cannot be parsed`},
		{"c9", "", finding.NotOffered, annotation + `"c9" names "c9", for which no broker`},
		{"", "none", finding.NotOffered, annotation + `"none" of its ServiceExport names none`},
		{"c2,c9", "none", finding.NotOffered, annotation + `"c2,c9" and "none" of its ServiceExport names none`},
		{"c2", "c3", finding.NotOffered, annotation + `"c2" and "c3" of its ServiceExport names none`},
	} {
		rules := catalog.Rules{Features: config.Features{config.Services}, Own: "c1",
			Clusters: []string{"c1", "c2", "c3"}, Mirror: labels.Nothing(), Global: labels.Everything(), MultiCluster: true}
		annotated := func(value string) metav1.ObjectMeta {
			m := metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}
			if value != "" {
				m.Annotations = map[string]string{naming.AnnotationExportTo: value}
			}
			return m
		}
		c := catalog.New(rules)
		c.PutService(&corev1.Service{ObjectMeta: annotated(test.service), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10",
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}, time.Now())
		if test.export != "" {
			c.PutExport(&mcsv1beta1.ServiceExport{ObjectMeta: annotated(test.export)}, time.Now())
		}
		o := c.Offers()[0]
		own, taken := (&answer{}).set("", true), (&answer{}).set("", true)
		if test.reason == finding.Refused {
			own.set("its name is too long", true)
		}
		f := NewFeedback(nil, c, func() map[string]Broker {
			return map[string]Broker{"c1": own, "c2": taken, "c3": taken}
		}, nil, nil)
		if e, _ := f.statusOf(f.brokers(), &o, &eventState{verdicts: map[string]string{}}); e.reason != test.reason ||
			!strings.Contains(e.note, test.says) {
			t.Errorf("%q, %q: %s %q", test.service, test.export, e.reason, e.note)
		}
	}
}

// answered is what an apiserver answers a request.
func answered(r *http.Request, code int, text string) (*http.Response, error) {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// annotating is the feedback of an exporter that annotates Services of a catalog, and put puts one that is not offered.
func annotating(api kubetest.RoundTripper) (f *Feedback, put func(name, uid string)) {
	c := offering(labels.Nothing(), labels.Everything())
	f = NewFeedback(kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://apiserver", QPS: -1, Transport: api,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}}), c,
		func() map[string]Broker { return nil }, NewFeedbackMetrics(prometheus.NewRegistry()),
		slog.New(slog.DiscardHandler))
	f.Annotates, f.Complete = true, func() bool { return true }
	return f, func(name, uid string) {
		c.PutService(external("shop", name, uid), time.Now())
	}
}

const anEvent = `{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"x"}}`

// TestAnnotationsThatStay: annotations of Services that are no longer offered keep no Event of another Service waiting,
// however many they are: those that a policy keeps, those that cannot be read, and those that go. A removal that fails
// is tried less and less often.
func TestAnnotationsThatStay(t *testing.T) {
	const denied = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":` +
		`"admission webhook \"validation.gatekeeper.sh\" denied the request: frozen"}`
	const read = `{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namespace":"shop","uid":"u",` +
		`"annotations":{"semaphore.uw.io/export-status":"x"}}}`
	for _, test := range []struct {
		stale, get, patch int
		each              int // the most requests for each in half an hour
	}{
		{20, http.StatusOK, http.StatusForbidden, 2 * 16},
		{300, http.StatusOK, http.StatusForbidden, 2 * 16},
		{300, http.StatusForbidden, http.StatusOK, 16},
		{2000, http.StatusOK, http.StatusOK, 2},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests, wrote := 0, time.Time{}
				f, put := annotating(func(r *http.Request) (*http.Response, error) {
					name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
					text := map[int]string{http.StatusOK: read, http.StatusForbidden: denied}
					switch {
					case r.Method == http.MethodPost:
						wrote = time.Now()
						return answered(r, http.StatusCreated, anEvent)
					case name == "services":
						return answered(r, http.StatusOK, `{"kind":"ServiceList","apiVersion":"v1","metadata":{},"items":[]}`)
					case name == "z":
						return answered(r, http.StatusOK, read)
					case r.Method == http.MethodPatch:
						requests++
						return answered(r, test.patch, text[test.patch])
					}
					requests++
					return answered(r, test.get, text[test.get])
				})
				for i := range test.stale {
					f.stale[key{"shop", fmt.Sprint("a", i)}] = waiting.Repeats{}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				done := make(chan error)
				go func() { done <- f.Run(ctx) }()
				time.Sleep(time.Minute)
				for n := range 4 {
					began := time.Now()
					put("z", fmt.Sprint("z", n))
					time.Sleep(7 * time.Minute)
					if took := wrote.Sub(began); took < 0 || took > 5*time.Second {
						t.Errorf("%+v: the Event %d took %s", test, n, took)
					}
				}
				if <-done; requests < test.stale || requests > test.each*test.stale {
					t.Errorf("%+v: %d requests, that is %d for each", test, requests, requests/test.stale)
				}
				if test.get+test.patch == 2*http.StatusOK && len(f.stale) > 0 {
					t.Errorf("%d annotations stay", len(f.stale))
				}
			})
		})
	}
}

// TestOneRightIsMissing: Services whose annotation may not be written keep no Event of another one waiting.
func TestOneRightIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, put := annotating(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch {
				return answered(r, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure",`+
					`"reason":"Forbidden","code":403,"message":"services \"a1\" is forbidden: User \"semaphore-exporter\" cannot `+
					`patch resource \"services\" in API group \"\" in the namespace \"shop\""}`)
			}
			return answered(r, http.StatusCreated, anEvent)
		})
		for i := range 2 * maxWrites {
			put(fmt.Sprint("a", i), fmt.Sprint("a", i))
		}
		put("z", "z")
		for n := range 4 {
			began := time.Now()
			for s := f.services[key{"shop", "z"}]; s == nil || s.current != s.writtenEvent ||
				s.uid != types.UID(fmt.Sprint("z", n)); s = f.services[key{"shop", "z"}] {
				put("z", fmt.Sprint("z", n))
				due := f.dueEvents(time.Now())
				for _, e := range due[:min(len(due), maxWrites)] {
					testkit.Must(t, f.write(t.Context(), e))
				}
				if time.Sleep(PollInterval); time.Since(began) > 6*time.Minute {
					t.Fatalf("change %d has no Event after six minutes", n)
				}
			}
		}
	})
}
