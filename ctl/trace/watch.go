package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// follow streams events until ctx ends: those of an object through all parts, or all.
func (c *tracing) follow(cmd *cobra.Command, followed object) error {
	dialers, err := c.target.Dialers()
	if err != nil {
		return err
	}
	w := &watching{dialers: dialers, recent: c.history, missed: cmd.ErrOrStderr(),
		wanted: func(ctx context.Context, p *fleet.Part) func(*semaphorev1.Event) bool {
			of := followed
			of.findSets(ctx, []*fleet.Part{p})
			return func(e *semaphorev1.Event) bool { return c.wanted(of, e) }
		}}
	if followed.kind == "" {
		return w.watch(cmd.Context(), c.printer(cmd, new(show.Columns).Print))
	}
	return w.follow(cmd.Context(), c.printer(cmd, new(changes).print))
}

type watching struct {
	dialers []fleet.Dialer
	recent  bool
	// wanted returns which events of a part are printed.
	wanted func(context.Context, *fleet.Part) func(*semaphorev1.Event) bool
	// missed has a line for each part that cannot be watched.
	missed io.Writer
}

// follow is watch with the events of the parts in the order in which a change travels.
func (w *watching) follow(ctx context.Context, print printer) error {
	ordered := newOrdered(print)
	g, streaming := errgroup.WithContext(ctx)
	g.Go(func() error { return ordered.run(streaming) })
	g.Go(func() error { return w.watch(streaming, ordered.take) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// settle is how long lines wait for those of other parts that come before them: each part has a stream of its own.
const settle = 250 * time.Millisecond

// ordered prints the events of several parts in the order in which a change travels: by part, and then by time.
type ordered struct {
	print   printer
	arrived chan struct{}

	mu      sync.Mutex
	waiting []*semaphorev1.WatchResponse
}

func newOrdered(print printer) *ordered {
	return &ordered{print: print, arrived: make(chan struct{}, 1)}
}

// take keeps a message until run prints it.
func (o *ordered) take(m *semaphorev1.WatchResponse) error {
	o.mu.Lock()
	o.waiting = append(o.waiting, m)
	o.mu.Unlock()
	select {
	case o.arrived <- struct{}{}:
	default:
	}
	return nil
}

// run prints taken events until ctx ends, and then the rest.
func (o *ordered) run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-o.arrived:
			select {
			case <-ctx.Done():
			case <-time.After(settle):
			}
		}
		if err := o.flush(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (o *ordered) flush() error {
	o.mu.Lock()
	all := o.waiting
	o.waiting = nil
	o.mu.Unlock()
	slices.SortStableFunc(all, func(a, b *semaphorev1.WatchResponse) int {
		x, y := a.GetEvent(), b.GetEvent()
		return cmp.Or(x.GetObservedAt().AsTime().Compare(y.GetObservedAt().AsTime()),
			slices.Index(travels, x.GetPart())-slices.Index(travels, y.GetPart()),
			strings.Compare(x.GetCluster(), y.GetCluster()), x.GetTime().AsTime().Compare(y.GetTime().AsTime()))
	})
	for _, m := range all {
		if err := o.print(m); err != nil {
			return err
		}
	}
	return nil
}

// changes prints events by change: those that their source saw at one time belong to one. It remembers the last
// changes.
type changes struct {
	show.Columns
	known []change
}

// change is one change of an object, under way.
type change struct {
	source   string
	observed time.Time
	last     time.Time
}

// maxFollowed is how many changes are under way at once.
const maxFollowed = 64

func (c *changes) print(w io.Writer, m *semaphorev1.WatchResponse) error {
	e := m.GetEvent()
	switch {
	case e == nil:
		return c.Columns.Print(w, m)
	case e.GetObservedAt() == nil:
		fmt.Fprintf(w, "%10s  ", "")
		return c.Columns.Print(w, m)
	}
	observed, at := e.GetObservedAt().AsTime(), e.GetTime().AsTime()
	i := slices.IndexFunc(c.known, func(k change) bool { return k.source == e.GetSource() && k.observed.Equal(observed) })
	if i < 0 {
		if len(c.known) == maxFollowed {
			c.known = slices.Delete(c.known, 0, 1)
		}
		i = len(c.known)
		c.known = append(c.known, change{e.GetSource(), observed, observed})
		fmt.Fprintf(w, "change seen in %s at %s\n", show.Printable(e.GetSource()),
			observed.Local().Format("15:04:05.000"))
	}
	hop := at.Sub(c.known[i].last).Round(100 * time.Microsecond).String()
	if hop[0] != '-' {
		hop = "+" + hop
	}
	c.known[i].last = at
	fmt.Fprintf(w, "%10s  ", hop)
	return c.Columns.Print(w, m)
}

// watch prints the events of each part as soon as it is reached, until ctx ends or no part is left. A part that cannot
// be reached, or that stops, is named, and the others continue.
func (w *watching) watch(ctx context.Context, print printer) error {
	g, streaming := errgroup.WithContext(ctx)
	var mu sync.Mutex // of both outputs
	named := map[string]bool{}
	locked := func(m *semaphorev1.WatchResponse) error {
		mu.Lock()
		defer mu.Unlock()
		return print(m)
	}
	for _, dial := range w.dialers {
		g.Go(func() error {
			why, err := w.part(streaming, dial, locked)
			if why == nil || streaming.Err() != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			// The parts of one cluster are out of reach for one reason.
			if text := show.Printable(why.Error()); !named[text] {
				named[text] = true
				fmt.Fprintln(w.missed, "not watched:", text)
			}
			return nil
		})
	}
	err := g.Wait()
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	return errors.New("no part is left to watch")
}

// part prints the events of a part until it stops: why says how. An error is of print.
func (w *watching) part(ctx context.Context, dial fleet.Dialer, print printer) (why, err error) {
	p, err := dial(ctx)
	if err != nil {
		return err, nil
	}
	defer p.Close()
	wanted := w.wanted(ctx, p)
	stream, err := p.Watch(ctx, &semaphorev1.WatchRequest{Recent: w.recent})
	if err != nil {
		return fmt.Errorf("%s: %s", p.Where, grpcstatus.Convert(err).Message()), nil
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: the part has stopped", p.Where), nil
		}
		if err != nil {
			return fmt.Errorf("%s: %s", p.Where, grpcstatus.Convert(err).Message()), nil
		}
		if e := m.GetEvent(); e != nil && !wanted(e) {
			continue
		}
		if err := print(m); err != nil {
			return nil, err
		}
	}
}
