// Command mutation plants the faults of mutations.txt one by one, and runs the short tests of the package with the
// fault. If no test fails, the tests lack an assertion. A line may name tests that need an apiserver or a node, too. It
// changes no file: the compiler gets the changed file by go build -overlay. Its arguments are prefixes of file names;
// without arguments it plants all faults.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed mutations.txt
var table string

// mutation replaces the only occurrence of old in file by new.
type mutation struct {
	file, fault, old, new string
	packages              []string // packages whose short tests run, the file's own first
	tests                 []string // tests that are not short, as PACKAGE#TEST, if no short one fails
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(prefixes []string) error {
	all, err := parse(table)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	planted, missed := map[string]int{}, map[string]int{}
	for _, m := range all {
		if len(prefixes) > 0 && !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(m.file, p) }) {
			continue
		}
		started := time.Now()
		by, err := m.plant(dir)
		folder := filepath.Dir(m.file)
		planted[folder]++
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			missed[folder]++
			by = "CANNOT BE PLANTED"
		case by == "":
			missed[folder]++
			by = "MISSED"
		}
		fmt.Printf("%-40s %5.1f s  %s: %s\n", by, time.Since(started).Seconds(), m.file, m.fault)
	}
	folders, n := make([]string, 0, len(planted)), 0
	for folder := range planted {
		folders, n = append(folders, folder), n+missed[folder]
	}
	slices.Sort(folders)
	fmt.Println("\nplanted  caught  package")
	for _, folder := range folders {
		fmt.Printf("%7d %7d  %s\n", planted[folder], planted[folder]-missed[folder], folder)
	}
	if n > 0 {
		return fmt.Errorf("%d faults are not caught: assert what they break, or correct the table", n)
	}
	return nil
}

// parse parses mutations of three lines each: "FILE [PACKAGE ...] [PACKAGE#TEST ...]: FAULT", "- OLD" and "+ NEW".
func parse(text string) (all []mutation, err error) {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "#")
	})
	for ; len(lines) >= 3; lines = lines[3:] {
		where, fault, named := strings.Cut(lines[0], ": ")
		before, isOld := strings.CutPrefix(lines[1], "- ")
		after, isNew := strings.CutPrefix(lines[2], "+")
		if !named || !isOld || !isNew {
			return nil, fmt.Errorf("mutations.txt: %q: use FILE: FAULT, - OLD and + NEW", lines[0])
		}
		fields := strings.Fields(where)
		m := mutation{file: fields[0], fault: fault, old: before, new: strings.TrimPrefix(after, " "),
			packages: []string{"./" + filepath.Dir(fields[0])}}
		for _, field := range fields[1:] {
			if strings.Contains(field, "#") {
				m.tests = append(m.tests, field)
			} else {
				m.packages = append(m.packages, field)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^panic: test timed out`)

// plant returns the first test that fails with the fault; "" if none does.
func (m mutation) plant(dir string) (by string, err error) {
	code, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := bytes.Count(code, []byte(m.old)); n != 1 {
		return "", fmt.Errorf("the file has %q %d times, and once is needed: correct the table", m.old, n)
	}
	code = bytes.Replace(code, []byte(m.old), []byte(m.new), 1)
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, code, 0o600), os.WriteFile(overlay, text, 0o600)); err != nil {
		return "", err
	}
	by, err = test(overlay, append([]string{"-short", "-timeout", "3m"}, m.packages...)...)
	for _, long := range m.tests {
		if by != "" || err != nil {
			break
		}
		pkg, name, _ := strings.Cut(long, "#")
		by, err = test(overlay, "-timeout", "10m", "-run", "^"+name+"$", pkg)
	}
	return by, err
}

// test returns the first test that fails with the overlay; "" if none does.
func test(overlay string, args ...string) (by string, err error) {
	args = append([]string{"test", "-failfast", "-count", "1", "-vet", "off", "-overlay", overlay}, args...)
	out, err := exec.Command("go", args...).CombinedOutput()
	var exit *exec.ExitError
	switch found := failed.FindSubmatch(out); {
	case err == nil:
		return "", nil
	case found != nil && found[1] != nil:
		return string(found[1]), nil
	case found != nil:
		return "(timeout)", nil
	case errors.As(err, &exit) && bytes.Contains(out, []byte("\npanic: ")):
		return "(panic)", nil
	}
	return "", fmt.Errorf("%w\n%s", err, out)
}
