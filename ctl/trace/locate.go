// Package trace follows objects and IPs through the parts, now and in their memory.
package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// location is a part's state of an object now, at one hop of its way.
type location struct {
	Hop  string `json:"hop"`
	Part string `json:"part"`
	// At is the part's own cluster, and for an agent its node, too.
	At string `json:"at"`
	// Cluster is the one at the other end: where it is exported to, or where it is from.
	Cluster string `json:"cluster,omitempty"`
	Object  string `json:"object"`
	// State is done, waiting, absent or failed.
	State       string    `json:"state"`
	Detail      string    `json:"detail,omitempty"`
	ObservedAt  time.Time `json:"observed_at,omitzero"`
	ConfirmedAt time.Time `json:"confirmed_at,omitzero"`
}

// locate asks all parts where an object is, and returns that in the order in which a change travels. A part that cannot
// be asked, or that does not lead, is an error beside; one that keeps no objects says nothing.
func locate(ctx context.Context, parts []*fleet.Part, o object) ([]location, error) {
	kind, _ := semaphorev1.KindOf(o.kind)
	of := &semaphorev1.ObjectKey{Kind: kind, Namespace: o.namespace, Name: o.name}
	ctx, cancel := context.WithTimeout(ctx, pastWithin)
	defer cancel()
	found, failed := fleet.All(parts, func(p *fleet.Part) (out []location, err error) {
		s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
		var answer *semaphorev1.LocateResponse
		if err == nil {
			answer, err = p.Locate(ctx, &semaphorev1.LocateRequest{Object: of})
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", p.Where, grpcstatus.Convert(err).Message())
		}
		for _, one := range answer.GetPlaces() {
			out = append(out, placeOf(s, one))
		}
		if more := answer.GetMore(); more > 0 {
			return out, fmt.Errorf("%s: %d more places", p.Where, more)
		}
		return out, nil
	})
	all := slices.Concat(found...)
	// Where a cluster has no such object its exporter says no more than that; that is news of no one's.
	named := slices.ContainsFunc(all, func(p location) bool { return p.Hop == debug.HopSource && p.State != "absent" })
	all = slices.DeleteFunc(all, func(p location) bool {
		return named && p.State == "absent" && (p.Hop == debug.HopSource || p.Hop == debug.HopExport && p.ObservedAt.IsZero())
	})
	slices.SortStableFunc(all, func(a, b location) int {
		return cmp.Or(slices.Index(debug.Hops, a.Hop)-slices.Index(debug.Hops, b.Hop), strings.Compare(a.At, b.At),
			strings.Compare(a.Cluster, b.Cluster))
	})
	return all, errors.Join(failed...)
}

func placeOf(s *semaphorev1.GetStatusResponse, p *semaphorev1.Place) location {
	out := location{Hop: p.GetHop(), Part: s.GetPart(), At: s.GetCluster(), Cluster: p.GetCluster(),
		Object: p.GetObject(), State: semaphorev1.PlaceStateName(p.GetState()), Detail: p.GetDetail()}
	if s.GetNode() != "" {
		out.At += "/" + s.GetNode()
	}
	if p.GetObservedAt().IsValid() {
		out.ObservedAt = p.GetObservedAt().AsTime()
	}
	if p.GetConfirmedAt().IsValid() {
		out.ConfirmedAt = p.GetConfirmedAt().AsTime()
	}
	return out
}

// placeTable returns a table. CHANGED is how long ago the source saw the last change, and SEEN how long ago the part
// last saw or confirmed its answer.
func placeTable(places []location, now time.Time) string {
	return show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "HOP\tAT\tCLUSTER\tSTATE\tOBJECT\tCHANGED\tSEEN\tDETAIL")
		for _, p := range places {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", show.Printable(p.Hop), show.Printable(p.At),
				cmp.Or(show.Printable(p.Cluster), "-"), p.State, show.Printable(p.Object), show.Age(now, p.ObservedAt),
				show.Age(now, p.ConfirmedAt), show.Printable(p.Detail))
		}
	})
}
