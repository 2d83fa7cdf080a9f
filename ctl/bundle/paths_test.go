package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPathsInABundle: what an apiserver says is a pod's name is no path out of the archive.
func TestPathsInABundle(t *testing.T) {
	b := newBundle()
	for _, name := range []string{"c1/logs/../../../etc/cron.d/x-y.log", "/etc/passwd", "c1//x", "c1/./x", "..",
		"c1/logs/\x1b[2J",
		"c1/ok.json", "arn:aws:eks:eu-west-1:1:cluster/prod/ok.json", `c1\..\x`, "c1/logs/a\nb"} {
		b.files[name] = "text of " + name
	}
	var archive bytes.Buffer
	must(t, b.write(&archive, false, time.Now()))
	zipped, err := gzip.NewReader(&archive)
	must(t, err)
	read := tar.NewReader(zipped)
	texts := map[string]string{}
	for {
		header, err := read.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		path, ok := strings.CutPrefix(header.Name, "semaphore-bundle/")
		if !ok || !fs.ValidPath(path) || strings.ContainsAny(path, "\\\x1b\n") || texts[path] != "" {
			t.Errorf("the archive has %q", header.Name)
		}
		text, err := io.ReadAll(read)
		must(t, err)
		texts[path] = string(text)
	}
	if len(texts) != 12 { // with the version and the errors
		t.Errorf("%d files, not 12: %q", len(texts), slices.Sorted(maps.Keys(texts)))
	}
	for _, name := range []string{"c1/ok.json", "arn:aws:eks:eu-west-1:1:cluster/prod/ok.json"} {
		if texts[name] != "text of "+name {
			t.Errorf("no file %s", name)
		}
	}
}
