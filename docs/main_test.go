package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestMain reads all folders of the repository. Go takes a result from its cache while the files and folders that a
// test opened are as they were; these tests have git and go list look, too.
func TestMain(m *testing.M) {
	err := filepath.WalkDir("..", func(_ string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = os.Stat("../.git/index") // which files are in the repository; another worktree has none
	os.Exit(m.Run())
}
