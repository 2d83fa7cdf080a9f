// Package problem bounds the texts of problems for a report. It is pure and imports no other package of semaphore.
//
// It may import no other package of the agent.
package problem

import (
	"fmt"
	"strings"
)

const (
	// maxText is the maximal size of a problem in a report, in bytes.
	maxText = 500
	// maxLines is how many problems are listed.
	maxLines = 5
)

// Truncate bounds a text for a report, and keeps it valid UTF-8.
func Truncate(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return strings.ToValidUTF8(text, "")
}

// Line returns an error on one line.
func Line(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Join returns one text of problems, a line each: the first ones, and how many more there are.
func Join(lists ...[]string) string {
	var lines []string
	more := 0
	for _, list := range lists {
		n := min(len(list), maxLines-len(lines))
		lines = append(lines, list[:n]...)
		more += len(list) - n
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return Truncate(strings.Join(lines, "; "))
}

// With adds a problem to a text of problems; nil for none.
func With(problem string, err error) string {
	if err == nil {
		return problem
	}
	return Truncate(strings.TrimPrefix(problem+"; "+Line(err), "; "))
}
