package coredns

import (
	"path"
	"regexp"
	"strings"
)

// The marks of the section that semaphorectl writes into a Corefile.
const (
	sectionBegin = "# BEGIN semaphore: semaphorectl writes this section and removes it\n"
	sectionEnd   = "# END semaphore\n"
)

// Section is what a Corefile has between our marks, and whether it has the marks.
func Section(corefile string) (blocks string, found bool) {
	_, after, found := strings.Cut(corefile, sectionBegin)
	if !found {
		return "", false
	}
	blocks, _, found = strings.Cut(after, sectionEnd)
	return blocks, found
}

// WithSection is a Corefile with blocks between our marks, at its end where it has none yet. Without blocks it is the
// Corefile as it was before.
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

// Import is the first pattern of files that a Corefile imports as server blocks of their own, such as custom/*.server:
// what is imported within a block is part of that block.
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

// FileOf is the name of our file among those of a pattern.
func FileOf(pattern string) string { return strings.ReplaceAll(path.Base(pattern), "*", "semaphore") }

var domain = regexp.MustCompile(`(?m)^\s*kubernetes\s+([^\s{]+)`)

// ClusterDomain is the domain of the own cluster's services, of which a Corefile says that CoreDNS serves it;
// cluster.local where it does not.
func ClusterDomain(corefile string) string {
	if m := domain.FindStringSubmatch(corefile); m != nil {
		return strings.TrimSuffix(m[1], ".")
	}
	return "cluster.local"
}
