package mesh

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file and its neighbours draw the mesh: clusters, what each imports from each other, the tunnels between them,
// and findings, as SVG, DOT and Mermaid. They judge nothing: a colour is a finding's level.
//
// Each output has a bounded size, however many clusters and findings there are, and no name from another cluster can
// break out of its label.

// The bounds of a picture. More clusters than maxClusters become one box with their number.
const (
	maxClusters = 24
	maxLinks    = 40
	maxFindings = 10
	maxTraffic  = 10
	// In characters.
	maxName      = 32
	maxLineOfBox = 36
	maxLine      = 132
)

// State is the state of a cluster or a connection, worst last.
type State int

// The states. Colours, marks and dashes follow from them.
const (
	// Well: no finding.
	Well State = iota
	// Unknown: no part was asked.
	Unknown
	// Warning and Error are the level of the worst finding.
	Warning
	Error
)

func (s State) String() string { return [...]string{"well", "unknown", "warning", "error"}[s] }

// mark returns a character for the state, for readers without colours.
func (s State) mark() string { return [...]string{"✓", "?", "!", "✗"}[s] }

type Picture struct {
	Verdict string
	Well    bool
	Boxes   []Box
	Edges   []Edge
	// Links are those of each direction, the worst first; Traffic is that of the busiest Services; Findings are in the
	// order of the verdict.
	Links, Traffic, Findings Section
}

// Section is lines below the drawing.
type Section struct {
	Lines []Line
	// More is how many have no line, and of what.
	More int
	of   string
}

type Box struct {
	Name  string
	Lines []string
	State State
}

// Edge connects two boxes, by their indices. Label is short.
type Edge struct {
	A, B  int
	Label string
	State State
}

type Line struct {
	Text  string
	State State
}

func PictureOf(m *Mesh) *Picture {
	p := &Picture{Verdict: text(m.Verdict, 3*maxLine), Well: m.Well}
	levels := levelsOf(m)
	boxOf := p.boxes(m, levels)
	p.edges(m, levels, boxOf)
	links := slices.Clone(m.Links)
	slices.SortStableFunc(links, func(a, b Link) int { return cmp.Compare(levels.link(b), levels.link(a)) })
	p.Links = section("links", links, maxLinks, linkText, levels.link)
	p.Traffic = section("services with traffic", m.Traffic, maxTraffic, trafficText, func(Traffic) State { return Well })
	p.Traffic.More += m.MoreTraffic
	p.Findings = section("findings", m.Findings, maxFindings, findingText, levelOf)
	return p
}

func section[T any](of string, all []T, most int, says func(T) string, state func(T) State) Section {
	s := Section{of: of, More: max(len(all)-most, 0)}
	for _, one := range all[:len(all)-s.More] {
		s.Lines = append(s.Lines, Line{text(says(one), maxLine), state(one)})
	}
	return s
}

// levels are the worst levels of findings, by the cluster that has them and the one that they are about; "" is any.
type levels map[[2]string]State

func levelsOf(m *Mesh) levels {
	l := levels{}
	for _, f := range m.Findings {
		for _, key := range [][2]string{{f.At, ""}, {"", f.Cluster}, {f.At, f.Cluster}} {
			l[key] = max(l[key], levelOf(f))
		}
	}
	return l
}

func levelOf(f Finding) State {
	if f.Level == string(finding.Warning) {
		return Warning
	}
	return Error
}

func StateOf(m *Mesh) func(Link) State { return levelsOf(m).link }

// link returns the state of one direction: that of the findings about it. A finding about the silent pairs of several
// remotes names none of them; the counts do.
func (l levels) link(is Link) State {
	state := l[[2]string{is.At, is.From}]
	if is.Silent > 0 { // as finding.SilentPairs
		state = Error
	}
	if is.State == "unknown" {
		state = max(state, Unknown)
	}
	return state
}

func (l levels) cluster(c Cluster) State {
	state := l[[2]string{c.Name, ""}]
	if !c.Asked {
		state = max(state, Unknown)
	}
	return state
}

