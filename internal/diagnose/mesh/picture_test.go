package mesh_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

var update = flag.Bool("update", false, "write testdata/*, to be looked at and committed")

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// broker returns a healthy broker with streams and tunnels to others.
func broker(cluster string, with ...string) *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{Part: "broker", Cluster: cluster, SoftwareVersion: "v1.2.3", Ready: true,
		StartedAt: before(time.Hour), Now: timestamppb.New(noon)}
	for i := range 3 {
		s.Nodes = append(s.Nodes, &semaphorev1.NodeStatus{Node: fmt.Sprintf("n%d", i), Attached: true})
	}
	for _, other := range with {
		s.Links = append(s.Links, &semaphorev1.LinkStatus{Cluster: other, Connected: true, Since: before(time.Hour),
			LastHeard: before(2 * time.Second), Kinds: []*semaphorev1.KindStatus{
				{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 17, Complete: true, LastHeard: before(2 * time.Second),
					MedianPropagation: durationpb.New(12 * time.Millisecond)}}})
		s.Tunnels = append(s.Tunnels, &semaphorev1.TunnelsStatus{Cluster: other, Nodes: 3, NodesTalking: 3,
			LastHandshake: before(41 * time.Second)})
	}
	return s
}

func join(parts ...*semaphorev1.GetStatusResponse) *mesh.Mesh {
	var facts []mesh.Facts
	for _, s := range parts {
		if len(s.GetFindings()) == 0 {
			finding.Judge(s)
		}
		facts = append(facts, mesh.Facts{Context: s.GetCluster(), Parts: []*semaphorev1.GetStatusResponse{s}})
	}
	return mesh.Join(facts)
}

func formats(p *mesh.Picture) map[string]string {
	return map[string]string{"svg": p.SVG(), "dot": p.DOT(), "mmd": p.Mermaid()}
}

func full() []*semaphorev1.GetStatusResponse {
	cut := broker("c1", "c2", "c3")
	cut.Tunnels[0].NodesTalking, cut.Tunnels[0].NodesSilent = 1, 2
	cut.SilentPairs = []*semaphorev1.SilentPair{{Node: "n1", Cluster: "c2", RemoteNode: "m2", Since: before(time.Minute),
		Reason: "no answer to handshakes; endpoint 192.0.2.7:51820"}}
	cut.SilentPairsTotal = 1
	stale := broker("c2", "c1", "c3")
	stale.Links[1].LastHeard, stale.Links[1].Connected = before(time.Hour), false
	return []*semaphorev1.GetStatusResponse{cut, stale, broker("c3", "c1", "c2")}
}

// carrying adds the traffic of a broker's tunnels to its status, in bytes per second.
func carrying(s *semaphorev1.GetStatusResponse, sent, received uint64) *semaphorev1.GetStatusResponse {
	for _, t := range s.Tunnels {
		t.SentPerSecond, t.ReceivedPerSecond = sent, received
	}
	return s
}

// importing adds the exports of the own cluster and of c2 to the status of a broker, which imports all and finds one
// conflict if there are any.
func importing(s *semaphorev1.GetStatusResponse, own, others uint64) *semaphorev1.GetStatusResponse {
	s.MultiCluster = &semaphorev1.MultiClusterStatus{Imports: own + others, Conflicts: min(1, own)}
	if own+others > 0 {
		s.MultiCluster.Exports = []*semaphorev1.ClusterExports{{Cluster: s.GetCluster(), Services: own},
			{Cluster: "c2", Services: others}}
	}
	return s
}

// serving adds Services with traffic to a broker's status: a number in it, of so many in total.
func serving(s *semaphorev1.GetStatusResponse, in, total int) *semaphorev1.GetStatusResponse {
	for i := range in {
		rate := uint64(len(s.GetLinks())*1_000_000) >> i
		s.ServiceTraffic = append(s.ServiceTraffic, &semaphorev1.ServiceTrafficStatus{Namespace: "semaphore",
			Service: fmt.Sprintf("%s-s%d", s.GetLinks()[0].GetCluster(), i), SentBytes: 10 * rate, ReceivedBytes: 20 * rate,
			Connections: uint64(i + 1), SentPerSecond: rate, ReceivedPerSecond: 2 * rate})
	}
	s.ServiceTrafficTotal = uint32(total)
	return s
}

