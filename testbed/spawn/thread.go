//go:build linux

package spawn

import (
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// onLastingThread runs f on a thread that never ends: what the kernel calls the death of a parent is that of the thread
// that made the child, see PR_SET_PDEATHSIG(2const). f is run alone and must leave the thread's namespaces as they were.
func onLastingThread(f func() error) error {
	startThread.Do(func() {
		go func() {
			runtime.LockOSThread()
			for job := range lasting {
				job()
			}
		}()
	})
	done := make(chan error, 1)
	lasting <- func() {
		err := errors.New("the function ended its goroutine without returning")
		defer func() { done <- err }()
		err = f()
	}
	return <-done
}

var (
	startThread sync.Once
	lasting     = make(chan func())
)

// onLostThread runs f on a thread that ends afterwards, so f may leave its namespaces for good. It is never the main
// thread, which the runtime cannot end.
func onLostThread(f func() error) error {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			err = onLostThread(f)
			return
		}
		err = f()
	}()
	<-done
	return err
}
