package trace

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// lines is a writer that passes on complete lines.
type lines struct {
	mu      sync.Mutex
	partial string
	all     chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial += string(p)
	for {
		line, rest, ok := strings.Cut(l.partial, "\n")
		if !ok {
			return len(p), nil
		}
		l.partial = rest
		l.all <- line
	}
}

// TestWatch follows one change through the three parts.
func TestWatch(t *testing.T) {
	recorders := []*debug.Recorder{
		debug.NewRecorder("exporter", "c2", ""), debug.NewRecorder("broker", "c1", ""),
		debug.NewRecorder("agent", "c1", "node-1"),
	}
	args := []string{"trace", "--watch", "--history"}
	for _, r := range recorders {
		args = append(args, "--socket", ctltest.Serve(t, r, ctltest.Well))
	}
	seen := time.Now()
	recorders[0].Record(debug.Event{Source: "c2", Object: "node n1", Action: "export", Detail: "to c1", ObservedAt: seen})

	for _, format := range []string{"table", "json"} {
		t.Run(format, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cmd := ctltest.Command()
			out := &lines{all: make(chan string, 100)}
			cmd.SetOut(out)
			cmd.SetErr(io.Discard)
			cmd.SetArgs(append(args, "-o", format))
			done := make(chan error, 1)
			go func() { done <- cmd.ExecuteContext(ctx) }()
			next := func() string {
				t.Helper()
				select {
				case line := <-out.all:
					return line
				case err := <-done:
					t.Fatalf("ended with %v", err)
				case <-time.After(time.Minute):
					t.Fatal("nothing came")
				}
				return ""
			}
			recorded := next()
			recorders[1].Record(debug.Event{Source: "c2", Object: "node n1", Action: "receive", ObservedAt: seen})
			received := next()
			recorders[2].Record(debug.Event{Source: "c2", Object: "peer c2/n1", Action: "create", Detail: "\x1b[31mred"})
			created := next()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Ctrl-C is no error, and it ended with %v", err)
			}
			if format == "json" {
				for _, line := range []string{recorded, received, created} {
					var m map[string]any
					must(t, json.Unmarshal([]byte(line), &m))
				}
				return
			}
			s := ctltest.NewSession(t)
			padding := regexp.MustCompile(` {3,}`) // as wide as the longest measured lag
			for _, line := range []string{recorded, received, created} {
				s.Note(padding.ReplaceAllString(line, "   "))
			}
			s.Golden("watch", regexp.MustCompile(`^TIME  `))
		})
		// Events of this format count as recent for the next one, so start again.
		if format == "table" {
			args = args[:2]
			for i, name := range []string{"exporter", "broker", "agent"} {
				recorders[i] = debug.NewRecorder(name, "c1", "")
				args = append(args, "--socket", ctltest.Serve(t, recorders[i], ctltest.Well))
			}
			args = append(args, "--history")
			recorders[0].Record(debug.Event{Source: "c2", Object: "node n1", Action: "export", ObservedAt: seen})
		}
	}
}

// TestWatchEndsWithItsParts: a part that stops is named, the others continue, and the end of the last one is an
// error.
func TestWatchEndsWithItsParts(t *testing.T) {
	args, errs := []string{"trace", "--watch"}, &lines{all: make(chan string, 100)}
	var recorders []*debug.Recorder
	var stop []func()
	for _, name := range []string{"exporter", "broker"} {
		ctx, cancel := context.WithCancel(t.Context())
		socket, stopped := filepath.Join(t.TempDir(), name+".sock"), make(chan error, 1)
		recorder := debug.NewRecorder(name, "c1", "")
		go func() {
			stopped <- debug.ServeSocket(ctx, socket, debug.NewServer(recorder, ctltest.Well, debug.Answers{}))
		}()
		ctltest.Listens(t, socket)
		args, recorders = append(args, "--socket", socket), append(recorders, recorder)
		stop = append(stop, func() {
			cancel()
			must(t, <-stopped)
		})
	}
	out := &lines{all: make(chan string, 100)}
	cmd := ctltest.Command()
	cmd.SetOut(out)
	cmd.SetErr(errs)
	cmd.SetArgs(append(args, "--history"))
	ended := make(chan error, 1)
	next := func(from *lines) string {
		t.Helper()
		select {
		case line := <-from.all:
			return line
		case err := <-ended:
			t.Fatalf("ended with %v", err)
		case <-time.After(time.Minute):
			t.Fatal("nothing came")
		}
		return ""
	}
	for _, r := range recorders {
		r.Record(debug.Event{Source: "c2", Object: "node n1", Action: "receive"})
	}
	go func() { ended <- cmd.ExecuteContext(t.Context()) }()
	next(out)
	next(out) // both are watched
	stop[0]()
	if line := next(errs); !strings.HasPrefix(line, "not watched: ") || !strings.Contains(line, "exporter.sock") {
		t.Errorf("the exporter stopped, and it says %q", line)
	}
	recorders[1].Record(debug.Event{Source: "c2", Object: "node n2", Action: "receive"})
	if line := next(out); !strings.Contains(line, "broker/c1") || !strings.Contains(line, "node n2") {
		t.Errorf("of the other part comes %q", line)
	}
	stop[1]()
	var exit program.ExitError
	if err := <-ended; err == nil || errors.As(err, &exit) && exit.Code != 1 {
		t.Errorf("the parts ended, and the watch with %v", err)
	}
}
