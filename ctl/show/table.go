package show

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

func Dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
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
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= 4 {
			break
		}
		widths[widest]--
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if runes := []rune(cell); len(runes) > widths[i] {
				cell = string(runes[:widths[i]-1]) + "…"
			}
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // to memory
	out.Write(text.Bytes())
}
