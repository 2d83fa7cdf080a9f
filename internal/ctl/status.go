package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func statusCommand() *cobra.Command {
	var t fleet.Target
	var output string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "what a part holds, whom it talks to, and what is wrong",
		Long: `Prints what an exporter, broker or agent holds and whom it talks to, with one verdict first. Where several
parts have their sockets, each is asked.

Exit code 0 when all is well, 1 when the part cannot be asked, 2 when something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "json", "yaml"}, output) {
				return fmt.Errorf("--output %q: use table, json or yaml", output)
			}
			parts, err := t.Dial(cmd.Context())
			if err != nil {
				return err
			}
			return status(cmd.Context(), cmd.OutOrStdout(), parts, output, timeout)
		},
	}
	t.Flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

// status asks each part and prints what it says. One that cannot be asked does not keep the others from
// being shown.
func status(ctx context.Context, w io.Writer, parts []*fleet.Part, output string, timeout time.Duration) error {
	var unreachable, wrong []string
	shown := 0
	for _, p := range parts {
		s, err := p.Status(ctx, timeout)
		if err != nil {
			unreachable = append(unreachable, fmt.Sprintf("%s cannot be asked: %v", p.Where, err))
			continue
		}
		if shown++; shown > 1 {
			separator := map[string]string{"table": "\n", "yaml": "---\n"}[output]
			if _, err := io.WriteString(w, separator); err != nil {
				return err
			}
		}
		if err := printStatus(w, s, output); err != nil {
			return err
		}
		for _, v := range verdict(s) {
			wrong = append(wrong, cli.Printable(s.GetPart()+": "+v))
		}
	}
	if len(unreachable) > 0 {
		return errors.New(strings.Join(unreachable, "; "))
	}
	if len(wrong) > 0 {
		return program.ExitError{Code: cli.ExitWrong, Err: errors.New(strings.Join(wrong, "; "))}
	}
	return nil
}

func printStatus(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	if output == "table" {
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
	return cli.PrintLines(w, text.String())
}

// whose is the cluster at the other end of a link; a part may be linked to that of its own cluster.
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
	fmt.Fprintf(w, "%s: %s\nversion %s, up %s%s\n", who, cli.Printable(summary(s)), s.GetSoftwareVersion(), since(s, s.GetStartedAt()), role(s))

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
	if len(s.GetDevices()) > 0 {
		fmt.Fprintln(t, "\nDEVICE\tCLUSTER\tBACKEND\tPORT\tMTU\tPEERS\tHANDSHAKES\tNEWEST\tRECEIVED\tSENT\tSTATE\tROUTES")
		for _, d := range s.GetDevices() {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d/%d\t%d\t%s\t%d\t%d\t%s\t%s\n", d.GetInterface(), d.GetCluster(), d.GetBackend(),
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
			// STOPPED are packets of remote pods that were on their way in the clear.
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\n", n.GetNode(), state, since(s, n.GetSince()), n.GetBehind(), n.GetDevices(), n.GetClearPackets())
		}
	}
	writeTalk(t, s)
	if err := t.Flush(); err != nil {
		return err
	}
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
	if len(problems) > 0 {
		fmt.Fprintln(w, "\nPROBLEMS")
		for _, p := range problems {
			fmt.Fprintln(w, "  "+cli.Printable(p))
		}
	}
	return nil
}

// state is whose word a device follows and how old that is, and from whom it was taken over.
func state(s *semaphorev1.GetStatusResponse, d *semaphorev1.DeviceStatus) string {
	out := d.GetSource()
	if out == "" {
		return "-"
	}
	if d.GetConfirmedAt() != nil && age(s, d.GetConfirmedAt()) > staleAfter {
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

// kinds is such as "node 2, service 1".
func kinds(all []*semaphorev1.KindStatus) string {
	var out []string
	for _, k := range all {
		text := fmt.Sprintf("%s %d", k.GetKind(), k.GetObjects())
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

// writeKinds is a line for each kind of each remote that a broker holds: how old it is, how much of it there
// is and is not, and how long its changes take.
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
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", l.GetCluster(), k.GetKind(), age, objects, k.GetRefused(), back,
				lag(k.GetLastPropagation()), lag(k.GetMedianPropagation()), lag(k.GetHighPropagation()))
		}
	}
}

// lag is a time from a remote's seeing of a change to its effect here; it holds what the two clocks differ by.
func lag(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return short(d.AsDuration())
}

// since is how long ago t was when the status was made, by the part's own clock.
func since(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return short(s.GetNow().AsTime().Sub(t.AsTime()))
}

// short is a time with as many digits as a person wants of it.
func short(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		return d.Round(time.Millisecond).String()
	case d.Abs() < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d.Abs() < 24*time.Hour:
		return d.Round(time.Second).String()
	default:
		return fmt.Sprintf("%dd%s", d/(24*time.Hour), (d % (24 * time.Hour)).Round(time.Hour))
	}
}

func ago(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	return since(s, t) + " ago"
}
