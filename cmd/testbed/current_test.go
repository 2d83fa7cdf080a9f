package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// A program that a build has replaced at its path continues as what was built. One whose path has what it is, or that
// was started from elsewhere, continues.
func TestBecomeCurrent(t *testing.T) {
	const role = "SEMAPHORE_TEST_REPLACES"
	if path := os.Getenv(role); path != "" {
		if own, err := os.Executable(); err != nil || own != path && os.Getenv("ELSEWHERE") == "" {
			t.Fatal(own, err)
		}
		if os.Getenv("REPLACE") != "" {
			next := path + ".next"
			testkit.Must(t, os.WriteFile(next, []byte("#!/bin/sh\necho new $#\n"), 0o755))
			if err := os.Rename(next, path); err != nil { // as go build does
				t.Fatal(err)
			}
		}
		testkit.Must(t, becomeCurrent(path))
		os.Stdout.WriteString("old\n")
		os.Exit(0)
	}
	program := testkit.Value(os.ReadFile("/proc/self/exe"))(t)
	for _, test := range []struct {
		name string
		env  []string
		want string
	}{
		{"replaced", []string{"REPLACE=1"}, "new 1\n"},
		{"as it was", nil, "old\n"},
		{"started from elsewhere", []string{"REPLACE=1", "ELSEWHERE=1"}, "old\n"},
		{"has become it already", []string{"REPLACE=1", became + "=1"}, "old\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "testbed")
			testkit.Must(t, os.WriteFile(path, program, 0o755))
			started := path
			if len(test.env) > 1 && test.env[1] == "ELSEWHERE=1" {
				started = filepath.Join(t.TempDir(), "testbed")
				testkit.Must(t, os.Link(path, started))
			}
			cmd := exec.CommandContext(t.Context(), started, "-test.run=^TestBecomeCurrent$")
			cmd.Env = append(append(os.Environ(), role+"="+path), test.env...)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != test.want {
				t.Errorf("%q, %v; want %q", out, err, test.want)
			}
		})
	}
}
