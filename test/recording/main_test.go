package main

import (
	"encoding/xml"
	"errors"
	"html"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestRows: steps and their evidence are shown, each after the pause of the run and 1.5 s at most; nothing else is.
func TestRows(t *testing.T) {
	got := rows("  0.0s  two clusters\n   - etcd\n  40.0s     fetched\n  60.0s  1. a pod <fetches>\n" +
		"  60.4s     it & answers\n 100.0s  2. " + strings.Repeat("word ", 30) +
		"\n 101.0s  taking everything down\n\n1  ok  a pod\n")
	word := strings.TrimSuffix(strings.Repeat("word ", 21), " ")
	want := []row{{"  60.0s  1. a pod <fetches>", "t", 1.5}, {"  60.4s     it & answers", "s", 1.9},
		{" 100.0s  2. " + word, "t", 3.4}, {"         " + strings.TrimSpace(strings.Repeat("word ", 9)), "t", 3.4}}
	if !slices.EqualFunc(got, want, func(a, b row) bool {
		return a.text == b.text && a.class == b.class && max(a.at-b.at, b.at-a.at) < 0.001
	}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wellFormed(t, svg("  1.0s  1. a <b> & c\n"))
}

func wellFormed(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRecordingIsOfThisDemo: the committed recording shows each line that the README has of the demo.
func TestRecordingIsOfThisDemo(t *testing.T) {
	recorded := string(testkit.Value(os.ReadFile("../../docs/images/demo.svg"))(t))
	wellFormed(t, recorded)
	shown := html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(recorded, " "))
	readme := string(testkit.Value(os.ReadFile("../../README.md"))(t))
	lines := regexp.MustCompile(`(?m)^(\d)  ok  (.*)$`).FindAllStringSubmatch(readme, -1)
	if len(lines) < 5 {
		t.Fatalf("the README shows %d lines of the demo", len(lines))
	}
	for _, line := range lines {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), line[1]+". "+line[2]) {
			t.Errorf("demo.svg does not show line %s, %s: run make recording", line[1], line[2])
		}
	}
}