// boxes adds the clusters, and returns the index of each one's box. If there are too many, those that findings name and
// those that were asked have a box of their own, and the rest share one.
func (p *Picture) boxes(m *Mesh, levels levels) map[string]int {
	alone := map[string]bool{}
	byWeight := slices.Clone(m.Clusters)
	slices.SortStableFunc(byWeight, func(a, b Cluster) int {
		weight := func(c Cluster) int {
			w := 0
			if c.Asked {
				w = 1
			}
			return 2*int(max(levels[[2]string{c.Name, ""}], levels[[2]string{"", c.Name}])) + w
		}
		return weight(b) - weight(a)
	})
	own := byWeight
	if len(own) > maxClusters {
		own = own[:maxClusters-1]
	}
	for _, c := range own {
		alone[c.Name] = true
	}
	boxOf := map[string]int{}
	rest := Box{}
	var others []string
	for _, c := range m.Clusters {
		if !alone[c.Name] {
			others = append(others, c.Name)
			rest.State = max(rest.State, levels.cluster(c))
			continue
		}
		boxOf[c.Name] = len(p.Boxes)
		p.Boxes = append(p.Boxes, Box{Name: text(c.Name, maxName), Lines: clusterLines(c), State: levels.cluster(c)})
	}
	if len(others) > 0 {
		rest.Name = fmt.Sprintf("%d more clusters", len(others))
		for _, name := range others {
			boxOf[name] = len(p.Boxes)
		}
		p.Boxes = append(p.Boxes, rest)
	}
	return boxOf
}

func clusterLines(c Cluster) []string {
	if !c.Asked {
		return []string{"not asked"}
	}
	var lines []string
	if c.Nodes > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d nodes have an agent", c.Agents, c.Nodes))
	}
	if is := c.MultiCluster; is != nil {
		line := fmt.Sprintf("exports %d, imports %d", is.Exports, is.Imports)
		if is.Conflicts > 0 {
			line += fmt.Sprintf(", conflicts %d", is.Conflicts)
		}
		lines = append(lines, text(line, maxLineOfBox))
	}
	var versions []string
	for _, part := range c.Parts {
		if v := text(part.Version, maxName); v != "" && !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	if len(versions) > 0 {
		lines = append(lines, text(strings.Join(versions, ", "), maxName))
	}
	return lines
}

// edges adds an edge for each two boxes with a link in any direction.
func (p *Picture) edges(m *Mesh, levels levels, boxOf map[string]int) {
	type between struct {
		state          State
		talking, nodes int
		fresh, links   int
		bytes          uint64
	}
	all := map[[2]int]*between{}
	traffic := trafficOf(m)
	for _, l := range m.Links {
		at, hasAt := boxOf[l.At]
		from, hasFrom := boxOf[l.From]
		if !hasAt || !hasFrom || at == from {
			continue
		}
		key := [2]int{min(at, from), max(at, from)}
		b := cmp.Or(all[key], &between{})
		all[key] = b
		b.state = max(b.state, levels.link(l))
		b.talking, b.nodes = b.talking+l.Talking, b.nodes+l.Nodes
		for _, way := range [][2]string{{l.At, l.From}, {l.From, l.At}} {
			b.bytes += traffic[way]
			delete(traffic, way) // the other cluster's link has the same ways
		}
		if b.links++; l.State == "fresh" {
			b.fresh++
		}
	}
	for key, b := range all {
		e := Edge{A: key[0], B: key[1], State: b.state, Label: fmt.Sprintf("%d of %d fresh", b.fresh, b.links)}
		if b.nodes > 0 {
			e.Label += fmt.Sprintf(", tunnels %d/%d", b.talking, b.nodes)
		}
		if b.bytes > 0 {
			e.Label += ", " + perSecond(b.bytes)
		}
		p.Edges = append(p.Edges, e)
	}
	slices.SortFunc(p.Edges, func(x, y Edge) int { return cmp.Or(x.A-y.A, x.B-y.B) })
}

