package components

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestFilesOfCalico checks that krt_tunnel is removed from the template that has it, and that scripts are executable.
func TestFilesOfCalico(t *testing.T) {
	const template = "    if (net ~ 10.1.0.0/16) then {\n      krt_tunnel = \"\";  {{- /* no IPIP */}}\n      accept;\n" +
		"    }\n"
	const cleaned = "    if (net ~ 10.1.0.0/16) then {\n      accept;\n    }\n"
	for _, c := range []struct {
		name, data, want string
		mode             fs.FileMode
	}{
		{"confd/templates/bird_ipam.cfg.template", template, cleaned, 0o644},
		{"confd/templates/bird.cfg.template", template, template, 0o644},
		{"etc/service/available/bird/run", "#!/bin/sh\n", "#!/bin/sh\n", 0o755},
		{"etc/service/available/bird/log/run", "#!/bin/sh\n", "#!/bin/sh\n", 0o755},
		{"etc/rc.local", "x", "x", 0o755},
		{"sbin/start_runit", "x", "x", 0o755},
		{"etc/calico/felix.cfg", "x", "x", 0o644},
	} {
		data, mode := asInImage(c.name, []byte(c.data))
		if string(data) != c.want || mode != c.mode {
			t.Errorf("%s: mode %o, want %o; content\n%s\nwant\n%s", c.name, mode, c.mode, data, c.want)
		}
	}
}

// TestRealFilesOfCalico checks that the pinned module has the files of a node, and that none has krt_tunnel, which BIRD
// 1.6 rejects.
func TestRealFilesOfCalico(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the module of Calico")
	}
	repo := testkit.Value(FindRepository())(t)
	dir := t.TempDir()
	var paths Paths
	testkit.Must(t, (&Builder{}).ensureCalicoFiles(t.Context(), filepath.Join(repo, "tools", "calico"), dir,
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
