// Package browser drives a headless Chromium in tests, by the DevTools protocol over two pipes
// (https://chromedevtools.github.io/devtools-protocol/), so that the browser may be in another network namespace.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Program is the browser's executable, from the Debian package chromium-headless-shell.
const Program = "chromium-headless-shell"

// Needs skips a test if the browser is missing; in CI it fails the test.
func Needs(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath(Program); err != nil {
		testkit.Lacks(t, "needs %s, which make deps installs", Program)
	}
}

// Launch returns the command that runs the browser with some arguments, and the function that starts it.
type Launch func(ctx context.Context, args ...string) (cmd *exec.Cmd, start func() error, err error)

// Here starts the browser in the network namespace of the test.
func Here(ctx context.Context, args ...string) (*exec.Cmd, func() error, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	return cmd, cmd.Start, nil
}

// Page is a page in a browser of its own. Its methods end the test on an error.
type Page struct {
	t       *testing.T
	session string
	write   *os.File

	mu      sync.Mutex
	id      int
	waiting map[int]chan reply
	// complaints are the errors that the browser logs: of the script, and violations of the page's policy.
	complaints []string
}

type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Params json.RawMessage `json:"params"`
}

// patience is the timeout of each answer of the browser.
const patience = time.Minute

// Open starts a browser and opens a URL. Both end with the test.
func Open(t *testing.T, launch Launch, url string) *Page {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd, start, err := launch(ctx, Program, "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--no-proxy-server",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	testkit.Must(t, err)
	theirs, ours, err := os.Pipe()
	testkit.Must(t, err)
	answers, answering, err := os.Pipe()
	testkit.Must(t, err)
	cmd.ExtraFiles = []*os.File{theirs, answering} // 3 and 4
	var said strings.Builder
	cmd.Stderr = &said
	if err := start(); err != nil {
		t.Fatalf("%s: %v", Program, err)
	}
	_, _ = theirs.Close(), answering.Close()
	p := &Page{t: t, write: ours, waiting: map[int]chan reply{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.listen(bufio.NewReader(answers))
	}()
	t.Cleanup(func() {
		_ = ours.Close() // the browser ends when its pipe does
		cancel()
		_ = cmd.Wait() // killed
		_ = answers.Close()
		<-ended
		if t.Failed() {
			t.Log(said.String())
		}
	})
	var target struct{ TargetID, SessionID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	p.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// listen receives answers, and the browser's log messages.
func (p *Page) listen(from *bufio.Reader) {
	for {
		data, err := from.ReadBytes(0)
		if err != nil {
			return
		}
		var r reply
		if json.Unmarshal(data[:len(data)-1], &r) != nil {
			continue
		}
		p.mu.Lock()
		switch r.Method {
		case "Log.entryAdded", "Runtime.exceptionThrown":
			p.complaints = append(p.complaints, string(r.Params))
		case "":
			if to := p.waiting[r.ID]; to != nil {
				to <- r
				delete(p.waiting, r.ID)
			}
		}
		p.mu.Unlock()
	}
}

func (p *Page) call(method string, params map[string]any, result any) {
	p.t.Helper()
	p.mu.Lock()
	p.id++
	id, to := p.id, make(chan reply, 1)
	p.waiting[id] = to
	p.mu.Unlock()
	if params == nil {
		params = map[string]any{}
	}
	message := map[string]any{"id": id, "method": method, "params": params}
	if p.session != "" {
		message["sessionId"] = p.session
	}
	data := testkit.Value(json.Marshal(message))(p.t)
	if _, err := p.write.Write(append(data, 0)); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	select {
	case r := <-to:
		if r.Error != nil {
			p.t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				p.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(patience):
		p.t.Fatalf("%s: no answer of the browser in %s", method, patience)
	}
}

// Eval evaluates a JavaScript expression in the page and unmarshals its value into into.
func (p *Page) Eval(expression string, into any) {
	p.t.Helper()
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		ExceptionDetails *struct {
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	p.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s", expression, out.ExceptionDetails.Exception.Description)
	}
	if err := json.Unmarshal(out.Result.Value, into); err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
}

// Text returns the text of the first element that matches a selector; empty if none does.
func (p *Page) Text(selector string) (text string) {
	p.t.Helper()
	p.Eval(fmt.Sprintf("(document.querySelector(%q) || {textContent: ''}).textContent", selector), &text)
	return text
}

// Rows returns the texts of the cells in the body of a table.
func (p *Page) Rows(selector string) (rows [][]string) {
	p.t.Helper()
	p.Eval(fmt.Sprintf("[...document.querySelector(%q).rows].map(r => [...r.cells].map(c => c.textContent))", selector),
		&rows)
	return rows
}

// Wait waits until check returns nil, and returns how long that took.
func (p *Page) Wait(within time.Duration, what string, check func() error) time.Duration {
	p.t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		took := time.Since(began)
		if err == nil && took <= within {
			return took
		}
		if took > within {
			p.t.Fatalf("%s: not within %s: %v", what, within, errors.Join(err, errors.New(strings.Join(p.Complaints(), "; "))))
		}
	}
}

// Window sets the size of the window, in pixels.
func (p *Page) Window(width, height int) {
	p.t.Helper()
	p.call("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Scheme sets the preferred colour scheme: "light" or "dark".
func (p *Page) Scheme(scheme string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Tab presses the tab key.
func (p *Page) Tab() {
	p.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		p.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "Tab", "code": "Tab",
			"windowsVirtualKeyCode": 9}, nil)
	}
}

// Spoken returns the role and name of each node of the accessibility tree, which screen readers use.
func (p *Page) Spoken() (nodes []string) {
	p.t.Helper()
	var tree struct {
		Nodes []struct {
			Ignored bool
			Role    struct{ Value any }
			Name    struct{ Value any }
		}
	}
	p.call("Accessibility.getFullAXTree", nil, &tree)
	for _, n := range tree.Nodes {
		if !n.Ignored && n.Name.Value != nil {
			nodes = append(nodes, fmt.Sprintf("%v %v", n.Role.Value, n.Name.Value))
		}
	}
	return nodes
}

// Screenshot returns a PNG of the page in a window of this size.
func (p *Page) Screenshot(width, height int) []byte {
	p.t.Helper()
	p.Window(width, height)
	defer p.call("Emulation.clearDeviceMetricsOverride", nil, nil)
	var out struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &out)
	return testkit.Value(base64.StdEncoding.DecodeString(out.Data))(p.t)
}

// Complaints returns the errors of the script, and the violations of the page's policy, so far.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.complaints...)
}
