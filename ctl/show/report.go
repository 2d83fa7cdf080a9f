package show

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// Report prints findings, the worst ones last, where a terminal shows them, and fails with the exit code's error if one
// is not OK. Programs also get what is beside them.
func Report(w io.Writer, findings []Finding, output string, beside ...map[string]any) error {
	rank := map[finding.Level]int{finding.OK: 0, finding.NotChecked: 1, finding.Warning: 2, finding.Error: 3}
	slices.SortStableFunc(findings, func(a, b Finding) int { return rank[a.Level] - rank[b.Level] })
	count := map[finding.Level]int{}
	for _, f := range findings {
		count[f.Level]++
	}
	if output != "table" {
		value := map[string]any{"findings": append([]Finding{}, findings...), "errors": count[finding.Error],
			"warnings": count[finding.Warning], "notChecked": count[finding.NotChecked]}
		for _, more := range beside {
			maps.Copy(value, more)
		}
		if err := PrintValue(w, value, output); err != nil {
			return err
		}
	} else {
		for i, f := range findings {
			word := strings.ToUpper(strings.ReplaceAll(string(f.Level), "-", " "))
			level := Paint(w, levelColours[f.Level], fmt.Sprintf("%-7s", word))
			line := fmt.Sprintf("%s  %s  %s: %s\n", level, f.Code, Printable(f.Subject), Printable(f.Evidence))
			if f.Level == finding.OK { // its code adds nothing to the text
				line = fmt.Sprintf("%s  %s: %s\n", level, Printable(f.Subject), Printable(f.Evidence))
			}
			// Several in a row with the same fix print it once.
			again := i+1 < len(findings) && findings[i+1].Fix == f.Fix && findings[i+1].Side == f.Side
			if f.Level != finding.OK && f.Fix != "" && !again {
				line += fmt.Sprintf("         to do (%s): %s\n", Printable(f.Side), Printable(f.Fix))
			}
			io.WriteString(w, line)
		}
	}
	says := Number(uint64(count[finding.Error]), "error", "errors") + ", " +
		Number(uint64(count[finding.Warning]), "warning", "warnings")
	if n := count[finding.NotChecked]; n > 0 {
		says += fmt.Sprintf(", %d not checked", n)
	}
	switch {
	case count[finding.Error]+count[finding.Warning] > 0:
		return program.ExitError{Code: ExitWrong, Err: errors.New(says)}
	case count[finding.NotChecked] > 0:
		return program.ExitError{Code: ExitUnknown, Err: errors.New(says)}
	}
	return nil
}

// PrintBlockers prints the findings that are not OK, as a table. It fails if one of them is an error.
func PrintBlockers(w io.Writer, findings []Finding) error {
	findings = slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Level == finding.OK })
	if len(findings) == 0 {
		return nil
	}
	err := Report(w, findings, "table")
	if !slices.ContainsFunc(findings, func(f Finding) bool { return f.Level == finding.Error }) {
		_, err = fmt.Fprintln(w)
		return err
	}
	return program.ExitError{Code: ExitWrong, Err: fmt.Errorf("nothing was written: %w", err)}
}

var levelColours = map[finding.Level]Colour{finding.OK: Green, finding.NotChecked: Yellow,
	finding.Warning: Yellow, finding.Error: Red}
