package stored

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/applytest"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// drainer is a Drains that runs, with the rights that the manifests give it, and what it published.
type drainer struct {
	*Drains
	t    *testing.T
	api  kubernetes.Interface // of one who may do everything
	stop func()

	mu        sync.Mutex
	published []string
}

// asBroker is a client with the rights of the manifests.
func asBroker(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	limited := rest.CopyConfig(cfg)
	limited.Impersonate.UserName = "system:serviceaccount:semaphore:semaphore-broker"
	return kubernetes.NewForConfigOrDie(limited)
}

func startDrains(t *testing.T, cfg *rest.Config) *drainer {
	t.Helper()
	f := &drainer{t: t, api: kubernetes.NewForConfigOrDie(cfg)}
	f.Drains = NewDrains(asBroker(t, cfg), "semaphore", func(s choice.Drains) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.published = append(f.published, shown(s))
	}, options())
	f.stop = testkit.Run(t, f.Run)
	applytest.Eventually(t, "the drains are known",
		func() (bool, string) { return f.Synced(), strings.Join(finding.Texts(f.Findings()), "; ") })
	return f
}

func shown(s choice.Drains) string {
	var out []string
	for _, d := range s.All() {
		out = append(out, d.String())
	}
	return strings.Join(out, ", ")
}

// publishes waits until the last published set is this.
func (f *drainer) publishes(what, want string) {
	f.t.Helper()
	applytest.Eventually(f.t, what, func() (bool, string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.published) > 0 && f.published[len(f.published)-1] == want, fmt.Sprintf("%q", f.published)
	})
}

