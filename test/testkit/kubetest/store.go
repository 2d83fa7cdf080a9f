package kubetest

import (
	"context"
	"errors"
	"os"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Store is the etcd of an apiserver. It can be restored to an earlier state, as from a backup.
type Store struct {
	cfg *rest.Config
	// data is etcd's data directory.
	data string
	// url is the address of etcd's API.
	url string
	// runEtcd and runAPIServer start the servers, each time with the same addresses and certificates.
	runEtcd, runAPIServer func(testing.TB) (*testkit.Process, error)
	etcd, apiserver       *testkit.Process
}

// StartRestorable is Start for an apiserver with a Store that can be restored.
func StartRestorable(t testing.TB) (*rest.Config, *Store) {
	t.Helper()
	return startWith(t, defaultRange)
}

func (s *Store) start(ctx context.Context, t testing.TB) (err error) {
	if s.etcd, err = s.runEtcd(t); err != nil {
		return err
	}
	if s.apiserver == nil {
		if s.apiserver, err = s.runAPIServer(t); err != nil {
			return err
		}
	}
	return waitReady(ctx, s.cfg, s.etcd, s.apiserver)
}

func (s *Store) stop(t testing.TB) {
	s.apiserver.Kill(t)
	s.apiserver = nil
	s.etcd.Kill(t)
}

func (s *Store) startAgain(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := s.start(ctx, t); err != nil {
		t.Fatalf("starting etcd and an apiserver again: %v", err)
	}
}

// BackUp copies etcd's data, and returns a function that restores it: resourceVersions then continue from those of the
// copy. BackUp stops etcd, which the apiserver survives, and restore both servers. Both return when the servers are
// ready again.
func (s *Store) BackUp(t testing.TB) (restore func()) {
	t.Helper()
	s.etcd.Kill(t)
	backup := t.TempDir()
	testkit.Must(t, os.CopyFS(backup, os.DirFS(s.data)))
	s.startAgain(t)
	return func() {
		t.Helper()
		s.stop(t)
		testkit.Must(t, errors.Join(os.RemoveAll(s.data), os.CopyFS(s.data, os.DirFS(backup))))
		s.startAgain(t)
	}
}
