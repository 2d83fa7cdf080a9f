package show

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// Tabbed returns the text of fill with its tabs replaced by columns: all tables are printed by it.
func Tabbed(fill func(t io.Writer)) string {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fill(t)
	_ = t.Flush() // to memory
	return text.String()
}

// Section prints a table under an empty line, unless it has no rows: a header, a line for each, and how many more of a
// total there are.
func Section[T any](w io.Writer, header string, all []T, total int, line func(T) string) {
	if len(all) > 0 {
		fmt.Fprintln(w, "\n"+header)
	}
	for _, one := range all {
		fmt.Fprintln(w, line(one))
	}
	if more := total - len(all); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// Wrong ends a verb that printed how things are: it fails if some are not as they should be, and counts and names them.
func Wrong(names []string, of int, are string) error {
	if len(names) == 0 {
		return nil
	}
	for i := range names {
		names[i] = Printable(names[i])
	}
	return program.ExitError{Code: ExitWrong,
		Err: fmt.Errorf("%d of %d %s: %s", len(names), of, are, SomeOf(names))}
}

// Table prints rows in columns that fit the width: it shortens the widest column, and a shortened cell ends in "…".
func Table(out *strings.Builder, rows [][]string, most int) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := func() (n int) {
		for _, w := range widths {
			n += w + 2
		}
		return n - 2
	}
	for total() > most {
		widest := slices.Index(widths, slices.Max(widths))
		if widths[widest] <= 4 {
			break
		}
		widths[widest]--
	}
	out.WriteString(Tabbed(func(t io.Writer) {
		for _, row := range rows {
			for i, cell := range row {
				if i > 0 {
					fmt.Fprint(t, "\t")
				}
				fmt.Fprint(t, finding.Cut(cell, widths[i]))
			}
			fmt.Fprintln(t)
		}
	}))
}
