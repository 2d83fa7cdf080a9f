package testbed

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestExitsOfAStartUp runs a component that exits twice before it stays, as calico-node does when another client
// writes the Node at the same time: a component that may exit twice comes up, one that may exit once fails.
func TestExitsOfAStartUp(t *testing.T) {
	needRoot(t)
	for _, test := range []struct{ retries, reported int }{{2, 0}, {1, 1}} {
		dir := t.TempDir()
		logFile := filepath.Join(dir, "log")
		root := t.TempDir()
		const script = `cd /data; echo >> starts; [ $(wc -l < starts) -gt 2 ] || exit 1; : > up; exec sleep 60`
		start := func() (*spawn.Process, error) {
			return spawn.Start(spawn.Spec{Name: "component", Args: []string{"sh", "-c", script},
				Env: []string{"PATH=" + searchPath}, Root: root, Output: logFile, Mounts: []spawn.Mount{
					{Source: "/usr", Target: "/usr", ReadOnly: true},
					{Source: "usr/bin", Target: "/bin", Symlink: true},
					{Source: "usr/lib", Target: "/lib", Symlink: true},
					{Source: "usr/lib64", Target: "/lib64", Symlink: true},
					{Source: dir, Target: "/data"},
				}})
		}
		var reported atomic.Int32
		p := newProcess("component", logFile, start, slog.New(slog.DiscardHandler), func(error) { reported.Add(1) })
		p.retries = test.retries
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		ended := make(chan struct{})
		go func() {
			p.run(ctx)
			close(ended)
		}()
		testkit.NoError(t, poll(ctx, 20*time.Second, "the third start", func(context.Context) error {
			_, err := os.Stat(filepath.Join(dir, "up"))
			return err
		}))
		cancel()
		<-ended
		if got := int(reported.Load()); got != test.reported {
			t.Errorf("with %d retries %d exits are reported, not %d", test.retries, got, test.reported)
		}
	}
}
