package verify

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Cluster is a verified cluster, with the objects that verify created in it.
type Cluster struct {
	Context string `json:"context"`
	Name    string `json:"name"`
	Image   string `json:"image"`
	Pods    []Pod  `json:"pods"`
}

type Report struct {
	Verdict   string    `json:"verdict"`
	Passed    int       `json:"passed"`
	Failed    int       `json:"failed"`
	Unchecked int       `json:"unchecked"`
	Seconds   float64   `json:"seconds"`
	Namespace string    `json:"namespace"`
	Clusters  []Cluster `json:"clusters"`
	Checks    []Check   `json:"checks"`
}

// NewReport returns a report with counts and a verdict in one line.
func NewReport(namespace string, clusters []Cluster, checks []Check, seconds float64) *Report {
	r := &Report{Namespace: namespace, Clusters: clusters, Checks: checks, Seconds: seconds}
	traffic, unseen := map[string]bool{}, []string{}
	for _, c := range checks {
		switch c.Result {
		case Passed:
			r.Passed++
			if c.To != "" && c.To != c.From {
				traffic[c.From], traffic[c.To] = true, true
			}
		case Failed:
			r.Failed++
		case Unchecked:
			r.Unchecked++
			if c.unread {
				unseen = append(unseen, c.Detail)
			}
		}
	}
	var names []string
	for _, c := range clusters {
		names = append(names, c.Name)
		if !traffic[c.Name] {
			unseen = append(unseen, "no traffic from or to "+c.Name)
		}
	}
	said := "all is well"
	switch {
	case r.Failed > 0:
		said = fmt.Sprintf("%d of %d checks failed", r.Failed, r.Failed+r.Passed)
	case len(traffic) == 0:
		said = "nothing was checked"
	case len(unseen) > 0:
		said = "no check failed, and not all was checked: " + strings.Join(slices.Compact(unseen), "; ")
	}
	r.Verdict = strings.Join(names, ", ") + ": " + said
	return r
}

// Well reports whether no check failed, each cluster had traffic with another one, and nothing was unreadable.
func (r *Report) Well() bool { return strings.HasSuffix(r.Verdict, ": all is well") }

// detailWidth is the width of a check's detail in a line, in columns, beside the names of two clusters.
const detailWidth = 56

// Print prints the report as a table, JSON or YAML. It fails if w does.
func (r *Report) Print(w io.Writer, output string) error {
	if output != "table" {
		return show.PrintValue(w, r, output)
	}
	colour := show.Red
	if r.Well() {
		colour = show.Green
	}
	fmt.Fprintf(w, "%s\n%d passed, %d failed, %d unchecked, in %.1f s\n\n",
		show.Paint(w, colour, show.Printable(r.Verdict)), r.Passed, r.Failed, r.Unchecked, r.Seconds)
	toDo := "\nTO DO\n"
	text := show.Tabbed(r.table)
	for _, c := range r.Checks {
		if c.Fix != "" {
			line := fmt.Sprintf("  %s: %s (%s)", c.Code, show.Printable(c.Fix), c.Code.Anchor())
			text += toDo + strings.Join(finding.Wrap(line, "    ", show.LineWidth), "\n") + "\n"
			toDo = ""
		}
	}
	return show.PrintLines(w, text)
}

func (r *Report) table(t io.Writer) {
	fmt.Fprintln(t, "FROM\tTO\tCHECK\tRESULT\tTIME\tDETAIL")
	for _, c := range r.Checks {
		took := "-"
		if c.Result != Unchecked {
			took = fmt.Sprintf("%.1fs", c.Seconds)
		}
		detail := c.Detail
		if c.Code != "" {
			detail = string(c.Code) + ": " + detail
		}
		lines := finding.Wrap(show.Printable(detail), "", detailWidth)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", c.From, cmp.Or(c.To, "-"), c.Name, c.Result, took, lines[0])
		for _, more := range lines[1:] {
			fmt.Fprintf(t, "\t\t\t\t\t  %s\n", more)
		}
	}
}
