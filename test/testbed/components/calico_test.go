package components

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestRealFilesOfCalico checks that the pinned module has the files of a node, and that none has krt_tunnel, which BIRD
// 1.6 rejects.
func TestRealFilesOfCalico(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the module of Calico")
	}
	repo := testkit.Value(FindRepository())(t)
	dir := t.TempDir()
	var paths Paths
	testkit.Must(t, (&Builder{}).ensureCalicoFiles(t.Context(), filepath.Join(repo, "tools", "components"), dir,
		&paths))
	for _, program := range []string{"sbin/start_runit", "etc/rc.local", "etc/service/available/felix/run",
		"etc/service/available/bird/run"} {
		if !isProgram(filepath.Join(paths.CalicoNodeFiles, program)) {
			t.Errorf("%s may not be run", program)
		}
	}
	for _, file := range []string{
		filepath.Join(paths.CalicoNodeFiles, "etc/calico/felix.cfg"),
		filepath.Join(paths.CalicoNodeFiles, "etc/calico/confd/conf.d/bird.toml"),
		filepath.Join(paths.CalicoCRDs, "crd.projectcalico.org_ippools.yaml"),
		paths.CalicoManifest,
	} {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	templates, err := filepath.Glob(filepath.Join(paths.CalicoNodeFiles, "etc/calico/confd/templates/*.template"))
	if err != nil || len(templates) < 6 {
		t.Fatalf("templates: %q, %v", templates, err)
	}
	for _, template := range templates {
		data := testkit.Value(os.ReadFile(template))(t)
		if strings.Contains(string(data), "krt_tunnel") {
			t.Errorf("%s has krt_tunnel, which BIRD 1.6 does not know", template)
		}
	}
}