// data is what is in the ConfigMap.
func (f *drainer) data() map[string]string {
	f.t.Helper()
	cm, err := f.api.CoreV1().ConfigMaps("semaphore").Get(f.t.Context(), DrainsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return cm.Data
}

func (f *drainer) edit(patch string) {
	f.t.Helper()
	testkit.Value(f.api.CoreV1().ConfigMaps("semaphore").Patch(f.t.Context(), DrainsName, types.MergePatchType,
		[]byte(patch),
		metav1.PatchOptions{}))(f.t)
}

func (f *drainer) add(d choice.Drain) {
	f.t.Helper()
	testkit.Must(f.t, f.Add(f.t.Context(), d))
}

func TestDrains(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Grant(t, cfg, "semaphore-broker", "../../deploy/features/services/broker/rbac.yaml")
	c2, echo := choice.Target{Cluster: "c2"}, choice.Target{Cluster: "c2", Namespace: "shop", Service: "echo"}
	n1 := choice.Drain{Target: choice.Target{Cluster: "c2", Node: "n1"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.1.0/24")}, By: "ops"}
	clean := func() {
		if err := admin.CoreV1().ConfigMaps("semaphore").Delete(t.Context(), DrainsName,
			metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}

	t.Run("kept, seen, and removed", func(t *testing.T) {
		defer clean()
		f := startDrains(t, cfg)
		f.publishes("at first there is none", "")
		f.add(choice.Drain{Target: c2, Since: time.Now(), By: "ops"})
		if got := shown(f.Held()); got != "cluster c2" {
			t.Errorf("after the answer %q holds", got)
		}
		f.add(n1)
		f.add(choice.Drain{Target: echo})
		f.publishes("three", "cluster c2, node c2/n1, service c2:shop/echo")
		if got := f.data(); len(got) != 3 || got["node.c2.n1"] != n1.Text() ||
			!strings.Contains(got["cluster.c2"], "by: ops\n") {
			t.Errorf("%q", got)
		}
		cm, err := f.api.CoreV1().ConfigMaps("semaphore").Get(t.Context(), DrainsName, metav1.GetOptions{})
		if err != nil || cm.Labels[naming.LabelManagedBy] != naming.ManagedByBroker {
			t.Errorf("labels %v, %v", cm.Labels, err)
		}
		f.stop()

		// Another broker, after this one.
		f = startDrains(t, cfg)
		f.publishes("as it was", "cluster c2, node c2/n1, service c2:shop/echo")
		removed, err := f.Remove(t.Context(), c2)
		if err != nil || fmt.Sprint(removed) != "[cluster c2]" {
			t.Errorf("removed %v, %v", removed, err)
		}
		removed, err = f.Remove(t.Context(), c2)
		if err != nil || len(removed) != 0 {
			t.Errorf("removed again: %v, %v", removed, err)
		}
		f.publishes("two", "node c2/n1, service c2:shop/echo")
		clean()
		f.publishes("taken away, they hold no more", "")
		f.add(n1)
		f.publishes("made again", "node c2/n1")
		if p := finding.Texts(f.Findings()); len(p) != 0 {
			t.Errorf("%q", p)
		}
	})

	t.Run("edited by hand", func(t *testing.T) {
		defer clean()
		f := startDrains(t, cfg)
		f.add(n1)
		f.edit(`{"data":{"mine":"cluster: c2\n","typing-error":"clutser: c3\n"}}`)
		f.publishes("what is edited holds", "cluster c2, node c2/n1")
		if p := finding.Texts(f.Findings()); len(p) != 1 ||
			!strings.Contains(p[0], "drain typing-error of ConfigMap semaphore/semaphore-drains is not active: ") ||
			!strings.Contains(p[0], "clutser") {
			t.Errorf("%q", p)
		}
		f.edit(`{"data":{"typing-error":null,"node.c2.n1":null}}`)
		f.publishes("what is taken out does not", "cluster c2")
		// Under another key than ours.
		if removed, err := f.Remove(t.Context(), c2); err != nil || len(removed) != 1 || len(f.data()) != 0 ||
			len(finding.Texts(f.Findings())) != 0 {
			t.Errorf("removed %v, %v; there is %v; %q", removed, err, f.data(), finding.Texts(f.Findings()))
		}
		f.edit(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"helm"}},"data":{"mine":"cluster: c2\n"}}`)
		applytest.Eventually(t, "someone else's is not read", func() (bool, string) {
			p := finding.Texts(f.Findings())
			return len(p) == 1 && strings.Contains(p[0], "lacks the label"), fmt.Sprintf("%q", p)
		})
		if err := f.Add(t.Context(), n1); err == nil || !strings.Contains(err.Error(), "semaphore did not create it") ||
			len(f.data()) != 1 {
			t.Errorf("%v; %v", err, f.data())
		}
		if shown(f.Held()) != "" {
			t.Errorf("%s holds", shown(f.Held()))
		}
	})

	t.Run("over", func(t *testing.T) {
		defer clean()
		f := startDrains(t, cfg)
		f.add(n1)
		f.add(choice.Drain{Target: c2, Until: time.Now().Add(8 * time.Second)}) // longer than a write takes
		f.publishes("one is over", "node c2/n1")
		f.mu.Lock()
		if got := fmt.Sprintf("%q", f.published); got != `["" "node c2/n1" "cluster c2, node c2/n1" "node c2/n1"]` {
			t.Errorf("published %s", got)
		}
		f.mu.Unlock()
		applytest.Eventually(t, "it is taken out", func() (bool, string) {
			return len(f.data()) == 1, fmt.Sprint(f.data())
		})
	})

	// Another's write in between is kept.
	t.Run("conflict", func(t *testing.T) {
		defer clean()
		f := startDrains(t, cfg)
		f.add(n1)
		f.publishes("one", "node c2/n1")
		other := NewDrains(asBroker(t, cfg), "semaphore", func(choice.Drains) {}, options())
		testkit.Run(t, other.Run)
		applytest.Eventually(t, "known", func() (bool, string) { return other.Synced(), "" })
		var wg sync.WaitGroup
		for i := range 4 {
			for _, d := range []*Drains{f.Drains, other} {
				wg.Go(func() {
					target := choice.Target{Namespace: "shop", Service: fmt.Sprint("s", i)}
					if d == other {
						target.Cluster = "c3"
					}
					if err := d.Add(t.Context(), choice.Drain{Target: target}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		if got := f.data(); len(got) != 9 {
			t.Errorf("%v", got)
		}
	})

	t.Run("refused", func(t *testing.T) {
		f := startDrains(t, cfg)
		if err := f.Add(t.Context(), choice.Drain{Target: n1.Target}); err == nil ||
			!strings.Contains(err.Error(), "prefixes: none") {
			t.Error(err)
		}
		if err := f.Add(t.Context(), choice.Drain{Target: c2, By: strings.Repeat("x", 2<<20)}); err == nil ||
			!strings.Contains(err.Error(), "drain cluster c2: ConfigMap semaphore/semaphore-drains: ") {
			t.Error(err)
		}
		if f.data() != nil {
			t.Error(f.data())
		}
		early := NewDrains(asBroker(t, cfg), "semaphore", func(choice.Drains) {}, options())
		if err := early.Add(t.Context(), n1); err == nil || !strings.Contains(err.Error(), "not known yet") {
			t.Error(err)
		}
	})

	// Without the right to read them they are not known, which is reported, and no empty set is published.
	t.Run("not allowed", func(t *testing.T) {
		nobody := rest.CopyConfig(cfg)
		nobody.Impersonate.UserName = "nobody"
		published := make(chan choice.Drains, 10)
		d := NewDrains(kubernetes.NewForConfigOrDie(nobody), "semaphore", func(s choice.Drains) { published <- s }, options())
		testkit.Run(t, d.Run)
		applytest.Eventually(t, "the reason is reported", func() (bool, string) {
			p := strings.Join(finding.Texts(d.Findings()), "; ")
			return strings.Contains(p, "drains are not known") && strings.Contains(p, "forbidden"), p
		})
		if d.Synced() || len(published) > 0 {
			t.Errorf("synced %v, published %d", d.Synced(), len(published))
		}
	})
}

// TestLastPublishedIsNewest: a call that waits for another publishes what is written meanwhile, and not what it was
// called for.
func TestLastPublishedIsNewest(t *testing.T) {
	last := ""
	d := NewDrains(nil, "semaphore", func(s choice.Drains) { last = shown(s) }, options())
	holds := func(version string, all ...choice.Drain) {
		cm := d.empty()
		cm.ResourceVersion, cm.Data = version, map[string]string{}
		for _, one := range all {
			cm.Data[one.Key()] = one.Text()
		}
		d.belief.Informed(d.key(), cm, false)
	}
	c2, c3 := choice.Drain{Target: choice.Target{Cluster: "c2"}}, choice.Drain{Target: choice.Target{Cluster: "c3"}}
	holds("1", c2)
	d.mu.Lock()
	done := testkit.Run(t, func(context.Context) error { d.publish(); return nil })
	applytest.Eventually(t, "it waits for the lock", func() (bool, string) {
		all := make([]byte, 1<<20)
		all = all[:runtime.Stack(all, true)]
		return slices.ContainsFunc(strings.Split(string(all), "\n\n"), func(one string) bool {
			return strings.Contains(one, "[sync.Mutex.Lock") && strings.Contains(one, "(*Drains).publish")
		}), string(all)
	})
	holds("2", c2, c3)
	d.mu.Unlock()
	done()
	if want := "cluster c2, cluster c3"; last != want {
		t.Errorf("%q was published last, not %q", last, want)
	}
}

// A drain of an operator is active until it ends, also while the broker may not watch the ConfigMap, which it reports;
// and what somebody else then does to the ConfigMap is noticed within a few seconds.
func TestADrainOutlivesAWatchThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &unwatched{watches: make(chan struct{})}
		client := kubernetes.NewForConfigOrDie(&rest.Config{QPS: -1, Transport: kubetest.RoundTripper(api.answer),
			ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		d := NewDrains(client, "semaphore", func(choice.Drains) {}, options())
		testkit.Run(t, d.Run)
		testkit.Must(t, d.Wait(t.Context()))
		synctest.Wait()
		api.refuses.Store(true)
		close(api.watches)
		is := func(what, want string) {
			t.Helper()
			texts := strings.Join(finding.Texts(d.Findings()), "; ")
			if got := shown(d.Held()); got != want || !strings.Contains(texts, "no list for you") {
				t.Errorf("%s %q holds, findings %q", what, got, texts)
			}
		}
		testkit.Must(t, d.Add(t.Context(), choice.Drain{Target: choice.Target{Cluster: "c2"}}))
		time.Sleep(3 * writes.BeliefFor)
		is("after a while", "cluster c2")
		api.silent.Store(true)
		time.Sleep(3 * writes.BeliefFor)
		is("if no answer comes either", "cluster c2")
		api.silent.Store(false)
		api.stored.Store(nil)
		time.Sleep(2 * writes.BeliefFor)
		is("after somebody deleted it", "")
		testkit.Must(t, d.Add(t.Context(), choice.Drain{Target: choice.Target{Cluster: "c3"}}))
		time.Sleep(3 * writes.BeliefFor)
		is("made again", "cluster c3")
		api.watches = make(chan struct{})
		api.refuses.Store(false)
		time.Sleep(2 * time.Minute)
		if texts := finding.Texts(d.Findings()); len(texts) != 0 || shown(d.Held()) != "cluster c3" {
			t.Errorf("when it may watch again, %q holds, findings %q", shown(d.Held()), texts)
		}
		close(api.watches)
	})
}

// A drain that admission takes out of the ConfigMap, or whose ConfigMap it takes from the broker, is not confirmed.
func TestADrainThatAdmissionDropsIsRefused(t *testing.T) {
	for name, drops := range map[string]func(*corev1.ConfigMap){
		"key":   func(cm *corev1.ConfigMap) { cm.Data = nil },
		"label": func(cm *corev1.ConfigMap) { cm.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &unwatched{watches: make(chan struct{}), admits: drops}
				client := kubernetes.NewForConfigOrDie(&rest.Config{QPS: -1, Transport: kubetest.RoundTripper(api.answer),
					ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
				d := NewDrains(client, "semaphore", func(choice.Drains) {}, options())
				testkit.Run(t, d.Run)
				testkit.Must(t, d.Wait(t.Context()))
				err := d.Add(t.Context(), choice.Drain{Target: choice.Target{Cluster: "c2"}})
				if err == nil || !strings.Contains(err.Error(), "changed the write") || shown(d.Held()) != "" {
					t.Errorf("%v; %q holds", err, shown(d.Held()))
				}
			})
		})
	}
}

// unwatched is an apiserver with the ConfigMap of drains. Its watches report nothing, and end when watches is closed.
type unwatched struct {
	watches chan struct{}
	stored  atomic.Pointer[corev1.ConfigMap]
	// refuses makes it refuse lists and watches, and silent makes it answer no read.
	refuses, silent atomic.Bool
	writes          atomic.Int64
	// admits, if not nil, changes what is written.
	admits func(*corev1.ConfigMap)
}

func (u *unwatched) answer(r *http.Request) (*http.Response, error) {
	lists, now := r.Method == http.MethodGet && !strings.HasSuffix(r.URL.Path, DrainsName), u.stored.Load()
	status := func(code int32, reason metav1.StatusReason) (*http.Response, error) {
		return respond(int(code), metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: reason, Message: "no list for you", Code: code})
	}
	switch {
	case lists && u.refuses.Load():
		return status(http.StatusForbidden, metav1.StatusReasonForbidden)
	case lists && r.URL.Query().Has("sendInitialEvents"):
		return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case lists && r.URL.Query().Has("watch"):
		body, end := io.Pipe()
		watches := u.watches
		go func() {
			select {
			case <-watches:
			case <-r.Context().Done():
			}
			end.Close()
		}()
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: body}, nil
	case lists:
		list := corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"},
			ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(u.writes.Load() + 1)}}
		if now != nil {
			list.Items = append(list.Items, *now)
		}
		return respond(http.StatusOK, list)
	case r.Method == http.MethodGet && u.silent.Load():
		return nil, errors.New("no answer")
	case r.Method == http.MethodGet && now == nil:
		return status(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method == http.MethodGet:
		return respond(http.StatusOK, now)
	}
	out := &corev1.ConfigMap{}
	if err := json.NewDecoder(r.Body).Decode(out); err != nil {
		return nil, err
	}
	n := fmt.Sprint(u.writes.Add(1))
	out.TypeMeta, out.ResourceVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, n
	if r.Method == http.MethodPost {
		out.UID = types.UID(n)
	}
	if u.admits != nil {
		u.admits(out)
	}
	u.stored.Store(out)
	return respond(http.StatusOK, out)
}

func respond(code int, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data))}, err
}

func options() apply.Options {
	out, _ := applytest.Options()
	return out
}
