package operator

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/browser"
)

// TestInABrowser: in Chromium the page shows what semaphorectl status joins of the same answer; a tunnel that the
// broker finds silent turns red within 5 s; names of other clusters become text; a person without a mouse or without
// sight gets the same; and the browser complains about nothing.
func TestInABrowser(t *testing.T) {
	browser.Needs(t)
	const hostile = `c3<img src=x onerror="document.title='owned'"></td><script>document.title='owned'</script>`
	var silent, away atomic.Bool
	slow := make(chan struct{}, 1) // a reading takes long
	var last atomic.Pointer[semaphorev1.GetStatusResponse]
	address, stop := serveUntil(t, Sources{
		Status: func() *semaphorev1.GetStatusResponse {
			for away.Load() {
				select {
				case slow <- struct{}{}:
				default:
				}
				time.Sleep(10 * time.Millisecond)
			}
			s := broker("c2", hostile)
			s.MultiCluster = &semaphorev1.MultiClusterStatus{Imports: 5, Conflicts: 1, Exports: []*semaphorev1.ClusterExports{
				{Cluster: "c1", Services: 2}, {Cluster: "c2", Services: 4}}}
			if silent.Load() {
				s.Tunnels[0].NodesSilent, s.Tunnels[0].NodesTalking, s.SilentPairsTotal = 1, 0, 1
				s.SilentPairs = []*semaphorev1.SilentPair{{Node: "n1", Cluster: "c2", RemoteNode: "m1", Since: s.GetNow(),
					Reason: hostile}}
			}
			last.Store(judged(s))
			return s
		},
		Services: func() []services.Described {
			return []services.Described{{Namespace: "shop", Name: "echo", Global: true, Clusters: []services.DescribedCluster{
				{Cluster: "c2", Endpoints: 3, Ready: 2, InUse: true}, {Cluster: hostile, Endpoints: 1, Ready: 1}}},
				{Namespace: "shop", Name: "imported", Imported: true},
				{Namespace: "shop", Name: "unequal", Imported: true, Conflict: "cluster " + hostile + " decides"},
				{Namespace: "shop", Name: "mirrored"}}
		},
		Sets: func() []*semaphorev1.PolicySet {
			return []*semaphorev1.PolicySet{{Cluster: "c2", Namespace: "shop", Name: "web", Pods: []*semaphorev1.SetPod{{}}}}
		},
	})
	page := browser.Open(t, browser.Here, "http://"+address+"/")
	page.Window(1200, 900)
	equal := func() error {
		m := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{last.Load()}}})
		if got := page.Text("#verdict"); strings.TrimLeft(got, "✓✗ ") != m.Verdict {
			return fmt.Errorf("the verdict is %q; status says %q", got, m.Verdict)
		}
		rows := page.Rows("#links tbody")
		if len(rows) != len(m.Links) {
			return fmt.Errorf("%d links; status has %d", len(rows), len(m.Links))
		}
		for _, l := range m.Links {
			want := []string{l.At, l.From, l.State, l.Age, l.Lag, "0", fmt.Sprint(l.Kinds["service"]), "0", "0",
				fmt.Sprint(l.Exports), fmt.Sprint(l.Refused), fmt.Sprint(l.Retained), fmt.Sprintf("%d/%d", l.Talking, l.Nodes),
				fmt.Sprint(l.Silent),
				l.Handshake, "2.5 MB/s", "-"}
			if !slices.ContainsFunc(rows, func(row []string) bool { return slices.Equal(row[1:], want) }) {
				return fmt.Errorf("the links are %q; status has %q", rows, want)
			}
		}
		var want [][]string
		for _, f := range m.Findings {
			want = append(want, []string{f.Code, strings.Join(f.First, "; "), fmt.Sprint(f.Count), f.Side, f.Command})
		}
		found := page.Rows("#findings tbody")
		if len(found) != len(want) {
			return fmt.Errorf("%d findings; status has %d", len(found), len(want))
		}
		for i := range found {
			if !slices.Equal(found[i][1:], want[i]) {
				return fmt.Errorf("the findings are %q; status has %q", found, want)
			}
		}
		return nil
	}
	page.Wait(time.Minute, "the page shows what status says", equal)
	rows := page.Rows("#services tbody")
	if len(rows) != 4 || rows[0][3] != "c2 2/3, "+hostile+" 1/1 (not used)" {
		t.Fatalf("services: %q", rows)
	}
	for i, want := range []string{"global", "ServiceImport", "✗ ServiceImport: cluster " + hostile + " decides",
		"mirror"} {
		if rows[i][2] != want {
			t.Errorf("service %s is %q; want %q", rows[i][1], rows[i][2], want)
		}
	}
	got, want := page.Text("#when"), "; ServiceExports here 2, ServiceImports 5, conflicts 1; as of "
	if !strings.Contains(got, want) {
		t.Errorf("the page says %q, without %q", got, want)
	}
	if rows := page.Rows("#sets tbody"); len(rows) != 1 || rows[0][2] != "web" || rows[0][3] != "1" {
		t.Errorf("sets: %q", rows)
	}

	drawn := func() (drawn bool) {
		page.Eval("(m => m.complete && m.naturalWidth > 0)(document.getElementById('map'))", &drawn)
		return drawn
	}
	page.Wait(time.Minute, "the drawing is shown", func() error {
		if !drawn() {
			return fmt.Errorf("no drawing")
		}
		return nil
	})

	silent.Store(true)
	took := page.Wait(time.Minute, "a silent tunnel is red", func() error {
		var color string
		page.Eval("getComputedStyle(document.querySelector('#links tbody td')).color", &color)
		if first := page.Rows("#links tbody")[0]; first[0] != "✗ error" || first[2] != "c2" || color != "rgb(207, 34, 46)" {
			return fmt.Errorf("the first link is %q in %s", first, color)
		}
		return nil
	})
	t.Logf("red after %s", took)
	page.Wait(time.Minute, "the page shows what status says", equal)
	if got := page.Text("#announce"); got != "Findings: SilentPairs of c2" {
		t.Errorf("a screen reader is given %q", got)
	}
	if rows := page.Rows("#pairs tbody"); len(rows) != 1 || rows[0][1] != "c2/m1" {
		t.Errorf("pairs: %q", rows)
	}

	var hurt struct {
		Title    string
		Elements int
	}
	page.Eval("({title: document.title, elements: document.querySelectorAll('img:not(#map), td script, main "+
		"script').length})",
		&hurt)
	if strings.Contains(hurt.Title, "owned") || hurt.Elements > 0 {
		t.Errorf("a name became HTML: %+v", hurt)
	}

	// By keyboard: the link past the header first, then the sections, then tables that scroll.
	var focused []string
	for range 12 {
		page.Tab()
		var at string
		page.Eval("(a => a.textContent && a.tagName === 'A' ? a.getAttribute('href') : a.tagName + ' ' + "+
			"(a.getAttribute('aria-labelledby') || ''))(document.activeElement)", &at)
		focused = append(focused, at)
	}
	if focused[0] != "#main" || focused[1] != "#findings" || !slices.Contains(focused, "DIV links-title") {
		t.Errorf("the tab key leads to %q", focused)
	}
	spoken := page.Spoken()
	for _, want := range []string{"heading Links and tunnels", "region Links and tunnels", "columnheader Last handshake",
		"navigation Sections", "cell ✗ error"} {
		if !slices.Contains(spoken, want) {
			t.Errorf("a screen reader is not given %q", want)
		}
	}
	if !slices.ContainsFunc(spoken, func(s string) bool {
		return strings.HasPrefix(s, "image The clusters and their connections")
	}) {
		t.Errorf("the drawing has no words: %q", spoken)
	}

	background := func() (color string) {
		page.Eval("getComputedStyle(document.body).backgroundColor", &color)
		return color
	}
	if got := background(); got != "rgb(255, 255, 255)" {
		t.Errorf("light is %s", got)
	}
	page.Scheme("dark")
	if got := background(); got != "rgb(13, 17, 23)" {
		t.Errorf("dark is %s", got)
	}
	page.Scheme("light")

	for _, complaint := range page.Complaints() {
		if !strings.Contains(complaint, "favicon.ico") {
			t.Errorf("the browser complains: %s", complaint)
		}
	}

	says := func(what, begins string) {
		t.Helper()
		page.Wait(time.Minute, what, func() error {
			if text := page.Text("#lost"); !strings.HasPrefix(text, begins) || begins == "" && text != "" {
				return fmt.Errorf("%q", text)
			}
			return nil
		})
	}
	away.Store(true) // it takes long to read its state
	defer away.Store(false)
	<-slow // where this machine is slow, the page says so of the reading before
	says("the page says that the broker is slow", "The broker is slow: this is its state of ")
	away.Store(false)
	page.Wait(time.Minute, "the page shows what status says", equal)
	says("the page says how slow", "The broker is slow: it sends its state every ")
	stop()
	says("the page says that the broker does not answer", "The broker does not answer since ")
}
