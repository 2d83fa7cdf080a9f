// Command recording makes a picture that plays from what a demo printed: bin/testbed demo | recording > demo.svg.
//
// The times at the left are those of the run. Pauses are shortened, so that nobody waits for a cluster to start.
package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	output, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = io.WriteString(os.Stdout, svg(string(output)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

const (
	// The width of a character is in tenths of a pixel.
	columns, rowHeight, charWidth = 118, 19, 73
	// longest is how long a pause lasts in the picture, in seconds.
	longest = 1.5
)

// row is a line of the picture. at is when it appears, in seconds.
type row struct {
	text, class string
	at          float64
}

// said is a line of the demo with its time. The output of components has none.
var said = regexp.MustCompile(`^\s*(\d+\.\d)s  (.*)$`)

// step begins a line of what the demo shows.
var step = regexp.MustCompile(`^\d+\. `)

// rows returns what to show of a demo's output: its steps and their evidence.
func rows(output string) (out []row) {
	var before, at float64
	for line := range strings.Lines(output) {
		found := said.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if found == nil {
			continue
		}
		class := "s"
		if step.MatchString(found[2]) {
			class = "t"
		} else if len(out) == 0 || !strings.HasPrefix(found[2], "   ") {
			continue
		}
		seconds, _ := strconv.ParseFloat(found[1], 64) // the expression admits only numbers
		at += min(seconds-before, longest)
		before = seconds
		for i, part := range wrap(found[2], columns-10) {
			stamp := ""
			if i == 0 {
				stamp = found[1] + "s"
			}
			out = append(out, row{fmt.Sprintf("%7s  %s", stamp, part), class, at})
		}
	}
	return out
}

// wrap breaks a text between words, and indents what follows as the text.
func wrap(text string, width int) (out []string) {
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width && line != indent {
			out, line = append(out, line), indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return append(out, line)
}

// svg draws the rows of a demo's output. A viewer without animations shows all of them.
func svg(output string) string {
	all := rows(output)
	var b strings.Builder
	width, height := columns*charWidth/10+30, (len(all)+2)*rowHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-size="12" `+
		`font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace">
  <title>make demo: what it shows, with the times of the run; pauses are shortened</title>
  <style>
    text { white-space: pre; animation: appear 1ms backwards }
    @keyframes appear { from { visibility: hidden } to { visibility: visible } }
    @media (prefers-reduced-motion: reduce) { text { animation: none } }
    .t { fill: #86efac } .s { fill: #cbd5e1 }
  </style>
  <rect width="%d" height="%d" rx="10" fill="#0f172a"/>
`, width, height, width, height)
	for i, r := range all {
		fmt.Fprintf(&b, "  <text class=\"%s\" x=\"15\" y=\"%d\" style=\"animation-delay: %.1fs\">%s</text>\n", r.class,
			(i+1)*rowHeight+6, r.at, html.EscapeString(r.text))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
