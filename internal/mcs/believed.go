package mcs

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// maxRead bounds the events that one question about the definitions is for.
const maxRead = 1024

// lookInterval is the time between two questions about the definitions while a watch is open: one of them may go
// without an event of the watch, as its objects are others, or as there are none.
const lookInterval = 5 * time.Second

// believed passes events on until the API is not served any more: until one deletes an object then, or a look finds
// it. It ends with an error after which a reflector lists. It asks once for all deletions that came before it asks.
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
	go b.look(ctx)
	go b.pass(ctx)
	return b
}

// receive reads events while others are asked about.
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

// look asks for the definitions at times, until they are gone. An apiserver that does not answer says nothing of them.
func (b *believed) look(ctx context.Context) {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
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

// passAll passes an event on, and those that are there already. It returns whether there may be more.
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

// Stop implements watch.Interface.
func (b *believed) Stop() { b.stop() }

// ResultChan implements watch.Interface.
func (b *believed) ResultChan() <-chan watch.Event { return b.result }
