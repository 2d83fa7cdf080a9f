package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/browser"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// dashboardConfig enables the page as in docs/picture.md.
const dashboardConfig = "listen: {dashboard: 127.0.0.1:8085}"

// dashboard is c1's page in a browser outside the clusters, through a port-forward.
type dashboard struct {
	*explainBed
	page *browser.Page
	// cut is the time just before the tunnel was cut.
	cut time.Time
	// knew receives, once, the time at which the broker's metrics first had silent pairs.
	knew <-chan time.Time
}

// promptAnswers is how many requests, five a second at most, are answered with the page open before the tunnel is cut.
// Agents check every second, and suspect only a peer that has answered promptly five times.
const promptAnswers = 40

// pageState is a state that the page received, and what the page showed right after.
type pageState struct {
	At time.Time
	// Seen is when the page showed it, in ms since the epoch.
	Seen   int64
	Every  float64
	Silent bool
	Shown  string
	Color  string
}

// openDashboard opens the page and follows the broker's metrics until the test ends. It returns nil without a browser.
func (b *explainBed) openDashboard(ctx context.Context, t *testing.T) *dashboard {
	t.Helper()
	if _, err := exec.LookPath(browser.Program); err != nil {
		if os.Getenv("CI") == "true" {
			browser.Needs(t) // ends the test
		}
		tier.NotTested(t, "the dashboard, as this machine has no %s", browser.Program)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd, start, err := b.state.ShellCommand(ctx, b.repo+"/bin/semaphorectl", "status", "--web", "--context", "c1")
	must(t, err)
	said := testkit.Value(cmd.StdoutPipe())(t)
	must(t, start())
	line := testkit.Value(bufio.NewReader(said).ReadString('\n'))(t)
	url, _, _ := strings.Cut(line, " ")
	d := &dashboard{explainBed: b}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // killed
	})
	d.page = browser.Open(t, b.state.ShellCommand, url)
	d.page.Wait(settle, "the page shows a state", func() error {
		if text := d.page.Text("#verdict"); text == "connecting to the broker" || text == "" {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
	// This listener runs after the page's own, so it reads what the page shows.
	var ok bool
	d.page.Eval(`(() => { window.states = []; stream.addEventListener("message", event => {
		const v = JSON.parse(event.data), cell = document.querySelector("#links tbody td");
		states.push({at: v.at, seen: Date.now(), every: v.every,
			silent: (v.mesh.findings || []).some(f => f.code === "SilentPairs"),
			shown: cell.textContent, color: getComputedStyle(cell).color});
	}); return true; })()`, &ok)
	d.follow(ctx, t)
	return d
}

// follow polls the broker's metrics until they have silent pairs.
func (d *dashboard) follow(ctx context.Context, t *testing.T) {
	t.Helper()
	address := testkit.Value(d.commands(ctx, "kubectl --context c1 -n semaphore get endpointslices "+
		"-l kubernetes.io/service-name=semaphore-broker -o jsonpath='{.items[0].endpoints[0].addresses[0]}'", 0))(t)
	knew := make(chan time.Time, 1)
	d.knew = knew
	client := httpFrom(d.c1.Nodes[0].Netns)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+":8080/metrics", nil)
			if err != nil {
				return
			}
			if answer, err := client.Do(request); err == nil {
				text, _ := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				if strings.Contains(string(text), `code="`+string(finding.SilentPairs)+`"`) {
					knew <- time.Now()
					return
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// equals checks that the page shows the same as semaphorectl status of the same broker. With SCREENSHOT=FILE it also
// writes the screenshot of the README.
func (d *dashboard) equals(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		text, err := d.commands(ctx, "semaphorectl status --context c1 -o json", 0)
		if err != nil {
			return err
		}
		var m mesh.Mesh
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		if got := strings.TrimLeft(d.page.Text("#verdict"), "✓✗ "); got != m.Verdict {
			return fmt.Errorf("the verdict is %q; status says %q", got, m.Verdict)
		}
		var want, got []string
		for _, l := range m.Links {
			tunnels := "-"
			if l.Nodes > 0 {
				tunnels = fmt.Sprintf("%d/%d", l.Talking, l.Nodes)
			}
			want = append(want, fmt.Sprint([]any{l.At, l.From, l.State, l.Kinds["node"], l.Kinds["service"],
				l.Kinds["endpointslice"], l.Kinds["setmember"], l.Exports, l.Refused, l.Retained, tunnels, l.Silent}))
		}
		for _, row := range d.page.Rows("#links tbody") {
			got = append(got, fmt.Sprint([]any{row[1], row[2], row[3], row[6], row[7], row[8], row[9], row[10],
				row[11], row[12], row[13], row[14]}))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the links are %q; status has %q", got, want)
		}
		if rows := d.page.Rows("#findings tbody"); len(rows) != len(m.Findings) {
			return fmt.Errorf("the findings are %q; status has %+v", rows, m.Findings)
		}
		if rows := d.page.Rows("#traffic tbody"); len(rows) != len(m.Traffic) || len(rows) == 0 ||
			rows[0][0] != m.Traffic[0].Service {
			return fmt.Errorf("the traffic is %q; status has %+v", rows, m.Traffic)
		}
		if rows := d.page.Rows("#nodes tbody"); len(rows) != len(d.c1.Nodes) || rows[0][1] != "attached" {
			return fmt.Errorf("the nodes are %q", rows)
		}
		return nil
	}))
	if file := os.Getenv("SCREENSHOT"); file != "" {
		must(t, until(ctx, settle, func() error {
			for _, row := range d.page.Rows("#links tbody") {
				if slices.Contains(row, "1/1") && row[len(row)-1] != "-" {
					return nil
				}
			}
			return errors.New("no link has traffic yet")
		}))
		must(t, os.WriteFile(file, d.page.Screenshot(1440, 1180), 0o644))
	}
}

// sawCut checks that the page is red from the first state that the broker makes after it has detected the cut, in each
// state with silent pairs and in no other, and that the broker makes a state once a second. A slow machine makes fewer
// states (TestSlowStatus).
func (d *dashboard) sawCut(t *testing.T) {
	t.Helper()
	var knew time.Time
	select {
	case knew = <-d.knew:
	case <-time.After(settle):
		t.Fatal("the broker's metrics never had silent pairs")
	}
	var states []pageState
	d.page.Wait(settle, "the page gets a state that the broker made after it knew", func() error {
		d.page.Eval("states", &states)
		if n := len(states); n == 0 || !states[n-1].At.After(knew) {
			return fmt.Errorf("%d states, none after %s", n, knew)
		}
		return nil
	})
	after, every, shown := 0, states[0].Every, time.Time{}
	for _, s := range states {
		red := s.Shown == "✗ error" && s.Color == "rgb(207, 34, 46)"
		if s.Silent != red {
			t.Errorf("a state with silent pairs: %v; the first link is %q in %s", s.Silent, s.Shown, s.Color)
		}
		every = min(every, s.Every)
		if s.At.After(knew) && after == 0 {
			if after++; !s.Silent {
				t.Errorf("the broker knew at %s, and its state of %s has no silent pairs", knew, s.At)
			}
			t.Logf("the broker knew, and its next state is of %s later", s.At.Sub(knew).Round(time.Millisecond))
		}
		if red && shown.IsZero() {
			shown = time.UnixMilli(s.Seen)
		}
	}
	if shown.IsZero() {
		t.Error("the cut tunnel was never red")
	}
	// The browser, the agent and the broker wait for processors beside the rest of this machine: that is a figure, and
	// what is asserted is that no state of the broker passes without the page.
	t.Logf("the cut tunnel is red %s after the cut (docs/picture.md: 5 s on an idle machine)",
		shown.Sub(d.cut).Round(time.Millisecond))
	if every > 1 {
		t.Errorf("at best, the next state is to come in %v s", every)
	}
	for _, complaint := range d.page.Complaints() {
		if !strings.Contains(complaint, "favicon.ico") {
			t.Errorf("the browser complains: %s", complaint)
		}
	}
}
