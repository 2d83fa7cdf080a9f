package mcs

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// maxRead bounds the events for which one request for the definitions is made.
const maxRead = 1024

// pollInterval is the time between two requests for the definitions while a watch is open: a definition may be deleted
// without an event of the watch, if its objects are others, or if there are none.
const pollInterval = 5 * time.Second

// believed passes events on while the API is served. Before it passes a deletion on, it asks for the definitions, once
// for all deletions so far. If they are gone, it ends with an error after which a reflector lists.
type believed struct {
	source watch.Interface
	served func(context.Context) error
	read   chan watch.Event
	gone   chan error // what a look found
	result chan watch.Event
	stop   context.CancelFunc
}

// newBelieved starts the goroutines that pass events on; they end with ctx, with the source or with Stop.
func newBelieved(ctx context.Context, source watch.Interface, served func(context.Context) error) watch.Interface {
	ctx, stop := context.WithCancel(ctx)
	b := &believed{source: source, served: served, stop: stop, read: make(chan watch.Event, maxRead),
		gone: make(chan error), result: make(chan watch.Event)}
	go b.receive(ctx)
	go b.poll(ctx)
	go b.pass(ctx)
	return b
}

// receive reads events while a request for the definitions is in flight.
func (b *believed) receive(ctx context.Context) {
	defer close(b.read)
	defer b.source.Stop()
	for {
		select {
		case event, open := <-b.source.ResultChan():
			if !open {
				return
			}
			select {
			case b.read <- event:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// poll asks for the definitions at intervals, until they are gone. An apiserver that does not answer proves nothing.
func (b *believed) poll(ctx context.Context) {
	for kube.Sleep(ctx, pollInterval) == nil {
		if err := b.served(ctx); errors.Is(err, ErrNotServed) {
			select {
			case b.gone <- err:
			case <-ctx.Done():
			}
			return
		}
	}
}

func (b *believed) pass(ctx context.Context) {
	defer close(b.result)
	defer b.stop()
	for {
		select {
		case gone := <-b.gone:
			b.send(ctx, expired(gone))
			return
		case event, open := <-b.read:
			if !open || !b.passAll(ctx, event) {
				return
			}
		}
	}
}

// passAll passes an event on, and those that are queued. It reports whether there may be more.
func (b *believed) passAll(ctx context.Context, first watch.Event) bool {
	events := []watch.Event{first}
	for range len(b.read) {
		events = append(events, <-b.read)
	}
	asked := false
	var gone error
	for _, event := range events {
		if event.Type == watch.Deleted && !asked {
			asked, gone = true, b.served(ctx)
		}
		if event.Type == watch.Deleted && gone != nil {
			b.send(ctx, expired(gone))
			return false
		}
		if !b.send(ctx, event) || event.Type == watch.Error && gone != nil {
			return false
		}
	}
	return true
}

func (b *believed) send(ctx context.Context, event watch.Event) bool {
	select {
	case b.result <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// expired is the event after which a reflector lists.
func expired(why error) watch.Event {
	return watch.Event{Type: watch.Error, Object: &apierrors.NewResourceExpired(why.Error()).ErrStatus}
}

func (b *believed) Stop() { b.stop() }

func (b *believed) ResultChan() <-chan watch.Event { return b.result }
