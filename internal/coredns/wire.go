package coredns

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The lines around the section that semaphorectl writes into a Corefile.
const (
	sectionBegin = "# BEGIN semaphore: semaphorectl writes this section and removes it\n"
	sectionEnd   = "# END semaphore\n"
)

// Section returns the text between the marks in a Corefile. found reports whether the Corefile has the marks.
func Section(corefile string) (blocks string, found bool) {
	_, after, found := strings.Cut(corefile, sectionBegin)
	if !found {
		return "", false
	}
	blocks, _, found = strings.Cut(after, sectionEnd)
	return blocks, found
}

// WithSection returns the Corefile with blocks between the marks. If it has no marks yet, they are added at its end. If
// blocks is empty, it returns the Corefile without the section.
func WithSection(corefile, blocks string) string {
	section := ""
	if blocks != "" {
		section = "\n" + sectionBegin + blocks + sectionEnd
	}
	if old, found := Section(corefile); found {
		return strings.Replace(corefile, "\n"+sectionBegin+old+sectionEnd, section, 1)
	}
	return corefile + section
}

// Text returns the server blocks of semaphore for a Corefile. It omits blocks that Served omits, and those whose domain
// another block answers, in one of the texts outside: CoreDNS loads no configuration with a domain twice. left has a
// sentence about each omitted block. knowsImports says that CoreDNS resolves imported Services from ServiceImports.
func Text(blocks []Block, knowsImports bool, outside ...string) (text string, left []string) {
	served, left := Served(blocks)
	taken := map[string]bool{}
	for _, corefile := range outside {
		for zone := range servers(corefile) {
			taken[zone] = true
		}
	}
	served = slices.DeleteFunc(served, func(b Block) bool {
		if taken[b.Zone()] {
			left = append(left, fmt.Sprintf("no block for %s: another block answers it; remove that one", b.Zone()))
		}
		return taken[b.Zone()]
	})
	var out strings.Builder
	_ = Print(&out, served, knowsImports) // writing to memory does not fail
	return out.String(), left
}

// Import returns the first file pattern, such as custom/*.server, that a Corefile imports outside of server blocks, so
// that the files contain server blocks. Files that are imported inside of a block are part of that block.
func Import(corefile string) (pattern string, found bool) {
	depth := 0
	for line := range strings.Lines(corefile) {
		words := tokens(line)
		if depth == 0 && len(words) == 2 && words[0] == "import" && strings.Contains(path.Base(words[1]), "*") {
			return words[1], true
		}
		for _, word := range words {
			switch word {
			case "{":
				depth++
			case "}":
				depth--
			}
		}
	}
	return "", false
}

// FileOf returns the name of semaphore's file that matches a pattern.
func FileOf(pattern string) string { return strings.ReplaceAll(path.Base(pattern), "*", "semaphore") }

// Others returns the texts of the files that match a pattern of Import, without semaphore's.
func Others(files map[string]string, pattern string) (texts []string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if match, err := path.Match(path.Base(pattern), name); err == nil && match && name != FileOf(pattern) {
			texts = append(texts, files[name])
		}
	}
	return texts
}

var domain = regexp.MustCompile(`(?m)^\s*kubernetes\s+([^\s{]+)`)

// ClusterDomain returns the domain of the own cluster's services in a Corefile; cluster.local if the Corefile has none.
func ClusterDomain(corefile string) string {
	if m := domain.FindStringSubmatch(corefile); m != nil {
		return strings.TrimSuffix(m[1], ".")
	}
	return "cluster.local"
}
