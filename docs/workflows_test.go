package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestWorkflows: what GitHub runs is pinned by commit, has least rights, fails where a command of a pipe fails, has no
// expression in its scripts, and names targets of the Makefile that exist.
func TestWorkflows(t *testing.T) {
	makefile := read(t, "Makefile")
	files, err := filepath.Glob("../.github/workflows/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	pinned := regexp.MustCompile(`@[0-9a-f]{40}$`)
	target := regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	for _, file := range files {
		text := testkit.Value(os.ReadFile(file))(t)
		var workflow struct {
			Permissions map[string]string
			Defaults    struct{ Run struct{ Shell string } }
			Jobs        map[string]struct {
				TimeoutMinutes int `json:"timeout-minutes"`
				Steps          []struct {
					Uses, Run string
					With      map[string]any
				}
			}
		}
		if err := yaml.Unmarshal(text, &workflow); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(workflow.Permissions) != 1 || workflow.Permissions["contents"] != "read" {
			t.Errorf("%s: permissions %v of all jobs, want to read contents alone", file, workflow.Permissions)
		}
		// Without it GitHub runs bash without pipefail.
		if workflow.Defaults.Run.Shell != "bash" {
			t.Errorf("%s: the shell of steps is %q, want bash", file, workflow.Defaults.Run.Shell)
		}
		for name, job := range workflow.Jobs {
			if job.TimeoutMinutes == 0 {
				t.Errorf("%s: job %s has no end", file, name)
			}
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s: %s is not pinned", file, step.Uses)
				}
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s leaves the token in the checkout", file, name)
				}
				if strings.Contains(step.Run, "${{") { // its value would be part of the script
					t.Errorf("%s: job %s has an expression in a script: %s", file, name, step.Run)
				}
				for _, found := range target.FindAllStringSubmatch(step.Run, -1) {
					if !strings.Contains(makefile, "\n"+found[1]+":") {
						t.Errorf("%s: there is no target %s", file, found[1])
					}
				}
			}
		}
	}
}

// TestQuickstart: the script for kind runs the README's commands, with more flags at most.
func TestQuickstart(t *testing.T) {
	const name = "../tools/quickstart.sh"
	if out, err := exec.Command("bash", "-n", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script := read(t, "tools/quickstart.sh")
	_, section, _ := strings.Cut(read(t, "README.md"), "## Connect two clusters of your own")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := regexp.MustCompile(`(?m)^semaphorectl .*$`).FindAllString(section, -1)
	if len(commands) != 4 {
		t.Fatalf("the README has the commands %q", commands)
	}
	for _, command := range commands {
		if !strings.Contains(script, command) {
			t.Errorf("%s does not run %s", name, command)
		}
	}
}
