package fleet

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
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
		limit := time.Minute
		if c.behind == gone { // there is nobody to wait for
			limit = time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		path, err := leading(ctx, c.own)
		cancel()
		if c.leads != (path == toLeader) || (err == nil) != (c.says == "") ||
			err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %s, %v", what, path, err)
		}
	}
}

// TestStandbyWithoutItsLeader: while a rollout ends the leader, it is in no list of pods and may still lead. One that
// is not named is not known.
func TestStandbyWithoutItsLeader(t *testing.T) {
	for leader, want := range map[string]string{
		"semaphore-exporter-a": "only a standby answers; the leader is semaphore-exporter-a: it is ending, or does not run",
		"":                     "only a standby answers; no leader is known",
	} {
		socket := ctltest.Serve(t, debug.NewRecorder(Exporter, "c1", ""), func() *semaphorev1.GetStatusResponse {
			return &semaphorev1.GetStatusResponse{Standby: true, Leader: leader}
		})
		p, err := newPart(socket, "unix://"+socket, insecure.NewCredentials())
		testkit.Must(t, err)
		if got := new(Cluster).fromStandby(t.Context(), p, nil).Standby; got == nil || got.Error() != want {
			t.Errorf("%v; want %s", got, want)
		}
		p.Close()
	}
}

// TestWorks: the error of a part that does not work yet has the reasons for that, and none of its other findings.
func TestWorks(t *testing.T) {
	s := &semaphorev1.GetStatusResponse{Part: Broker}
	finding.Judge(s, finding.New(finding.NoSet, "c2", 1, "no set"), finding.New(finding.NotReady, "", 1, "no drains"),
		finding.New(finding.DrainsFailed, "", 1, "forbidden"))
	if err := Works(s); err == nil || err.Error() != "this broker does not work yet: forbidden; no drains" {
		t.Error(err)
	}
	if err := Works(&semaphorev1.GetStatusResponse{Part: Exporter}); err == nil || err.Error() !=
		"this exporter does not work yet: not ready" {
		t.Error(err)
	}
}
