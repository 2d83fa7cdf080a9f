package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// errExited says that a server ended by itself.
var errExited = errors.New("exited")

// process is a server that ends with the test, also with one that is killed.
type process struct {
	name, log string
	pid       int
	exited    chan struct{}
	err       error // of Wait, once exited is closed
}

func run(t testing.TB, dir, name, path string, args ...string) (*process, error) {
	return runWith(t, nil, dir, name, path, args...)
}

// runs is run, later and as often as it is called.
func runs(dir, name, path string, args ...string) func(testing.TB) (*process, error) {
	return func(t testing.TB) (*process, error) { return run(t, dir, name, path, args...) }
}

// runWith is run with variables in the server's environment.
func runWith(t testing.TB, env []string, dir, name, path string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	// Nothing of this machine's settings reaches the servers.
	cmd.Env = append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer log.Close()
		// The death signal comes when the thread that started the process ends, so that
		// thread is kept for as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		p.kill(t)
		if t.Failed() {
			t.Logf("%s wrote at last:\n%s", name, p.tail())
		}
	})
	return p, nil
}

// kill ends the process, if it runs. Nothing is kept, so nothing needs to be written in order; an apiserver that is asked to
// stop would wait for its watches.
func (p *process) kill(t testing.TB) {
	select {
	case <-p.exited:
		return // its number may be another's
	default:
	}
	_ = syscall.Kill(p.pid, syscall.SIGKILL)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		t.Errorf("%s (pid %d) does not end", p.name, p.pid)
	}
}

// tail is the end of what the process wrote.
func (p *process) tail() []byte {
	const lines = 20
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	all := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
