package testkit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	listed  = regexp.MustCompile(`(?m)^\[([-!])\]([^ ]+)(?: of ([^ ]+))? \(`)
	counted = regexp.MustCompile(`(?m)^semaphore_findings\{cluster="([^"]*)",code="([^"]+)"`)
)

// SameCodes compares the findings that a part lists at /readyz?verbose with those that its metrics count and those of
// its status. The codes of the page's first line must be those that the list marks.
func SameCodes[F interface {
	GetCode() string
	GetCluster() string
}](page, metrics string, status []F) error {
	name := func(code, cluster string) string { return strings.TrimSuffix(code+"/"+cluster, "/") }
	lists, marked := map[string]bool{}, map[string]bool{}
	for _, m := range listed.FindAllStringSubmatch(page, -1) {
		lists[name(m[2], m[3])] = true
		if m[1] == "-" {
			marked[m[2]] = true
		}
	}
	counts := map[string]bool{}
	for _, m := range counted.FindAllStringSubmatch(metrics, -1) {
		counts[name(m[2], m[1])] = true
	}
	has := map[string]bool{}
	for _, f := range status {
		has[name(f.GetCode(), f.GetCluster())] = true
	}
	if !maps.Equal(lists, has) || !maps.Equal(counts, has) {
		return fmt.Errorf("/readyz lists %v, metrics %v, status %v", slices.Sorted(maps.Keys(lists)),
			slices.Sorted(maps.Keys(counts)), slices.Sorted(maps.Keys(has)))
	}
	first, _, _ := strings.Cut(page, "\n")
	head, _, _ := strings.Cut(first, ": ")
	answered := map[string]bool{}
	for code := range strings.SplitSeq(head, ", ") {
		if code != "ok" {
			answered[code] = true
		}
	}
	if !maps.Equal(answered, marked) {
		return fmt.Errorf("the first line is %q, and the list marks %v", first, slices.Sorted(maps.Keys(marked)))
	}
	return nil
}
