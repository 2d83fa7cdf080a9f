package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxServices is how many Services of remotes are described: the broker asks the apiserver about each.
const maxServices = 100

// service is the state of a remote's Service at a broker.
type service struct {
	// At is the broker's cluster, and From the remote; empty for a Service of several.
	At      string `json:"at"`
	From    string `json:"from,omitempty"`
	Service string `json:"service"`
	// Object is the Service that the broker writes; empty for none.
	Object string `json:"object,omitempty"`
	// State is done, waiting or failed.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
}

func servicesCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "services [NAMESPACE[/NAME]]",
		Short: "which Services of remotes there are, as what, and with which endpoints",
		Long: fmt.Sprintf(`Prints the Services of remotes that a broker has accepted, what it makes of each, and with which
endpoints: all, those of one namespace, or one of them, as it is called in its own cluster. It describes the first %d;
NAMESPACE or NAMESPACE/NAME chooses among more. The table has 100 columns; -o wide shows all in full.
"semaphorectl trace service/NAMESPACE/NAME" has the way of one.

Exit code 0 when all are written, 1 when no working broker answers, 2 when one cannot be.`, maxServices),
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			like := &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE}
			if len(args) == 1 {
				namespace, name, both := strings.Cut(args[0], "/")
				if namespace == "" || both && name == "" || strings.Contains(name, "/") {
					return fmt.Errorf("%q: use NAMESPACE or NAMESPACE/NAME", args[0])
				}
				like.Namespace, like.Name = namespace, name
			}
			all, more := []service{}, 0
			notAsked := t.Brokers(cmd.Context(), timeout, "knows the Services", "a broker",
				func(ctx context.Context, p *fleet.Part) error {
					found, left, err := servicesAt(ctx, p, like)
					all, more = append(all, found...), more+left
					return err
				})
			if notAsked != nil && len(all) == 0 {
				return notAsked
			}
			if err := printServices(cmd.OutOrStdout(), all, more, output.Chosen); err != nil {
				return err
			}
			var failed []string
			for _, s := range all {
				if s.State == semaphorev1.PlaceStateName(debug.PlaceFailed) {
					failed = append(failed, s.Service)
				}
			}
			return errors.Join(show.Wrong(failed, len(all), "cannot be written"), notAsked)
		},
	}
	t.Flags(cmd)
	show.CompleteArg(cmd, fleet.CompleteServices(&t))
	output = show.OutputFlag(cmd, "table", "wide", "json", "yaml")
	show.TimeoutFlag(cmd, &timeout, 10*time.Second)
	return cmd
}

// servicesAt asks a broker for the Services like one, and for its way of each. more is how many it does not describe.
func servicesAt(ctx context.Context, p *fleet.Part, like *semaphorev1.ObjectKey) (all []service, more int, err error) {
	s, err := p.Leading(ctx)
	if err != nil {
		return nil, 0, err
	}
	names := map[string]bool{}
	for _, cluster := range fleet.LinkedOf(s) {
		found, left, err := fleet.Accepted(ctx, p, cluster, like)
		if err != nil {
			return nil, 0, err
		}
		more += left
		for _, name := range found {
			// A broker takes the name for the beginning of names.
			if _, own, _ := strings.Cut(name, "/"); like.GetName() == "" || own == like.GetName() {
				names[name] = true
			}
		}
	}
	chosen := slices.Sorted(maps.Keys(names))
	if len(chosen) > maxServices {
		more += len(chosen) - maxServices
		chosen = chosen[:maxServices]
	}
	described := make([][]service, len(chosen))
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, name := range chosen {
		g.Go(func() error {
			namespace, own, _ := strings.Cut(name, "/")
			answer, err := p.Locate(asking, &semaphorev1.LocateRequest{Object: &semaphorev1.ObjectKey{
				Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: namespace, Name: own}})
			described[i] = describe(s.GetCluster(), name, answer.GetPlaces())
			return err
		})
	}
	err = g.Wait()
	all = slices.Concat(described...)
	slices.SortFunc(all, func(a, b service) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.From, b.From),
			strings.Compare(a.Object, b.Object))
	})
	return all, more, err
}

// describe returns a line for each Service that the broker makes of one, and for each cluster whose Service is not
// simply accepted.
func describe(at, name string, places []*semaphorev1.Place) (out []service) {
	for _, p := range places {
		made := p.GetHop() == debug.HopPlan || p.GetHop() == debug.HopWrite
		if !made && (p.GetHop() != debug.HopAccept || p.GetState() == debug.PlaceDone) {
			continue
		}
		one := service{At: at, From: p.GetCluster(), Service: name, State: semaphorev1.PlaceStateName(p.GetState()),
			Detail: p.GetDetail()}
		if kind, object, _ := strings.Cut(p.GetObject(), " "); made && kind == "service" && object != name {
			one.Object = object
		}
		i := slices.IndexFunc(out, func(s service) bool { return made && s.From == one.From && s.Object == one.Object })
		if i < 0 {
			out = append(out, one)
			continue
		}
		// The plan comes before the write, whose state is the one of both. Why it cannot be written comes first.
		if p.GetState() == debug.PlaceFailed {
			one.Detail, out[i].Detail = out[i].Detail, one.Detail
		}
		out[i].State, out[i].Detail = one.State, out[i].Detail+"; "+one.Detail
	}
	return out
}

func printServices(w io.Writer, all []service, more int, output string) error {
	if output == "json" || output == "yaml" {
		return show.PrintValue(w, map[string]any{"services": all, "more": more}, output)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no such Service: a Service of a remote is here while its cluster exports it; "+
			"semaphorectl\nstatus shows the remotes")
		return err
	}
	rows := [][]string{{"AT", "SERVICE", "FROM", "STATE", "AS", "ENDPOINTS"}}
	for _, s := range all {
		rows = append(rows, []string{s.At, s.Service, cmp.Or(s.From, "several"), s.State, cmp.Or(s.Object, "-"), s.Detail})
	}
	var out strings.Builder
	most := show.LineWidth
	if output == "wide" {
		most = 1 << 20
	}
	show.Table(&out, rows, most)
	if more > 0 {
		fmt.Fprintf(&out, "and %d more: give NAMESPACE or NAMESPACE/NAME\n", more)
	}
	return show.PrintLines(w, out.String())
}