// TestTrafficOfServices: the busiest Services of all clusters have a line, the busiest first, and the rest is a number.
func TestTrafficOfServices(t *testing.T) {
	p := mesh.PictureOf(join(serving(broker("c1", "c2", "c3"), 12, 40), serving(broker("c2", "c1"), 2, 2)))
	var lines []string
	for _, l := range p.Traffic.Lines {
		lines = append(lines, l.Text)
	}
	want := []string{"c1 → service semaphore/c2-s0: sent 2.0 MB/s, received 4.0 MB/s; 1 connections",
		"c1 → service semaphore/c2-s1: sent 1.0 MB/s, received 2.0 MB/s; 2 connections",
		"c2 → service semaphore/c1-s0: sent 1.0 MB/s, received 2.0 MB/s; 1 connections"}
	if len(lines) != 10 || strings.Join(lines[:3], "\n") != strings.Join(want, "\n") || p.Traffic.More != 32 {
		t.Errorf("%d lines and %d more:\n%s\nwant 10 and 32, the first three:\n%s", len(lines), p.Traffic.More,
			strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	for format, out := range formats(p) {
		if !strings.Contains(out, "semaphore/c2-s0: sent 2.0 MB/s") ||
			!strings.Contains(out, "and 32 more services with traffic") {
			t.Errorf("%s lacks the traffic:\n%s", format, out)
		}
	}
}

// TestFormats: each format shows the clusters, links, tunnels and findings of the mesh. A person has checked the files.
func TestFormats(t *testing.T) {
	for name, m := range map[string]*mesh.Mesh{
		"well":    join(broker("c1", "c2"), broker("c2", "c1")),
		"wrong":   join(full()...),
		"hub":     join(broker("c1", "c2", "c3", "c4", "c5")),
		"one":     join(broker("c1")),
		"imports": join(importing(broker("c1", "c2"), 2, 4), importing(broker("c2", "c1"), 0, 0)),
		"traffic": join(carrying(serving(broker("c1", "c2", "c3"), 2, 3), 1_234_567, 800),
			carrying(serving(broker("c2", "c1"), 1, 1), 950, 1_200_000)),
	} {
		for format, got := range formats(mesh.PictureOf(m)) {
			file := filepath.Join("testdata", name+"."+format)
			if *update {
				testkit.Must(t, os.WriteFile(file, []byte(got), 0o644))
			}
			if string(testkit.Value(os.ReadFile(file))(t)) != got {
				t.Errorf("%s differs (-update writes it):\n%s", file, got)
			}
		}
	}
}

// TestTraffic: an edge shows the bytes in both directions. Both ends count the same bytes, and each reports its own
// number.
func TestTraffic(t *testing.T) {
	edges := func(m *mesh.Mesh) (labels []string) {
		for _, e := range mesh.PictureOf(m).Edges {
			labels = append(labels, e.Label)
		}
		return labels
	}
	for _, c := range []struct {
		name string
		mesh *mesh.Mesh
		want string
	}{
		{"none", join(broker("c1", "c2"), broker("c2", "c1")), "2 of 2 fresh, tunnels 6/6"},
		{"one end was asked", join(carrying(broker("c1", "c2"), 1_500_000, 500_000)), "1 of 1 fresh, tunnels 3/3, 2.0 MB/s"},
		{"both ends", join(carrying(broker("c1", "c2"), 1_000, 100), carrying(broker("c2", "c1"), 90, 1_100)),
			"2 of 2 fresh, tunnels 6/6, 1.2 kB/s"}, // 1100 in one direction, 100 in the other
		{"bytes", join(carrying(broker("c1", "c2"), 0, 7)), "1 of 1 fresh, tunnels 3/3, 7 B/s"},
		{"much", join(carrying(broker("c1", "c2"), 25_000_000_000_000, 0)), "1 of 1 fresh, tunnels 3/3, 25000 GB/s"},
	} {
		if got := edges(c.mesh); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %q; want %q", c.name, got, c.want)
		}
	}
	three := edges(join(carrying(broker("c1", "c2", "c3"), 1_000_000, 0), carrying(broker("c3", "c2"), 2_000, 0)))
	if len(three) != 3 || !strings.HasSuffix(three[0], ", 1.0 MB/s") || !strings.HasSuffix(three[1], ", 1.0 MB/s") ||
		!strings.HasSuffix(three[2], ", 2.0 kB/s") {
		t.Errorf("of three clusters: %q", three)
	}
	if line := mesh.PictureOf(join(carrying(broker("c1", "c2"), 999, 12_345))).Links.Lines[0].Text; !strings.Contains(line,
		"; 17 services; sent 999 B/s, received 12 kB/s") {
		t.Error(line)
	}
	// Clusters that share a box share the edge.
	var all []string
	for i := range 60 {
		all = append(all, fmt.Sprintf("c%02d", i+1))
	}
	p := mesh.PictureOf(join(carrying(broker("c00", all...), 1_000, 0)))
	last := p.Edges[len(p.Edges)-1].Label
	if shared := fmt.Sprintf(", %d kB/s", 61-(len(p.Boxes)-1)); !strings.HasSuffix(last, shared) {
		t.Errorf("of those that share a box: %q; want %q", last, shared)
	}
}

// TestStates: a connection is drawn according to the findings about it, in both directions.
func TestStates(t *testing.T) {
	p := mesh.PictureOf(join(full()...))
	got := map[string]mesh.State{}
	for _, e := range p.Edges {
		got[p.Boxes[e.A].Name+"-"+p.Boxes[e.B].Name] = e.State
	}
	want := map[string]mesh.State{"c1-c2": mesh.Error, "c1-c3": mesh.Well, "c2-c3": mesh.Error}
	for key, state := range want {
		if got[key] != state {
			t.Errorf("%s is drawn %s; want %s", key, got[key], state)
		}
	}
	for _, l := range mesh.PictureOf(join(broker("c1", "c2"))).Links.Lines {
		if l.State != mesh.Well || !strings.Contains(l.Text, "last handshake 41s ago") {
			t.Errorf("%s: %s", l.State, l.Text)
		}
	}
	// A finding about pairs of two remotes names neither of them.
	two := broker("c1", "c2", "c3", "c4")
	for i := range 2 {
		two.Tunnels[i].NodesSilent = 1
		two.SilentPairs = append(two.SilentPairs, &semaphorev1.SilentPair{Node: "n1", Cluster: two.Tunnels[i].Cluster,
			RemoteNode: "m1", Since: before(time.Minute)})
	}
	two.SilentPairsTotal = 2
	for _, l := range mesh.PictureOf(join(two)).Links.Lines {
		if silent := !strings.Contains(l.Text, "c4"); silent != (l.State == mesh.Error) {
			t.Errorf("%s: %s", l.State, l.Text)
		}
	}
	lone := mesh.PictureOf(join(broker("c1", "c2")))
	if lone.Boxes[1].State != mesh.Unknown {
		t.Errorf("a cluster that nobody asked is drawn %s", lone.Boxes[1].State)
	}
}

// hostile contains what ends or begins something in one of the formats.
const hostile = "x\"]; click c0 \"javascript:alert(1)\"\n%%{init: {}}%%</text></svg><script>alert(1)</script>&lt;img " +
	"onerror=x&gt;" +
	"\\\" ; evil [URL=\"http://x\"] \\N \x1b[2J\u202e`#lt;script#gt;`|]]>"

// TestHostile: the name of another cluster cannot leave its place in any format.
func TestHostile(t *testing.T) {
	s := broker(hostile, hostile+"2")
	s.SoftwareVersion = hostile
	s.Findings = []*semaphorev1.Finding{{Code: hostile, Level: 99, Cluster: hostile + "2", Meaning: hostile, Count: 9,
		First: []string{hostile}, Command: hostile}}
	s.OwnNames = []*semaphorev1.OwnNameStatus{{Namespace: hostile, Service: hostile, Use: hostile, Enough: hostile,
		Clusters: []string{hostile}}}
	s.ServiceTraffic = []*semaphorev1.ServiceTrafficStatus{{Namespace: hostile, Service: hostile, SentPerSecond: 1 << 63}}
	all := formats(mesh.PictureOf(join(s)))
	for format, out := range all {
		if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("%s has unprintable characters: %q", format, out)
		}
	}
	checkSVG(t, all["svg"])
	// Everything outside of quoted strings belongs to the format itself.
	quoted := regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	rest := quoted.ReplaceAllString(all["dot"], `Q`)
	ownDOT := regexp.MustCompile(`^(graph mesh \{|\}|\s+layout=circo|\s+overlap=false|\s+labelloc=t|\s+label=Q|` +
		`\s+node \[shape=box style=rounded fontname=Q\]|\s+edge \[fontname=Q fontsize=10\]|\s+c\d+ \[label=Q color=Q\]|` +
		`\s+c\d+ -- c\d+ \[label=Q color=Q style=Q\])$`)
	for line := range strings.Lines(rest) {
		if !ownDOT.MatchString(strings.TrimRight(line, "\n")) {
			t.Errorf("DOT has a line that no picture has: %q", line)
		}
	}
	rest = regexp.MustCompile(`"[^"]*"`).ReplaceAllStringFunc(all["mmd"], func(label string) string {
		inner := strings.ReplaceAll(strings.Trim(label, `"`), "<br/>", "")
		if strings.ContainsAny(inner, "<>`|[]{}%\\&") || regexp.MustCompile(`#(lt|gt|60|62);`).MatchString(inner) {
			t.Errorf("a label of Mermaid: %s", label)
		}
		return "Q"
	})
	ownMermaid := regexp.MustCompile(`^(flowchart LR|  verdict\[Q\]|  c\d+\[Q\]:::\w+|  c\d+ ---\|Q\| c\d+|` +
		`  linkStyle \d+ stroke:#\w+,stroke-width:3px(,stroke-dasharray:8 5)?|  classDef \w+ stroke:#\w+,stroke-width:2px)$`)
	for line := range strings.Lines(rest) {
		if !ownMermaid.MatchString(strings.TrimRight(line, "\n")) {
			t.Errorf("Mermaid has a line that no picture has: %q", line)
		}
	}
}

