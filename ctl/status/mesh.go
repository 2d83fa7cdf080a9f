package status

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// fewAgents is how many agents are asked while their broker does not answer.
const fewAgents = 3

func factsOf(ctx context.Context, c *fleet.Cluster, timeout time.Duration) mesh.Facts {
	facts := mesh.Facts{Context: c.Context, Server: c.Config.Host, Unreached: map[string]string{}}
	parts := []string{fleet.Broker, fleet.Exporter}
	found, failed := fleet.All(parts, func(part string) (*semaphorev1.GetStatusResponse, error) {
		return c.Status(ctx, part, "", timeout)
	})
	var silent error
	for i, err := range failed {
		if found[i] != nil { // with an error, it is a standby
			facts.Parts = append(facts.Parts, found[i])
		}
		switch {
		case err == nil:
			continue
		case fleet.Silent(err):
			silent = err
		}
		facts.Unreached[parts[i]] = err.Error()
	}
	if silent != nil && len(facts.Parts) == 0 { // the apiserver was asked: one finding, and no second wait
		facts.Unreached = map[string]string{"": silent.Error()}
		return facts
	}
	if facts.Unreached[fleet.Broker] != "" {
		withoutBroker(ctx, c, &facts, timeout)
	}
	return facts
}

// withoutBroker adds the facts of agents and of the apiserver.
func withoutBroker(ctx context.Context, c *fleet.Cluster, facts *mesh.Facts, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	var err error
	if facts.Notes, err = brokerPods(ctx, c); err != nil {
		if facts.Unreached[fleet.Exporter] != "" { // nothing answers: one finding, not three
			facts.Unreached = map[string]string{"": err.Error()}
		}
		return
	}
	remotes, err := c.Objects.RemoteClusters(ctx)
	if err != nil {
		facts.Notes = append(facts.Notes, err.Error())
	}
	for _, r := range remotes {
		one := mesh.Remote{Name: r.Name}
		if r.Status.LastHeard != nil {
			one.LastHeard = r.Status.LastHeard.UTC()
		}
		facts.Remotes = append(facts.Remotes, one)
	}
	pods, err := c.Pods(ctx, fleet.Agent, "")
	if err != nil {
		facts.Notes = append(facts.Notes, err.Error())
		return
	}
	answers, _ := fleet.All(pods[:min(len(pods), fewAgents)],
		func(p *fleet.Pod) (*semaphorev1.GetStatusResponse, error) {
			return c.Status(ctx, fleet.Agent, p.Node, timeout)
		})
	for _, s := range answers {
		if s != nil {
			facts.Parts = append(facts.Parts, s)
		}
	}
	facts.Notes = append(facts.Notes, fmt.Sprintf("the leading broker does not answer; %d of %d agents were asked instead",
		len(answers), len(pods)))
}

// brokerPods returns a line with the number of the broker's pods, and one for each of the first three: its phase, and
// what its containers wait for.
func brokerPods(ctx context.Context, c *fleet.Cluster) ([]string, error) {
	pods, err := c.PodObjects(ctx, fleet.Broker, "")
	if err != nil {
		return nil, err
	}
	notes := []string{fmt.Sprintf("the apiserver has %d pods of the broker", len(pods))}
	for _, pod := range pods[:min(len(pods), 3)] {
		line := fmt.Sprintf("pod %s: %s", pod.Name, pod.Status.Phase)
		for _, s := range pod.Status.ContainerStatuses {
			if s.State.Waiting != nil && s.State.Waiting.Reason != "" {
				line += ", " + s.State.Waiting.Reason
			}
		}
		notes = append(notes, line)
	}
	return notes, nil
}

// gather asks the parts of all selected clusters concurrently, and joins their answers. If a broker does not answer, it
// asks a few of its agents, and the apiserver.
func gather(ctx context.Context, access *fleet.Access, timeout time.Duration) ([]mesh.Facts, *mesh.Mesh, error) {
	clusters, err := access.Clusters()
	if err != nil {
		return nil, nil, err
	}
	facts, _ := fleet.All(clusters, func(c *fleet.Cluster) (mesh.Facts, error) { return factsOf(ctx, c, timeout), nil })
	return facts, mesh.Join(facts), ctx.Err()
}

