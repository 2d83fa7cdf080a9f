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

// volume is replaced as by a kubelet: all files by one rename of ..data; then the old directory is removed.
type volume struct {
	dir string
	n   int
}

func (v *volume) write(files map[string]string) error {
	v.n++
	version := fmt.Sprintf("..version_%d", v.n)
	for name, content := range files {
		path := filepath.Join(v.dir, version, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	data := filepath.Join(v.dir, "..data")
	old, _ := os.Readlink(data)
	if err := errors.Join(os.Symlink(version, data+"_tmp"), os.Rename(data+"_tmp", data)); err != nil {
		return err
	}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(filepath.Join("..data", first), filepath.Join(v.dir, first)); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(v.dir, old))
}

// TestReadWhileReplaced: while a volume is replaced continuously, every read finds its file, and files that are read
// together are of one version.
func TestReadWhileReplaced(t *testing.T) {
	v := &volume{dir: t.TempDir()}
	write := func(i int) error {
		return v.write(map[string]string{"tls.crt": fmt.Sprintf("version %d", i),
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
		content, err := Read(filepath.Join(v.dir, "tls.crt"), filepath.Join(v.dir, "sub", "tls.key"))
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
	t.Logf("%d reads saw %d of %d versions, %d missed a file", reads, len(versions), v.n, misses)
	if misses != 0 || len(versions) < 10 {
		t.Errorf("%d reads missed a file, %d versions seen, want 0 and many", misses, len(versions))
	}
}

func TestRead(t *testing.T) {
	v := &volume{dir: t.TempDir()}
	testkit.Must(t, v.write(map[string]string{"a": "1", "b": "2"}))
	plain := filepath.Join(t.TempDir(), "plain")
	testkit.Must(t, os.WriteFile(plain, []byte("3"), 0o600))
	got, err := Read(filepath.Join(v.dir, "a"), plain, filepath.Join(v.dir, "b"))
	if want := [][]byte{[]byte("1"), []byte("3"), []byte("2")}; err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("read %q, %v", got, err)
	}
	testkit.Must(t, v.write(map[string]string{"a": "1"}))
	for _, path := range []string{filepath.Join(v.dir, "b"), filepath.Join(v.dir, "never"), plain + "no"} {
		if _, err := ReadFile(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want that it is not there", path, err)
		}
	}
	testkit.Must(t, os.RemoveAll(filepath.Join(v.dir, "..data")))
	if _, err := ReadFile(filepath.Join(v.dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a volume without its version: %v, want that the file is not there", err)
	}
}
