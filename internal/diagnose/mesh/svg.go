package mesh

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// The sizes of an SVG, in its own units.
const (
	boxWidth, boxHeight = 230, 76
	lineHeight          = 20
	margin              = 24
	// labelled is the number of boxes up to which the labels of edges do not overlap.
	labelled = 3
)

// style has the colours for a light and a dark background. Dashes and marks show the same without colours.
const style = `
svg{font-family:system-ui,sans-serif;font-size:14px;--ink:#1f2328;--soft:#57606a;--paper:#fff;--box:#f6f8fa;` +
	`--well:#1a7f37;--unknown:#6e7781;--warning:#9a6700;--error:#cf222e}
@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#9198a1;--paper:#0d1117;--box:#161b22;` +
	`--well:#3fb950;--unknown:#8b949e;--warning:#d29922;--error:#f85149}}
.paper{fill:var(--paper)}text{fill:var(--ink)}.soft{fill:var(--soft);font-size:12px}
.label{paint-order:stroke;stroke:var(--paper);stroke-width:9px;stroke-linejoin:round}
.title{font-size:17px;font-weight:600}` +
	`.name{font-weight:600}
.box{fill:var(--box);stroke-width:2}.edge{stroke-width:3;fill:none}
.box.well,.edge.well{stroke:var(--well)}.box.unknown,.edge.unknown{stroke:var(--unknown)}
.box.warning,.edge.warning{stroke:var(--warning)}.box.error,.edge.error{stroke:var(--error)}
text.well{fill:var(--well)}text.unknown{fill:var(--unknown)}` +
	`text.warning{fill:var(--warning)}text.error{fill:var(--error)}
.edge.warning{stroke-dasharray:2 5}.edge.error{stroke-dasharray:10 6;stroke-width:4}.edge.unknown{stroke-dasharray:4 4}
`

type drawing struct {
	strings.Builder
	*Picture
	// places are the centres of the boxes, below top.
	places [][2]float64
	top    float64
}

// SVG returns the picture for a browser, in light and dark. It has no script and loads nothing.
func (p *Picture) SVG() string {
	places, width, height := p.layout()
	lines := p.lines()
	titles := finding.Wrap(p.Verdict, "", int(width-2*margin)/9)
	d := &drawing{Picture: p, places: places, top: float64(2*margin + lineHeight*len(titles))}
	total := d.top + height + float64(margin+lineHeight*len(lines))

	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" `+
		`role="img" aria-labelledby="t d">`+"\n", width, total, width, total)
	fmt.Fprintf(d, "<title id=\"t\">%s</title>\n<desc id=\"d\">", html.EscapeString(p.Verdict))
	for _, l := range lines {
		fmt.Fprintf(d, "%s\n", html.EscapeString(l.Text))
	}
	fmt.Fprintf(d, "</desc>\n<style>%s</style>\n", style)
	fmt.Fprintf(d, `<rect class="paper" width="%.0f" height="%.0f"/>`+"\n", width, total)
	state := Well
	if !p.Well {
		state = Error
	}
	for i, line := range titles {
		fmt.Fprintf(d, `<text class="title %s" x="%d" y="%d">%s</text>`+"\n", state, margin, margin+lineHeight*(i+1),
			html.EscapeString(line))
	}
	d.edges()
	d.boxes()
	if len(p.Boxes) <= labelled {
		d.labels()
	}
	for i, l := range lines {
		if l.Text == "" {
			continue
		}
		fmt.Fprintf(d, `<text class="%s" x="%d" y="%.0f">%s %s</text>`+"\n", l.State, margin,
			d.top+height+float64(lineHeight*(i+1)), l.State.mark(), html.EscapeString(l.Text))
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// lines are the text below the picture: the links, the traffic of Services and the findings, with an empty line between
// them.
func (p *Picture) lines() (lines []Line) {
	for i, s := range []Section{p.Links, p.Traffic, p.Findings} {
		if i > 0 && len(s.Lines) > 0 {
			lines = append(lines, Line{"", Unknown})
		}
		lines = append(lines, s.Lines...)
		if s.More > 0 {
			lines = append(lines, Line{fmt.Sprintf("and %d more %s", s.More, s.of), Unknown})
		}
	}
	return lines
}

// edges draws the lines between the boxes, below these.
func (d *drawing) edges() {
	for _, e := range d.Edges {
		a, b := d.places[e.A], d.places[e.B]
		fmt.Fprintf(d, `<path class="edge %s" d="M%.1f %.1fL%.1f %.1f"><title>%s — %s: %s</title></path>`+"\n", e.State,
			a[0], a[1]+d.top, b[0], b[1]+d.top, html.EscapeString(d.Boxes[e.A].Name), html.EscapeString(d.Boxes[e.B].Name),
			html.EscapeString(e.Label))
	}
}

func (d *drawing) boxes() {
	for i, b := range d.Boxes {
		x, y := d.places[i][0], d.places[i][1]+d.top
		fmt.Fprintf(d, `<rect class="box %s" x="%.1f" y="%.1f" width="%d" height="%d" rx="8"/>`+"\n", b.State,
			x-boxWidth/2, y-boxHeight/2, boxWidth, boxHeight)
		fmt.Fprintf(d, `<text class="name" x="%.1f" y="%.1f" text-anchor="middle">%s %s</text>`+"\n", x,
			y-float64(9*len(b.Lines))+5, b.State.mark(), html.EscapeString(text(b.Name, 24)))
		for j, line := range b.Lines {
			fmt.Fprintf(d, `<text class="soft" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x,
				y+float64(18*(j+1)-9*len(b.Lines))+5, html.EscapeString(line))
		}
	}
}

func (d *drawing) labels() {
	for _, e := range d.Edges {
		a, b := d.places[e.A], d.places[e.B]
		fmt.Fprintf(d, `<text class="soft label" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", (a[0]+b[0])/2,
			(a[1]+b[1])/2+d.top+4, html.EscapeString(e.Label))
	}
}

// layout places the centres of the boxes: two beside each other, more in a circle, and one that all edges touch in its
// middle.
func (p *Picture) layout() (places [][2]float64, width, height float64) {
	const least = 1000
	n := len(p.Boxes)
	places = make([][2]float64, n)
	if n <= 2 {
		width, height = least, boxHeight+2*margin
		for i := range places {
			places[i] = [2]float64{width * float64(2*i+1) / float64(2*n), height / 2}
		}
		return places, width, height
	}
	centre := p.hub()
	around := n
	if centre >= 0 {
		around--
	}
	// Boxes beside each other in the circle do not overlap; the circle is flat, like the boxes.
	radius := math.Max(boxWidth+2*margin, float64(around)*(boxWidth+margin)/(2*math.Pi))
	across, up := radius*1.25, radius*0.7
	width = math.Max(least, 2*across+boxWidth+2*margin)
	height = 2*up + boxHeight + 2*margin
	at := 0
	for i := range places {
		if i == centre {
			places[i] = [2]float64{width / 2, height / 2}
			continue
		}
		angle := 2*math.Pi*float64(at)/float64(around) - math.Pi/2
		places[i] = [2]float64{width/2 + across*math.Cos(angle), height/2 + up*math.Sin(angle)}
		at++
	}
	return places, width, height
}

// hub is the one box that all edges touch; -1 for none.
func (p *Picture) hub() int {
	if len(p.Edges) < 2 {
		return -1
	}
	for _, i := range []int{p.Edges[0].A, p.Edges[0].B} {
		touches := 0
		for _, e := range p.Edges {
			if e.A == i || e.B == i {
				touches++
			}
		}
		if touches == len(p.Edges) {
			return i
		}
	}
	return -1
}
