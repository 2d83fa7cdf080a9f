//go:build linux

package spawn

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onLostThread runs f on a thread that ends afterwards, so f may leave its namespaces permanently. It never uses the
// main thread, which the runtime cannot end.
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
