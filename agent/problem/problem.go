// Package problem bounds the texts of problems for a report. It is pure.
//
// It may import no other package of the agent.
package problem

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

const (
	// maxText is the maximal size of a problem in a report, in bytes.
	maxText = 500
	// maxLines is how many problems are listed.
	maxLines = 5
)

// Truncate makes one bounded, printable line of a text for a report.
func Truncate(text string) string { return finding.CleanTo(text, maxText) }

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
