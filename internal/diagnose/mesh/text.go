package mesh

import (
	"fmt"
	"strings"
	"unicode"
)

var colours = map[State]string{Well: "#1a7f37", Unknown: "#6e7781", Warning: "#9a6700", Error: "#cf222e"}

var styles = map[State]string{Well: "solid", Unknown: "dashed", Warning: "dotted", Error: "dashed,bold"}

// DOT is the picture for Graphviz (https://graphviz.org/doc/info/lang.html).
func (p *Picture) DOT() string {
	var out strings.Builder
	out.WriteString("graph mesh {\n  layout=circo\n  overlap=false\n  node [shape=box style=rounded " +
		"fontname=\"sans-serif\"]\n" +
		"  edge [fontname=\"sans-serif\" fontsize=10]\n")
	fmt.Fprintf(&out, "  labelloc=t\n  label=%s\n", quoteDOT(append([]string{p.Verdict}, p.below()...)...))
	for i, b := range p.Boxes {
		fmt.Fprintf(&out, "  c%d [label=%s color=%q]\n", i, quoteDOT(append([]string{b.State.mark() + " " + b.Name},
			b.Lines...)...), colours[b.State])
	}
	for _, e := range p.Edges {
		fmt.Fprintf(&out, "  c%d -- c%d [label=%s color=%q style=%q]\n", e.A, e.B, quoteDOT(e.Label), colours[e.State],
			styles[e.State])
	}
	out.WriteString("}\n")
	return out.String()
}

// below are the lines below the drawing, each with its mark.
func (p *Picture) below() (lines []string) {
	for _, l := range p.lines() {
		if l.Text != "" {
			lines = append(lines, l.State.mark()+" "+l.Text)
		}
	}
	return lines
}

// quoteDOT is a label of several lines. A backslash begins an escape in a label, and an ampersand an HTML entity.
func quoteDOT(lines ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "&", "&amp;")
	for i, line := range lines {
		lines[i] = escape.Replace(line)
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}

// Mermaid is the picture for Markdown (https://mermaid.js.org/syntax/flowchart.html).
func (p *Picture) Mermaid() string {
	var out strings.Builder
	out.WriteString("flowchart LR\n")
	fmt.Fprintf(&out, "  verdict[%s]\n", quoteMermaid(append([]string{p.Verdict}, p.below()...)...))
	for i, b := range p.Boxes {
		fmt.Fprintf(&out, "  c%d[%s]:::%s\n", i, quoteMermaid(append([]string{b.State.mark() + " " + b.Name}, b.Lines...)...),
			b.State)
	}
	for _, e := range p.Edges {
		fmt.Fprintf(&out, "  c%d ---|%s| c%d\n", e.A, quoteMermaid(e.Label), e.B)
	}
	for i, e := range p.Edges {
		fmt.Fprintf(&out, "  linkStyle %d stroke:%s,stroke-width:3px", i, colours[e.State])
		if e.State != Well {
			out.WriteString(",stroke-dasharray:8 5")
		}
		out.WriteByte('\n')
	}
	for _, s := range []State{Well, Unknown, Warning, Error} {
		fmt.Fprintf(&out, "  classDef %s stroke:%s,stroke-width:2px\n", s, colours[s])
	}
	return out.String()
}

// quoteMermaid is a label of several lines. A character that is neither a letter, a digit nor one of a few signs
// becomes an entity by its number. Angle brackets become similar ones: some renderers decode entities and read the
// result as HTML.
func quoteMermaid(lines ...string) string {
	var out strings.Builder
	out.WriteByte('"')
	for i, line := range lines {
		if i > 0 {
			out.WriteString("<br/>")
		}
		for _, r := range line {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), strings.ContainsRune(" .,:/-_()+=←→✓✗…", r):
				out.WriteRune(r)
			case r == '<':
				out.WriteRune('‹')
			case r == '>':
				out.WriteRune('›')
			default:
				fmt.Fprintf(&out, "#%d;", r)
			}
		}
	}
	out.WriteByte('"')
	return out.String()
}