// meshStatus prints one verdict about all selected clusters.
func meshStatus(ctx context.Context, w io.Writer, access *fleet.Access, output string, timeout time.Duration) error {
	facts, m, err := gather(ctx, access, timeout)
	if err != nil {
		return err
	}
	if err := printMesh(w, m, output); err != nil {
		return err
	}
	if output == "wide" {
		for _, f := range facts {
			for _, s := range f.Parts {
				fmt.Fprintln(w)
				if err := statusTable(w, s); err != nil {
					return err
				}
			}
		}
	}
	return Exit(facts, m)
}

// watchMesh asks each cluster again and again, and prints the verdict whenever it changes, until ctx ends. A cluster
// that does not answer delays only its own facts. On a terminal each verdict replaces the last one.
func watchMesh(ctx context.Context, w io.Writer, access *fleet.Access, output string, timeout,
	every time.Duration) error {
	clusters, err := access.Clusters()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var mu sync.Mutex
	all := make([]mesh.Facts, len(clusters))
	var asking, first sync.WaitGroup
	defer asking.Wait()
	defer stop()
	for i, c := range clusters {
		all[i] = mesh.Facts{Context: c.Context, Unreached: map[string]string{"": "no answer yet"}}
		first.Add(1)
		asking.Go(func() {
			answered := sync.OnceFunc(first.Done)
			defer answered()
			for ctx.Err() == nil {
				facts := factsOf(ctx, c, timeout)
				mu.Lock()
				all[i] = facts
				mu.Unlock()
				answered()
				_ = kube.Sleep(ctx, every)
			}
		})
	}
	// The first verdict waits for all clusters, but not for long.
	early, answered := context.WithTimeout(ctx, every)
	asking.Go(func() {
		first.Wait()
		answered()
	})
	<-early.Done()
	last := ""
	for ; ctx.Err() == nil; _ = kube.Sleep(ctx, every) {
		mu.Lock()
		m := mesh.Join(slices.Clone(all))
		mu.Unlock()
		var text bytes.Buffer
		if err := printMesh(&text, m, output); err != nil {
			return err
		}
		if text.String() == last {
			continue
		}
		if !show.Clear(w) && last != "" {
			fmt.Fprintln(w, map[string]string{"yaml": "---"}[output])
		}
		if err := show.PrintLines(w, text.String()); err != nil {
			return err
		}
		last = text.String()
	}
	return nil
}

// printMesh prints the mesh as a table, as a document, or as a picture.
func printMesh(w io.Writer, m *mesh.Mesh, output string) error {
	if slices.Contains(pictures, output) {
		return draw(w, m, output)
	}
	if output == "json" || output == "yaml" {
		return show.PrintValue(w, m, output)
	}
	most := show.LineWidth
	if output == "wide" {
		most = 1 << 20
	}
	colour := show.Green
	if !m.Well {
		colour = show.Red
	}
	for i, line := range finding.Wrap(m.Verdict, "  ", most) {
		if line = show.Printable(line); i == 0 {
			line = show.Paint(w, colour, line)
		}
		fmt.Fprintln(w, line)
	}
	return show.PrintLines(w, meshText(m, most, output == "wide"))
}

func meshText(m *mesh.Mesh, most int, wide bool) string {
	var out strings.Builder
	show.Table(&out, partRows(m), most)
	if len(m.Links) > 0 {
		out.WriteByte('\n')
		show.Table(&out, linkRows(m), most)
	}
	for _, rows := range [][][]string{importRows(m), ownNameRows(m)} {
		if len(rows) > 1 {
			out.WriteByte('\n')
			show.Table(&out, rows, most)
		}
	}
	if m.MoreOwnNames > 0 {
		fmt.Fprintf(&out, "and %d more\n", m.MoreOwnNames)
	}
	if len(m.Pairs) > 0 {
		shown := m.Pairs
		if !wide {
			shown = shown[:min(len(shown), 10)]
		}
		rows := [][]string{{"AT", "NODE", "DOES NOT HEAR", "FOR", "REASON"}}
		for _, p := range shown {
			rows = append(rows, []string{p.At, p.Node, p.Remote, p.For, p.Reason})
		}
		out.WriteByte('\n')
		show.Table(&out, rows, most)
		if more := len(m.Pairs) - len(shown); more > 0 {
			fmt.Fprintf(&out, "and %d more\n", more)
		}
	}
	if len(m.Findings) > 0 {
		out.WriteString("\nFINDINGS\n")
		Findings(&out, m, most)
	}
	if len(m.Notes) > 0 {
		out.WriteString("\nNOTES\n")
		for _, note := range m.Notes {
			for _, line := range finding.Wrap("  "+note, "    ", most) {
				out.WriteString(line + "\n")
			}
		}
	}
	return "\n" + out.String()
}

