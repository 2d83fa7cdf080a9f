package events

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

const (
	// maxProblem is the maximal size of a problem in a report, in bytes.
	maxProblem = 500
	// maxProblems is how many problems are listed.
	maxProblems = 5
)

// TruncateProblem makes one bounded, printable line of a text for a report.
func TruncateProblem(text string) string { return finding.CleanTo(text, maxProblem) }

func ProblemLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// JoinProblems returns one text of problems, a line each: the first ones, and how many more there are.
func JoinProblems(lists ...[]string) string {
	var lines []string
	more := 0
	for _, list := range lists {
		n := min(len(list), maxProblems-len(lines))
		lines = append(lines, list[:n]...)
		more += len(list) - n
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return TruncateProblem(strings.Join(lines, "; "))
}

func AddProblem(problem string, err error) string {
	if err == nil {
		return problem
	}
	return TruncateProblem(strings.TrimPrefix(problem+"; "+ProblemLine(err), "; "))
}
