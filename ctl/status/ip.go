package status

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// held is a pod that had an address, as a broker remembers it.
type held struct {
	// By is the cluster of the broker that remembers it.
	By        string `json:"by"`
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Set       string `json:"set"`
	// From is absent for a time before the broker's memory, Until for a pod that has the address.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

func ipCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "ip IP",
		Short: "which pod of which cluster has or had an IP, and in which sets",
		Long: `Prints which remote pods had an IP while they were in a set, newest first, as the brokers remember. A broker
keeps the last 32,768 changes since it became leader, shared fairly among remotes, and says since when these are
complete. Pods without a set label are not known to brokers.

Exit code 0, or 1 when no broker knows a pod that had the IP, or one cannot be asked.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ip, err := netip.ParseAddr(args[0])
			if err != nil {
				return fmt.Errorf("%q: use an IP address", args[0])
			}
			all, since, notAsked := holders(cmd.Context(), &t, timeout,
				&semaphorev1.ListHoldersRequest{Address: ip.Unmap().String()})
			if notAsked != nil && len(all) == 0 {
				return notAsked
			}
			if err := printHeld(cmd.OutOrStdout(), ip, all, since, output.Chosen); err != nil {
				return err
			}
			if notAsked == nil && len(all) == 0 {
				return fmt.Errorf("no broker that was asked knows a remote pod of a set with %s", ip)
			}
			return notAsked
		},
	}
	t.Flags(cmd)
	show.TimeoutFlag(cmd, &timeout, 10*time.Second)
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	return cmd
}

// holders asks the brokers, and returns since when all that answer remember. The error says which do not.
func holders(ctx context.Context, t *fleet.Target, timeout time.Duration, req *semaphorev1.ListHoldersRequest) (
	all []held, since time.Time, err error,
) {
	err = t.Brokers(ctx, timeout, "remembers pods", "a broker with the policy feature",
		func(ctx context.Context, p *fleet.Part) error {
			answer, err := p.ListHolders(ctx, req)
			if err != nil {
				return err
			}
			s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
			if err != nil {
				return err
			}
			if of := answer.GetSince().AsTime(); of.After(since) {
				since = of
			}
			for _, h := range answer.GetHolders() {
				all = append(all, holder(s.GetCluster(), h))
			}
			return nil
		})
	slices.SortStableFunc(all, func(a, b held) int { return cmp.Compare(b.end(), a.end()) })
	return all, since, err
}

// end is when a pod lost the address, in Unix time; that of one that has it is the highest.
func (h held) end() int64 {
	if h.Until.IsZero() {
		return math.MaxInt64
	}
	return h.Until.UnixNano()
}

func holder(by string, h *semaphorev1.Holder) held {
	return held{By: by, Cluster: h.GetCluster(), Namespace: h.GetNamespace(), Pod: h.GetPod(), UID: h.GetUid(),
		Set: h.GetSet(), From: finding.TimeOf(h.GetFrom()), Until: finding.TimeOf(h.GetUntil())}
}

func printHeld(w io.Writer, ip netip.Addr, all []held, since time.Time, output string) error {
	if output != "table" {
		return show.PrintValue(w, struct {
			Address string    `json:"address"`
			Holders []held    `json:"holders"`
			Since   time.Time `json:"complete_since"`
		}{ip.String(), all, since}, output)
	}
	text := func(t time.Time, none string) string {
		if t.IsZero() {
			return none
		}
		return t.UTC().Format("2006-01-02 15:04:05Z")
	}
	return show.PrintLines(w, show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "POD\tSET\tFROM\tUNTIL\tSAYS")
		for _, h := range all {
			pod := show.Printable(h.Cluster + "/" + h.Namespace + "/" + h.Pod)
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", pod, show.Printable(h.Set), text(h.From, "before"), text(h.Until, "now"),
				h.By)
		}
		fmt.Fprintf(t, "complete since %s\n", text(since, ""))
	}))
}