func partRows(m *mesh.Mesh) [][]string {
	rows := [][]string{{"CLUSTER", "PART", "VERSION", "UP", "STATE", "LEADER"}}
	for _, c := range m.Clusters {
		for _, p := range c.Parts {
			part := p.Part
			if p.Node != "" {
				part += " on " + p.Node
			}
			rows = append(rows, []string{c.Name, part, cmp.Or(p.Version, "-"), cmp.Or(p.Up, "-"), p.State,
				cmp.Or(p.Leader, "-")})
		}
	}
	for _, c := range m.Clusters {
		if len(c.Parts) == 0 {
			rows = append(rows, []string{c.Name, "-", "-", "-", "not asked: no context", "-"})
		}
	}
	return rows
}

// importRows has a row for each cluster with the Multi-Cluster Services API.
func importRows(m *mesh.Mesh) [][]string {
	rows := [][]string{{"AT", "OWN EXPORTS", "EXPORTS OF OTHERS", "IMPORTS", "CONFLICTS"}}
	for _, c := range m.Clusters {
		if c.MultiCluster == nil {
			continue
		}
		var others uint64
		for _, l := range m.Links {
			if l.At == c.Name && l.From != c.Name {
				others += l.Exports
			}
		}
		rows = append(rows, []string{c.Name, fmt.Sprint(c.MultiCluster.Exports), fmt.Sprint(others),
			fmt.Sprint(c.MultiCluster.Imports), fmt.Sprint(c.MultiCluster.Conflicts)})
	}
	return rows
}

// ownNameRows has a row for each Service whose own name leads to other clusters.
func ownNameRows(m *mesh.Mesh) [][]string {
	rows := [][]string{{"AT", "OWN NAME OF", "USE", "LEADS TO", "READY HERE", "ENOUGH"}}
	for _, o := range m.OwnNames {
		rows = append(rows, []string{o.At, o.Service, o.Use, strings.Join(o.Clusters, ", "),
			fmt.Sprintf("%d of %d", o.Ready, o.All), o.Enough})
	}
	return rows
}

func linkRows(m *mesh.Mesh) [][]string {
	rows := [][]string{{"AT", "FROM", "STATE", "AGE", "LAG", "NODES", "SERVICES", "SLICES", "SET PODS", "REFUSED",
		"RETAINED", "TUNNELS"}}
	for _, l := range m.Links {
		tunnels := "-"
		if l.Nodes > 0 {
			tunnels = fmt.Sprintf("%d/%d", l.Talking, l.Nodes)
		}
		count := func(kind semaphorev1.Kind) string {
			if l.Kinds == nil {
				return "-"
			}
			return fmt.Sprint(l.Kinds[semaphorev1.KindName(kind)])
		}
		rows = append(rows, []string{l.At, l.From, strings.ToUpper(l.State), cmp.Or(l.Age, "-"), cmp.Or(l.Lag, "-"),
			count(semaphorev1.Kind_KIND_NODE), count(semaphorev1.Kind_KIND_SERVICE),
			count(semaphorev1.Kind_KIND_ENDPOINT_SLICE), count(semaphorev1.Kind_KIND_SET_MEMBER),
			fmt.Sprint(l.Refused), fmt.Sprint(l.Retained), tunnels})
	}
	return rows
}

// Findings prints each finding with its evidence, who can act, and a command.
func Findings(out *strings.Builder, m *mesh.Mesh, most int) {
	for _, f := range m.Findings {
		is := &semaphorev1.Finding{Code: f.Code, Level: semaphorev1.LevelOf(f.Level), Meaning: f.Meaning,
			Side: semaphorev1.SideOf(f.Side), Command: f.Command, Cluster: f.Cluster, Count: f.Count, First: f.First}
		where := strings.TrimSpace(f.Part + " of " + f.At)
		if f.At == "mesh" {
			where = ""
		}
		for _, line := range show.FindingLines(is, where) {
			for _, part := range finding.Wrap(line, "             ", most) {
				out.WriteString(part + "\n")
			}
		}
	}
}