// trafficOf returns the bytes per second through the tunnels from each cluster to each other. Both ends count the same
// bytes and report them at different times, up to 30 s apart: the greater number counts.
func trafficOf(m *Mesh) map[[2]string]uint64 {
	traffic := map[[2]string]uint64{}
	for _, l := range m.Links {
		sent, received := [2]string{l.At, l.From}, [2]string{l.From, l.At}
		traffic[sent] = max(traffic[sent], l.SentPerSecond)
		traffic[received] = max(traffic[received], l.ReceivedPerSecond)
	}
	return traffic
}

// perSecond formats a number of bytes per second, as the broker's page does.
func perSecond(bytes uint64) string { return Bytes(bytes) + "/s" }

func Bytes(bytes uint64) string {
	n, units := float64(bytes), []string{"B", "kB", "MB", "GB"}
	i := 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	digits := 0
	if n < 10 && i > 0 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, n, units[i])
}

// linkText describes what one cluster imports from another in a line, with the numbers of semaphorectl status.
func linkText(l Link) string {
	words := []string{fmt.Sprintf("%s ← %s: %s", text(l.At, maxName), text(l.From, maxName), l.State)}
	if l.Age != "" {
		words[0] += " " + l.Age
	}
	if l.Nodes > 0 {
		tunnels := fmt.Sprintf("tunnels %d/%d", l.Talking, l.Nodes)
		if l.Handshake != "" {
			tunnels += ", last handshake " + l.Handshake + " ago"
		}
		if l.Silent > 0 {
			tunnels += fmt.Sprintf(", %d silent", l.Silent)
		}
		words = append(words, tunnels)
	}
	if l.Lag != "" {
		words = append(words, "lag "+l.Lag)
	}
	for _, kind := range kindsShown {
		if n := l.Kinds[semaphorev1.KindName(kind.kind)]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, kind.word))
		}
	}
	if l.Exports > 0 {
		words = append(words, fmt.Sprintf("%d exports", l.Exports))
	}
	if l.Refused > 0 {
		words = append(words, fmt.Sprintf("%d refused", l.Refused))
	}
	if l.Retained > 0 {
		words = append(words, fmt.Sprintf("%d retained", l.Retained))
	}
	if l.SentPerSecond > 0 || l.ReceivedPerSecond > 0 {
		words = append(words, fmt.Sprintf("sent %s, received %s", perSecond(l.SentPerSecond), perSecond(l.ReceivedPerSecond)))
	}
	return strings.Join(words, "; ")
}

// trafficText describes the traffic of a cluster's nodes with the remote endpoints of a Service.
func trafficText(t Traffic) string {
	return fmt.Sprintf("%s → service %s: sent %s, received %s; %d connections", text(t.At, maxName),
		text(t.Service, 2*maxName), perSecond(t.SentPerSecond), perSecond(t.ReceivedPerSecond), t.Connections)
}

// kindsShown are those that semaphorectl status has columns for.
var kindsShown = []struct {
	kind semaphorev1.Kind
	word string
}{
	{semaphorev1.Kind_KIND_NODE, "nodes"}, {semaphorev1.Kind_KIND_SERVICE, "services"},
	{semaphorev1.Kind_KIND_ENDPOINT_SLICE, "slices"}, {semaphorev1.Kind_KIND_SET_MEMBER, "set pods"},
}

func findingText(f Finding) string {
	at := ""
	if f.At != "mesh" {
		at = text(f.At, maxName) + ": "
	}
	says := f.Meaning
	if len(f.First) > 0 {
		says = f.First[0]
	}
	line := fmt.Sprintf("%s%s: %s", at, f.Code, says)
	if f.Count > 1 {
		line += fmt.Sprintf(" (%d)", f.Count)
	}
	return line
}

// text is printable and has at most so many characters.
func text(s string, most int) string { return finding.Cut(finding.Clean(s), most) }
