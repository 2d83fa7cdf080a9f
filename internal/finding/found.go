package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// Shown is how many of the objects of a finding are named. The others are counted.
	Shown = 3
	// maxEvidence bounds the text about one object in bytes.
	maxEvidence = 400
	// maxFindings bounds the findings of a part: above, those of one code become one.
	maxFindings = 256
	// maxLine bounds a line of a status, and maxLines all of them, in bytes. semaphorectl accepts 4 MiB; a broker's nodes
	// have 1 MiB of it for their problems.
	maxLine  = 500
	maxLines = 5 << 19
)

// Finding is something that is wrong: a code, and the evidence.
type Finding struct {
	Code Code
	// Cluster is the affected remote; empty for none, or several.
	Cluster string
	// Node is the first affected node, for the command; empty for none.
	Node  string
	Count uint64
	// First are the first of them, Shown at most, each one line that can be printed.
	First []string
	// Since is when it began; zero if that is unknown.
	Since time.Time
	// Lines are all lines for a status; none for facts that the status has in another field, such as a node's.
	Lines []string
}

// New returns a finding about count objects; first are some of them. Fewer than one counts as one. It has no Lines.
func New(code Code, cluster string, count int, first ...string) Finding {
	f := Finding{Code: code, Cluster: Clean(cluster), Count: uint64(max(1, count))}
	for _, line := range first[:min(len(first), Shown)] {
		f.First = append(f.First, Clean(line))
	}
	return f
}

// Lines returns a finding with a line for each affected object; none without lines.
func Lines(code Code, cluster string, lines []string) []Finding {
	if len(lines) == 0 {
		return nil
	}
	return []Finding{New(code, cluster, len(lines), lines...).Full(lines...)}
}

// Line returns a finding of one line; none for an empty one.
func Line(code Code, cluster, line string) []Finding {
	if line == "" {
		return nil
	}
	return Lines(code, cluster, []string{line})
}

// Detail adds lines to a finding that follows from the fields of a status.
func Detail(code Code, cluster string, lines []string) []Finding {
	if len(lines) == 0 {
		return nil
	}
	return []Finding{{Code: code, Cluster: Clean(cluster), Lines: lines}}
}

func (f Finding) Full(lines ...string) Finding {
	f.Lines = lines
	return f
}

func (f Finding) At(since time.Time) Finding {
	f.Since = since
	return f
}

func (f Finding) On(node string) Finding {
	f.Node = Clean(node)
	return f
}

// Wrap breaks a line between words, so that none is longer than most; those after the first begin with indent. A word
// that is longer is broken.
func Wrap(line, indent string, most int) (lines []string) {
	for utf8.RuneCountInString(line) > most {
		runes := []rune(line)
		at := most
		for i := most; i > most/2; i-- {
			if runes[i] == ' ' {
				at = i
				break
			}
		}
		lines = append(lines, strings.TrimRight(string(runes[:at]), " "))
		line = indent + strings.TrimLeft(string(runes[at:]), " ")
	}
	return append(lines, line)
}

// Clean makes a printable line of a text of any origin. Characters that control a terminal, or change the direction of
// text (Unicode's categories other than L, M, N, P, S and the space), become spaces, and a long text is cut.
func Clean(text string) string { return CleanTo(text, maxEvidence+len(cutMark)) }

const cutMark = "…"

// CleanTo is Clean with another bound: most bytes, with the mark of a cut.
func CleanTo(text string, most int) string {
	var out strings.Builder
	room := 0 // how much is kept if the mark has to follow
	for _, r := range text {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			r = ' '
		}
		if out.Len()+utf8.RuneLen(r) > most {
			return strings.TrimSpace(out.String()[:room]) + cutMark
		}
		out.WriteRune(r)
		if out.Len() <= most-len(cutMark) {
			room = out.Len()
		}
	}
	return strings.TrimSpace(out.String())
}

// Cut shortens a text to most characters, with the mark of a cut.
func Cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + cutMark
	}
	return text
}

// Texts returns the Lines of findings in their order, as many as fit into a status.
func Texts(all []Finding) (lines []string) {
	size, left := 0, 0
	for _, f := range all {
		for _, line := range f.Lines {
			line = strings.ToValidUTF8(line, "�")
			if len(line) > maxLine {
				line = strings.ToValidUTF8(line[:maxLine], "") + cutMark // without a part of a character
			}
			if size += len(line); size > maxLines {
				left++
				continue
			}
			lines = append(lines, line)
		}
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("%d more lines: too many for one status", left))
	}
	return lines
}

// Merge makes one finding of those of one code and cluster, in the order errors, code, cluster, without their Lines. If
// there are still too many, those of one code become one.
func Merge(all []Finding) []Finding {
	merged := mergeBy(all, func(f Finding) string { return f.Cluster })
	if len(merged) > maxFindings {
		merged = mergeBy(merged, func(Finding) string { return "" })
	}
	rank := map[Level]int{Error: 0, Warning: 1, OK: 2}
	slices.SortStableFunc(merged, func(a, b Finding) int {
		return cmp.Or(rank[a.Code.Level()]-rank[b.Code.Level()], cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Cluster, b.Cluster))
	})
	return merged
}

func mergeBy(all []Finding, cluster func(Finding) string) []Finding {
	type key struct {
		code    Code
		cluster string
	}
	at := map[key]int{}
	var merged []Finding
	for _, f := range all {
		k := key{f.Code, cluster(f)}
		i, found := at[k]
		if !found {
			at[k] = len(merged)
			f.First, f.Lines = slices.Clone(f.First[:min(len(f.First), Shown)]), nil
			merged = append(merged, f)
			continue
		}
		m := &merged[i]
		m.Count += f.Count
		if m.Cluster != f.Cluster {
			m.Cluster = ""
		}
		m.First = append(m.First, f.First...)
		m.First = m.First[:min(len(m.First), Shown)]
		if !f.Since.IsZero() && (m.Since.IsZero() || f.Since.Before(m.Since)) {
			m.Since = f.Since
		}
	}
	return merged
}
