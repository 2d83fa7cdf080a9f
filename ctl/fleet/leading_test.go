package fleet

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestLeading: in a standby's container the leader answers, and if it cannot be reached, it is known why.
func TestLeading(t *testing.T) {
	serve := func(standby bool) string {
		return ctltest.Serve(t, debug.NewRecorder(Broker, "c1", ""), func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Standby: standby, Ready: !standby}
		})
	}
	leader, gone, next := serve(false), t.TempDir()+"/gone", t.TempDir()+"/next"
	testkit.Must(t, os.WriteFile(gone, nil, 0o600))
	testkit.Must(t, os.WriteFile(next, nil, 0o600))
	time.AfterFunc(500*time.Millisecond, func() {
		_ = os.Remove(next)
		_ = os.Symlink(leader, next)
	})
	for what, c := range map[string]struct {
		own, behind string
		leads       bool
		says        string
	}{
		"a leader":                          {leader, gone, false, ""},
		"a standby":                         {serve(true), leader, true, ""},
		"a standby whose leader begins":     {serve(true), next, true, ""},
		"a standby without its leader":      {serve(true), gone, false, "only a standby answers"},
		"a standby that another stands for": {serve(true), serve(true), false, "another standby does"},
	} {
		toLeader := conns.ToLeader(c.own)
		testkit.Must(t, os.Symlink(c.behind, toLeader))
		ctx, cancel := context.WithCancel(t.Context())
		if c.behind == gone { // there is nobody to wait for
			ctx, cancel = context.WithTimeout(ctx, time.Second)
		}
		path, err := leading(ctx, c.own)
		cancel()
		if c.leads != (path == toLeader) || (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v", what, path, err)
		}
	}
}
