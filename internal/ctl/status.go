package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/verdict"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func statusCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Exporter, fleet.Broker, fleet.Agent}}
	var output *outputs
	var timeout, every time.Duration
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "one verdict for the mesh, or for a cluster or a part, and what is wrong",
		Long: `Prints one verdict first, for all clusters that --context names, or the current one: which remotes are fresh,
and what is wrong. Then follow the parts with their versions and leaders, what each cluster has of each other with its
age and lag, the pairs of nodes that do not talk, and each finding with its code, its evidence, who can act, and one
command. docs/findings.md has all codes.

Where a broker does not answer, a few of its agents and the apiserver are asked. Where a whole cluster does not
answer, the others say what they know of it.

The tables have 100 columns; -o wide shows names in full, and each part with all that it says. In a part's container,
or with --agent, --part, --socket or --address, it prints what one part says.

  semaphorectl status --context c1 --context c2
  semaphorectl status --context c1 --context c2 --watch
  semaphorectl status --context c1 -o json
  semaphorectl status --context c1 --agent node-7

Exit code 0 when all is well, 1 when nothing can be asked, 2 when something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			onePart := len(t.Nodes)+len(t.Sockets) > 0 || t.Address != "" || t.Part != "" ||
				fleet.InContainer() && !access.Given()
			switch {
			case onePart && watch:
				return errors.New("--watch is for clusters: without --agent, --part, --socket and --address")
			case watch:
				return watchMesh(cmd.Context(), cmd.OutOrStdout(), access, output.chosen, timeout, every)
			case !onePart:
				return meshStatus(cmd.Context(), cmd.OutOrStdout(), access, output.chosen, timeout)
			}
			parts, unreached := t.Dial(cmd.Context())
			if len(parts) == 0 {
				return unreached
			}
			return status(cmd.Context(), cmd.OutOrStdout(), parts, unreached, output.chosen, timeout)
		},
	}
	t.Flags(cmd)
	output = outputFlag(cmd, "table", "wide", "json", "yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again whenever something changes, until Ctrl-C")
	cmd.Flags().DurationVar(&every, "every", 2*time.Second, "with --watch: `time` between two questions")
	return cmd
}

// answer is a part's status, or why it did not answer.
type answer struct {
	part   *fleet.Part
	status *semaphorev1.GetStatusResponse
	err    error
}

// status asks the parts concurrently, and prints their answers. A part that does not answer does not delay the others.
func status(ctx context.Context, w io.Writer, parts []*fleet.Part, unreached error, output string,
	timeout time.Duration) error {
	answers := make([]answer, len(parts))
	var asking sync.WaitGroup
	for i, p := range parts {
		asking.Go(func() {
			s, err := p.Status(ctx, timeout)
			answers[i] = answer{p, s, err}
		})
	}
	asking.Wait()
	var unreachable, wrong []string
	if unreached != nil {
		unreachable = append(unreachable, unreached.Error())
	}
	var answered []answer
	for _, a := range answers {
		if a.err != nil {
			unreachable = append(unreachable, fmt.Sprintf("%s cannot be asked: %v", a.part.Where, a.err))
			continue
		}
		answered = append(answered, a)
		who := a.status.GetPart()
		if a.part.Context != "" {
			who = a.part.Context + ": " + who
		}
		for _, v := range verdict.Wrong(a.status) {
			wrong = append(wrong, cli.Printable(who+": "+v))
		}
	}
	if err := printAnswers(w, answered, output); err != nil {
		return err
	}
	if len(unreachable) > 0 {
		return errors.New(strings.Join(unreachable, "; "))
	}
	if len(wrong) > 0 {
		return program.ExitError{Code: cli.ExitWrong, Err: errors.New(strings.Join(wrong, "; "))}
	}
	return nil
}

// printAnswers prints each part.
func printAnswers(w io.Writer, answers []answer, output string) error {
	for i, a := range answers {
		if i > 0 {
			separator := map[string]string{"table": "\n", "wide": "\n", "yaml": "---\n"}[output]
			if _, err := io.WriteString(w, separator); err != nil {
				return err
			}
		}
		if err := printStatus(w, a.status, output); err != nil {
			return err
		}
	}
	return nil
}

func printStatus(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	if output == "table" || output == "wide" {
		return statusTable(w, s)
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true, Indent: "  "}.Marshal(s)
	if err != nil {
		return err
	}
	return cli.PrintDocument(w, data, output)
}

func statusTable(w io.Writer, s *semaphorev1.GetStatusResponse) error {
	var text bytes.Buffer
	if err := writeTable(&text, s); err != nil {
		return err
	}
	first, rest, _ := strings.Cut(text.String(), "\n")
	colour := cli.Green
	if len(verdict.Of(s)) > 0 {
		colour = cli.Red
	}
	if _, err := fmt.Fprintln(w, cli.Paint(w, colour, cli.Printable(first))); err != nil {
		return err
	}
	return cli.PrintLines(w, rest)
}

// whose returns the cluster at the other end of a link; a part may be linked to a part of its own cluster.
func whose(s *semaphorev1.GetStatusResponse, l *semaphorev1.LinkStatus) string {
	if l.GetCluster() == s.GetCluster() {
		return l.GetCluster() + " (own)"
	}
	return l.GetCluster()
}

func writeTable(w io.Writer, s *semaphorev1.GetStatusResponse) error {
	who := s.GetPart() + " of " + s.GetCluster()
	if s.GetNode() != "" {
		who += " on node " + s.GetNode()
	}
	fmt.Fprintf(w, "%s: %s\nversion %s, up %s%s\n", who, cli.Printable(verdict.Summary(s)), s.GetSoftwareVersion(),
		since(s, s.GetStartedAt()), role(s))

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(s.GetLinks()) > 0 {
		fmt.Fprintln(t, "\nCLUSTER\tSTATE\tFOR\tHEARD\tBEHIND\tOBJECTS\tADDRESS")
		for _, l := range s.GetLinks() {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", whose(s, l), connected(l.GetConnected()), since(s, l.GetSince()),
				ago(s, l.GetLastHeard()), l.GetBehind(), kinds(l.GetKinds()), l.GetAddress())
		}
	}
	writeKinds(t, s)
	writeDrains(t, s)
	writeMultiCluster(t, s)
	if len(s.GetDevices()) > 0 {
		fmt.Fprintln(t, "\nDEVICE\tCLUSTER\tBACKEND\tPORT\tMTU\tPEERS\tHANDSHAKES\tNEWEST\tRECEIVED\tSENT\tSTATE\tROUTES")
		for _, d := range s.GetDevices() {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d/%d\t%d\t%s\t%d\t%d\t%s\t%s\n", d.GetInterface(), d.GetCluster(),
				semaphorev1.BackendName(d.GetBackend()),
				d.GetListenPort(), d.GetMtu(), d.GetPeersPresent(), d.GetPeersWanted(), d.GetPeersWithHandshake(),
				ago(s, d.GetLastHandshake()), d.GetReceivedBytes(), d.GetSentBytes(), state(s, d), strings.Join(d.GetRoutes(), " "))
		}
	}
	if len(s.GetNodes()) > 0 {
		fmt.Fprintln(t, "\nNODE\tAGENT\tFOR\tBEHIND\tDEVICES\tSTOPPED")
		for _, n := range s.GetNodes() {
			state := "attached"
			if !n.GetAttached() {
				state = "missing"
			}
			// STOPPED counts packets of remote pods in the clear that the guard dropped.
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\n", n.GetNode(), state, since(s, n.GetSince()), n.GetBehind(), n.GetDevices(),
				n.GetClearPackets())
		}
	}
	writeTalk(t, s)
	writeTraffic(t, s)
	if err := t.Flush(); err != nil {
		return err
	}
	writeFindings(w, s)
	return nil
}

// writeMultiCluster prints how many Services ServiceExports export, of which clusters, and what is imported.
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
	fmt.Fprintf(w, "%d\t%d\t%s\n", is.GetImports(), is.GetConflicts(), dash(strings.Join(exports, ", ")))
}

// writeTraffic prints the traffic of Services with remote endpoints, the busiest first.
func writeTraffic(w io.Writer, s *semaphorev1.GetStatusResponse) {
	all := s.GetServiceTraffic()
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "\nTRAFFIC OF SERVICE\tOUT/S\tIN/S\tOUT\tIN\tCONNECTIONS\tNODES")
	for _, t := range all {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\t%d\t%d\n", t.GetNamespace(), t.GetService(), scaled(t.GetSentPerSecond()),
			scaled(t.GetReceivedPerSecond()), scaled(t.GetSentBytes()), scaled(t.GetReceivedBytes()), t.GetConnections(),
			t.GetNodes())
	}
	if more := int(s.GetServiceTrafficTotal()) - len(all); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
}

// scaled is a number of bytes for people.
func scaled(n uint64) string {
	value := float64(n)
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		switch {
		case value < 1000 && unit == "B":
			return fmt.Sprintf("%d B", n)
		case value < 1000:
			return fmt.Sprintf("%.1f %s", value, unit)
		}
		value /= 1000
	}
	return fmt.Sprintf("%.1f PB", value)
}

// writeFindings prints each finding with its evidence, who can act, and a command.
func writeFindings(w io.Writer, s *semaphorev1.GetStatusResponse) {
	all := verdict.Of(s)
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "\nFINDINGS")
	for _, f := range all {
		for _, line := range findingLines(f, "") {
			fmt.Fprintln(w, line)
		}
	}
	if !s.GetJudged() {
		return
	}
	// Of parts that judge themselves, only the lines that no finding shows.
	var lines []string
	shown := map[string]bool{}
	for _, f := range all {
		for _, line := range f.GetFirst() {
			shown[line] = true
		}
	}
	for _, p := range problemLines(s) {
		if !shown[finding.Clean(p)] {
			lines = append(lines, p)
		}
	}
	if len(lines) > 0 {
		fmt.Fprintln(w, "\nPROBLEMS, each of them")
		for _, p := range lines {
			fmt.Fprintln(w, "  "+cli.Printable(p))
		}
	}
}

// findingLines returns the lines of a finding. where names the part that reports it, if several do.
func findingLines(f *semaphorev1.Finding, where string) []string {
	head := fmt.Sprintf("  %s  %s", strings.ToUpper(semaphorev1.LevelName(f.GetLevel())), f.GetCode())
	if f.GetCluster() != "" {
		head += " (" + f.GetCluster() + ")"
	}
	if where != "" {
		head += ", " + where
	}
	head += ": " + f.GetMeaning()
	if f.GetCount() > 1 {
		head += fmt.Sprintf("; %d", f.GetCount())
	}
	if f.GetSince() != nil {
		head += ", since " + f.GetSince().AsTime().UTC().Format(time.RFC3339)
	}
	lines := []string{head}
	for _, evidence := range f.GetFirst() {
		lines = append(lines, "           "+evidence)
	}
	if more := int(f.GetCount()) - len(f.GetFirst()); more > 0 && len(f.GetFirst()) == finding.Shown {
		lines = append(lines, fmt.Sprintf("           and %d more", more))
	}
	side := strings.ReplaceAll(semaphorev1.SideName(f.GetSide()), "-", " ")
	return append(lines, fmt.Sprintf("           %s: %s", side, f.GetCommand()))
}

// problemLines returns all problems of a part.
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
	if d.GetConfirmedAt() != nil && verdict.Age(s, d.GetConfirmedAt()) > verdict.StaleAfter {
		out += "," + since(s, d.GetConfirmedAt()) + " old"
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
			age := ago(s, k.GetLastHeard())
			if k.GetLastHeard() != nil {
				age = since(s, k.GetLastHeard())
			}
			objects := fmt.Sprint(k.GetObjects())
			if k.GetLimit() > 0 {
				objects += fmt.Sprintf("/%d", k.GetLimit())
			}
			back := "0"
			if k.GetHeldBack() > 0 {
				back = fmt.Sprintf("%d for %s", k.GetHeldBack(), since(s, k.GetHeldBackSince()))
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
	return short(d.AsDuration())
}

// since returns how long ago t was when the status was made, by the part's own clock.
func since(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	return verdict.Since(s, t)
}

// short rounds a time for display.
func short(d time.Duration) string { return verdict.Short(d) }

// role returns whether a part leads, if it elects a leader.
func role(s *semaphorev1.GetStatusResponse) string {
	switch {
	case s.GetStandby() && s.GetLeader() != "":
		return ", standby of " + s.GetLeader()
	case s.GetStandby():
		return ", standby of nobody known"
	case s.GetLeader() != "":
		return ", leader (" + s.GetLeader() + ")"
	}
	return ""
}

// number returns a text such as "1 peer does not answer".
func number(n uint64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func ago(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	return since(s, t) + " ago"
}
