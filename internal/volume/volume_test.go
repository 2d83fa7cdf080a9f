package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestReadWhileReplaced: while a volume is replaced continuously, every read finds its file, and files that are read
// together are of one version.
func TestReadWhileReplaced(t *testing.T) {
	v := &testkit.Volume{Dir: t.TempDir()}
	write := func(i int) error {
		return v.Write(map[string]string{"tls.crt": fmt.Sprintf("version %d", i),
			"sub/tls.key": fmt.Sprintf("version %d", i)})
	}
	testkit.Must(t, write(0))
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := write(i); err != nil {
				stopped <- err
				return
			}
		}
	}()
	reads, misses := 20_000, 0
	versions := map[string]bool{}
	for range reads {
		content, err := Read(filepath.Join(v.Dir, "tls.crt"), filepath.Join(v.Dir, "sub", "tls.key"))
		if err != nil {
			if misses++; misses == 1 {
				t.Error(err)
			}
			continue
		}
		if !bytes.Equal(content[0], content[1]) {
			t.Errorf("read %q and %q of one volume", content[0], content[1])
			break
		}
		versions[string(content[0])] = true
	}
	close(stop)
	testkit.Must(t, <-stopped)
	t.Logf("%d reads saw %d versions, %d missed a file", reads, len(versions), misses)
	if misses != 0 || len(versions) < 10 {
		t.Errorf("%d reads missed a file, %d versions seen, want 0 and many", misses, len(versions))
	}
}

func TestRead(t *testing.T) {
	v := &testkit.Volume{Dir: t.TempDir()}
	testkit.Must(t, v.Write(map[string]string{"a": "1", "b": "2"}))
	plain := filepath.Join(t.TempDir(), "plain")
	testkit.Must(t, os.WriteFile(plain, []byte("3"), 0o600))
	got, err := Read(filepath.Join(v.Dir, "a"), plain, filepath.Join(v.Dir, "b"))
	if want := [][]byte{[]byte("1"), []byte("3"), []byte("2")}; err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("read %q, %v", got, err)
	}
	testkit.Must(t, v.Write(map[string]string{"a": "1"}))
	for _, path := range []string{filepath.Join(v.Dir, "b"), filepath.Join(v.Dir, "never"), plain + "no"} {
		if _, err := ReadFile(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want that it is not there", path, err)
		}
	}
	testkit.Must(t, os.RemoveAll(filepath.Join(v.Dir, "..data")))
	if _, err := ReadFile(filepath.Join(v.Dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a volume without its version: %v, want that the file is not there", err)
	}
}
