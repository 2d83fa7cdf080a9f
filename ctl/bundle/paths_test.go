package bundle

import (
	"bytes"
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
	texts := map[string]string{}
	for name, text := range unpack(t, &archive) {
		path, ok := strings.CutPrefix(name, "semaphore-bundle/")
		if !ok || !fs.ValidPath(path) || strings.ContainsAny(path, "\\\x1b\n") {
			t.Errorf("the archive has %q", name)
		}
		texts[path] = text
	}
	if len(texts) != 12 { // each has a path of its own, with the version and the errors
		t.Errorf("%d files, not 12: %q", len(texts), slices.Sorted(maps.Keys(texts)))
	}
	for _, name := range []string{"c1/ok.json", "arn:aws:eks:eu-west-1:1:cluster/prod/ok.json"} {
		if texts[name] != "text of "+name {
			t.Errorf("no file %s", name)
		}
	}
}