// checkSVG checks that the text is XML with the elements and attributes of a picture only: no script, no link, no event
// handler.
func checkSVG(t *testing.T, svg string) {
	t.Helper()
	elements := map[string]bool{"svg": true, "title": true, "desc": true, "style": true, "rect": true, "text": true,
		"path": true}
	attributes := map[string]bool{"xmlns": true, "viewBox": true, "width": true, "height": true, "role": true,
		"aria-labelledby": true, "id": true, "class": true, "x": true, "y": true, "rx": true, "d": true, "text-anchor": true}
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("no XML: %v", err)
		}
		if start, ok := token.(xml.StartElement); ok {
			if !elements[start.Name.Local] {
				t.Errorf("an element %s", start.Name.Local)
			}
			for _, a := range start.Attr {
				if !attributes[a.Name.Local] || a.Name.Local == "class" && strings.Contains(a.Value, "script") {
					t.Errorf("an attribute %s=%q", a.Name.Local, a.Value)
				}
			}
		}
	}
}

// TestOfMany: for 100 clusters that are all linked, with hostile names and 10,000 findings, each format stays small,
// and shows the cluster with an error.
func TestOfMany(t *testing.T) {
	name := func(i int) string { return fmt.Sprintf("c%02d-%s", i, strings.Repeat("n", 500)) }
	var parts []*semaphorev1.GetStatusResponse
	for i := range 100 {
		var others []string
		for j := range 100 {
			if j != i {
				others = append(others, name(j))
			}
		}
		s := broker(name(i), others...)
		serving(s, 100, 1<<30)
		for range 100 {
			level := semaphorev1.Level_LEVEL_WARNING
			if i == 77 {
				level = semaphorev1.Level_LEVEL_ERROR
			}
			s.Findings = append(s.Findings, &semaphorev1.Finding{Code: "Stale", Level: level, Meaning: strings.Repeat("m", 1000),
				Count: 1 << 40, First: []string{strings.Repeat("f", 1000)}, Cluster: others[0]})
		}
		parts = append(parts, s)
	}
	p := mesh.PictureOf(join(parts...))
	if len(p.Boxes) != 24 || p.Boxes[23].Name != "77 more clusters" || p.Links.More != 9900-40 || p.Findings.More != 9990 {
		t.Errorf("%d boxes, the last %q; %d more links, %d more findings", len(p.Boxes), p.Boxes[len(p.Boxes)-1].Name,
			p.Links.More, p.Findings.More)
	}
	for format, out := range formats(p) {
		if len(out) > 128<<10 {
			t.Errorf("%s has %d bytes", format, len(out))
		}
		if !strings.Contains(out, "c77-") {
			t.Errorf("%s does not show the cluster with the error", format)
		}
	}
	checkSVG(t, p.SVG())
}
