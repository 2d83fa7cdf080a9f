package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// ownLog is code that writes to a log beside the program's, which has no bounds.
var ownLog = regexp.MustCompile(`\bslog\.(New|NewTextHandler|NewJSONHandler|SetDefault|NewLogLogger)\b|` +
	`\bFprint\w*\(os\.Stderr\b`)

// TestLogsAreLimited: all that the parts log goes through internal/program, which bounds how often a line is written:
// neither a remote nor a retry can fill a disk.
func TestLogsAreLimited(t *testing.T) {
	for pkg, is := range goList(t) {
		part, _, _ := strings.Cut(pkg, "/")
		if !slices.Contains(parts, part) && part != "internal" || pkg == "internal/program" ||
			strings.HasSuffix(pkg, "test") {
			continue
		}
		if slices.Contains(is.imports, "log") {
			t.Errorf("%s imports log: use log/slog", pkg)
		}
		for _, file := range is.files {
			text := testkit.Value(os.ReadFile(filepath.Join(is.dir, file)))(t)
			if found := ownLog.FindString(string(text)); found != "" {
				t.Errorf("%s/%s: %s: log to the logger that is passed, or to slog's default", pkg, file, found)
			}
		}
	}
}
