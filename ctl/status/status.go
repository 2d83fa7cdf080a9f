package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type viewed struct {
	target         fleet.Target
	output         *show.Outputs
	timeout, every time.Duration
	watch          bool
	page           page
}

func Command(access *fleet.Access) *cobra.Command {
	v := viewed{target: fleet.Target{Access: access, Parts: []string{fleet.Exporter, fleet.Broker, fleet.Agent}}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "one verdict for the mesh, or for a cluster or a part, and what is wrong; as a picture, too",
		Long: `Prints one verdict first, for all clusters that --context names, or the current one: which remotes are fresh,
and what is wrong. Then follow the parts with their versions and leaders, what each cluster has of each other with its
age and lag, the pairs of nodes that do not talk, and each finding with its code, its evidence, who can act, and one
command. docs/findings.md has all codes.

Where a broker does not answer, a few of its agents and the apiserver are asked. Where a whole cluster does not
answer, the others say what they know of it.

The tables have 100 columns; -o wide shows names in full, and each part with all that it says. In a part's container,
or with --agent, --part, --socket or --address, it prints what one part says.

  semaphorectl status --context c1,c2
  semaphorectl status --context c1,c2 --watch
  semaphorectl status --context c1 -o json
  semaphorectl status --context c1 --agent node-7

-o svg, dot or mermaid draws the mesh: a box for each cluster, a line for what two clusters take of each other,
coloured and dashed by the worst finding about it, with the bytes a second through the tunnels. SVG is for a browser and
has colours for light and dark; DOT is for Graphviz, Mermaid for Markdown. A picture has at most 24 boxes, 40 links,
10 Services and 10 findings: beyond, clusters without findings share a box. No format runs or loads anything.

  semaphorectl status --context c1,c2 -o svg > mesh.svg
  semaphorectl status -o dot | dot -Tpng > mesh.png

--web forwards a port of 127.0.0.1 to the page that the leading broker of a cluster serves, with the same picture live,
prints the page's URL, and keeps the port-forward open until Ctrl-C. The page is off by default: listen.dashboard in the
broker's configuration turns it on (docs/picture.md). It needs the rights of "kubectl port-forward" in the namespace of
the parts.

  semaphorectl status --context c1 --web --open

Exit code 0 when all is well, or after Ctrl-C; 1 when nothing can be asked, or the page cannot be reached; 2 when
something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.target.Flags(cmd)
	v.output = show.OutputFlag(cmd, append([]string{"table", "wide", "json", "yaml"}, pictures...)...)
	show.TimeoutFlag(cmd, &v.timeout, 5*time.Second)
	cmd.Flags().BoolVarP(&v.watch, "watch", "w", false, "print again whenever something changes, until Ctrl-C")
	cmd.Flags().DurationVar(&v.every, "every", 2*time.Second, "with --watch: `time` between two questions")
	v.page.flags(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("web", "watch")
	cmd.MarkFlagsMutuallyExclusive("web", "output")
	return cmd
}

func (v *viewed) run(cmd *cobra.Command) error {
	for _, name := range []string{"port", "open"} {
		if cmd.Flags().Changed(name) && !v.page.web {
			return fmt.Errorf("--%s: it is for --web", name)
		}
	}
	ctx, w, t, access, format := cmd.Context(), cmd.OutOrStdout(), &v.target, v.target.Access, v.output.Chosen
	onePart := len(t.Nodes)+len(t.Sockets) > 0 || t.Address != "" || t.Part != "" ||
		fleet.InContainer() && !access.Given()
	picture := slices.Contains(pictures, format)
	switch {
	case v.every <= 0:
		return fmt.Errorf("--every %s: use more than 0s", v.every)
	case onePart && (v.watch || v.page.web || picture):
		return errors.New("--watch, --web and pictures are for clusters: without --agent, --part, --socket and --address")
	case v.page.web:
		c, err := access.Cluster()
		if err != nil {
			return err
		}
		return v.page.show(ctx, w, c)
	case picture && v.watch:
		return fmt.Errorf("--output %s: without --watch; --web has a live picture", format)
	case v.watch:
		return watchMesh(ctx, w, access, format, v.timeout, v.every)
	case !onePart:
		return meshStatus(ctx, w, access, format, v.timeout)
	}
	parts, unreached := t.Dial(ctx)
	if len(parts) == 0 {
		return unreached
	}
	return status(ctx, w, parts, unreached, format, v.timeout)
}

// status asks the parts concurrently, and prints their answers. A part that does not answer does not delay the others.
func status(ctx context.Context, w io.Writer, parts []*fleet.Part, unreached error, output string,
	timeout time.Duration) error {
	answers, failed := fleet.All(parts, func(p *fleet.Part) (*semaphorev1.GetStatusResponse, error) {
		return p.Status(ctx, timeout)
	})
	var unreachable, wrong []string
	if unreached != nil {
		unreachable = append(unreachable, unreached.Error())
	}
	var answered []*semaphorev1.GetStatusResponse
	for i, p := range parts {
		s := answers[i]
		if failed[i] != nil {
			unreachable = append(unreachable, fmt.Sprintf("%s cannot be asked: %v", p.Where, failed[i]))
			continue
		}
		answered = append(answered, s)
		who := s.GetPart()
		if p.Context != "" {
			who = p.Context + ": " + who
		}
		for _, v := range finding.Wrong(s) {
			wrong = append(wrong, show.Printable(who+": "+v))
		}
	}
	for i, s := range answered {
		if i > 0 {
			io.WriteString(w, map[string]string{"table": "\n", "wide": "\n", "yaml": "---\n"}[output])
		}
		if err := printStatus(w, s, output); err != nil {
			return err
		}
	}
	if len(unreachable) > 0 {
		return errors.New(strings.Join(unreachable, "; "))
	}
	if len(wrong) > 0 {
		return program.ExitError{Code: show.ExitWrong, Err: errors.New(strings.Join(wrong, "; "))}
	}
	return nil
}

func printStatus(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	if output == "table" || output == "wide" {
		return statusTable(w, s)
	}
	return show.PrintMessage(w, s, output)
}

func statusTable(w io.Writer, s *semaphorev1.GetStatusResponse) error {
	who := s.GetPart() + " of " + s.GetCluster()
	if s.GetNode() != "" {
		who += " on node " + s.GetNode()
	}
	colour := show.Green
	if len(s.GetFindings()) > 0 {
		colour = show.Red
	}
	fmt.Fprintln(w, show.Paint(w, colour, show.Printable(who+": "+finding.Summary(s))))
	var text strings.Builder
	fmt.Fprintf(&text, "version %s, up %s%s\n", s.GetSoftwareVersion(), show.Since(s, s.GetStartedAt()), role(s))
	text.WriteString(show.Tabbed(func(t io.Writer) { writeTables(t, s) }))
	writeFindings(&text, s)
	return show.PrintLines(w, text.String())
}

// whose returns the cluster at the other end of a link; a part may be linked to a part of its own cluster.
func whose(s *semaphorev1.GetStatusResponse, l *semaphorev1.LinkStatus) string {
	if l.GetCluster() == s.GetCluster() {
		return l.GetCluster() + " (own)"
	}
	return l.GetCluster()
}

func writeTables(t io.Writer, s *semaphorev1.GetStatusResponse) {
	show.Section(t, "CLUSTER\tSTATE\tFOR\tHEARD\tBEHIND\tOBJECTS\tADDRESS", s.GetLinks(), 0,
		func(l *semaphorev1.LinkStatus) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%s\t%s", whose(s, l), connected(l.GetConnected()),
				show.Since(s, l.GetSince()), show.Ago(s, l.GetLastHeard()), l.GetBehind(), kinds(l.GetKinds()), l.GetAddress())
		})
	writeKinds(t, s)
	show.Drains(t, s)
	writeMultiCluster(t, s)
	show.Section(t, "OWN NAME OF\tUSE\tLEADS TO\tREADY HERE\tENOUGH", s.GetOwnNames(), int(s.GetOwnNamesTotal()),
		func(o *semaphorev1.OwnNameStatus) string {
			return fmt.Sprintf("%s/%s\t%s\t%s\t%d of %d\t%s", o.GetNamespace(), o.GetService(), o.GetUse(),
				strings.Join(o.GetClusters(), ", "), o.GetReady(), o.GetAll(), o.GetEnough())
		})
	show.Section(t, "DEVICE\tCLUSTER\tBACKEND\tPORT\tMTU\tPEERS\tHANDSHAKES\tNEWEST\tRECEIVED\tSENT\tSTATE\tROUTES",
		s.GetDevices(), 0, func(d *semaphorev1.DeviceStatus) string {
			return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d/%d\t%d\t%s\t%d\t%d\t%s\t%s", d.GetInterface(), d.GetCluster(),
				semaphorev1.BackendName(d.GetBackend()), d.GetListenPort(), d.GetMtu(), d.GetPeersPresent(), d.GetPeersDesired(),
				d.GetPeersWithHandshake(), show.Ago(s, d.GetLastHandshake()), d.GetReceivedBytes(), d.GetSentBytes(),
				state(s, d), strings.Join(d.GetRoutes(), " "))
		})
	show.Nodes(t, s)
	writeTalk(t, s)
	writeTraffic(t, s)
}

// writeMultiCluster prints how many Services ServiceExports export, of which clusters, and the imports.
func writeMultiCluster(w io.Writer, s *semaphorev1.GetStatusResponse) {
	is := s.GetMultiCluster()
	if is == nil {
		return
	}
	var exports []string
	for _, e := range is.GetExports() {
		exports = append(exports, fmt.Sprintf("%s %d", e.GetCluster(), e.GetServices()))
	}
	fmt.Fprintln(w, "\nIMPORTS\tCONFLICTS\tEXPORTS")
	fmt.Fprintf(w, "%d\t%d\t%s\n", is.GetImports(), is.GetConflicts(), cmp.Or(strings.Join(exports, ", "), "-"))
}

// writeTraffic prints the traffic of Services with remote endpoints, the busiest first.
func writeTraffic(w io.Writer, s *semaphorev1.GetStatusResponse) {
	show.Section(w, "TRAFFIC OF SERVICE\tOUT/S\tIN/S\tOUT\tIN\tCONNECTIONS\tNODES", s.GetServiceTraffic(),
		int(s.GetServiceTrafficTotal()), func(t *semaphorev1.ServiceTrafficStatus) string {
			return fmt.Sprintf("%s/%s\t%s\t%s\t%s\t%s\t%d\t%d", t.GetNamespace(), t.GetService(),
				mesh.Bytes(t.GetSentPerSecond()), mesh.Bytes(t.GetReceivedPerSecond()), mesh.Bytes(t.GetSentBytes()),
				mesh.Bytes(t.GetReceivedBytes()), t.GetConnections(), t.GetNodes())
		})
}

// writeFindings prints each finding with its evidence, who can act, and a command.
func writeFindings(w io.Writer, s *semaphorev1.GetStatusResponse) {
	all := s.GetFindings()
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "\nFINDINGS")
	for _, f := range all {
		for _, line := range show.FindingLines(f, "") {
			fmt.Fprintln(w, line)
		}
	}
	lines := slices.DeleteFunc(problemLines(s), func(p string) bool {
		shows := func(f *semaphorev1.Finding) bool { return slices.Contains(f.GetFirst(), finding.Clean(p)) }
		return slices.ContainsFunc(all, shows)
	})
	if len(lines) > 0 {
		fmt.Fprintln(w, "\nPROBLEMS, each of them")
		for _, p := range lines {
			fmt.Fprintln(w, "  "+show.Printable(p))
		}
	}
}

func problemLines(s *semaphorev1.GetStatusResponse) []string {
	problems := slices.Clone(s.GetProblems())
	for _, l := range s.GetLinks() {
		if l.GetLastError() != "" {
			problems = append(problems, fmt.Sprintf("%s: %s", l.GetCluster(), l.GetLastError()))
		}
	}
	for _, n := range s.GetNodes() {
		for _, p := range n.GetProblems() {
			problems = append(problems, fmt.Sprintf("node %s: %s", n.GetNode(), p))
		}
	}
	return problems
}

// state returns the source of a device's desired state with its age, and the tool from which it was adopted.
func state(s *semaphorev1.GetStatusResponse, d *semaphorev1.DeviceStatus) string {
	out := semaphorev1.StateSourceName(d.GetSource())
	if out == "" {
		return "-"
	}
	if d.GetConfirmedAt() != nil && finding.Age(s, d.GetConfirmedAt()) > finding.StaleAfter {
		out += "," + show.Since(s, d.GetConfirmedAt()) + " old"
	}
	if d.GetAdoptedFrom() != "" {
		out += ",was " + d.GetAdoptedFrom() + "'s"
	}
	return out
}

func connected(yes bool) string {
	if yes {
		return "connected"
	}
	return "NOT CONNECTED"
}

// kinds returns a text such as "node 2, service 1".
func kinds(all []*semaphorev1.KindStatus) string {
	var out []string
	for _, k := range all {
		text := fmt.Sprintf("%s %d", semaphorev1.KindName(k.GetKind()), k.GetObjects())
		if k.GetRefused() > 0 {
			text += fmt.Sprintf(" (%d refused)", k.GetRefused())
		}
		if !k.GetComplete() {
			text += " (incomplete)"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// writeKinds prints a line for each kind of each remote that a broker holds: its age, its numbers, and the propagation
// time of its changes.
func writeKinds(w io.Writer, s *semaphorev1.GetStatusResponse) {
	if s.GetPart() != "broker" || len(s.GetLinks()) == 0 {
		return
	}
	fmt.Fprintln(w, "\nCLUSTER\tKIND\tAGE\tOBJECTS\tREFUSED\tHELD BACK\tLAG: LAST\tMEDIAN\tHIGH")
	for _, l := range s.GetLinks() {
		for _, k := range l.GetKinds() {
			age := show.Ago(s, k.GetLastHeard())
			if k.GetLastHeard() != nil {
				age = show.Since(s, k.GetLastHeard())
			}
			objects := fmt.Sprint(k.GetObjects())
			if k.GetLimit() > 0 {
				objects += fmt.Sprintf("/%d", k.GetLimit())
			}
			back := "0"
			if k.GetRetained() > 0 {
				back = fmt.Sprintf("%d for %s", k.GetRetained(), show.Since(s, k.GetRetainedSince()))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", l.GetCluster(), semaphorev1.KindName(k.GetKind()), age,
				objects, k.GetRefused(), back,
				lag(k.GetLastPropagation()), lag(k.GetMedianPropagation()), lag(k.GetHighPropagation()))
		}
	}
}

// lag is the time from the observation of a change in a remote to its effect here; it includes the difference of the
// two clocks.
func lag(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return show.Short(d.AsDuration())
}

// role returns whether a part leads, if it elects a leader.
func role(s *semaphorev1.GetStatusResponse) string {
	switch {
	case s.GetStandby() && s.GetLeader() != "":
		return ", standby of " + s.GetLeader()
	case s.GetStandby():
		return ", standby of an unknown leader"
	case s.GetLeader() != "":
		return ", leader (" + s.GetLeader() + ")"
	}
	return ""
}
