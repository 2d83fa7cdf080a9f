package program

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of the log, so that neither a remote nor a retry can fill a disk.
const (
	// A line with the same text about the same object is written lineBurst times at once, and then each lineEvery.
	lineBurst = 10
	lineEvery = 10 * time.Second
	// placeBurst and placeRate, in lines per second, bound all lines of one place in the code: a remote may choose the
	// names of the objects. The burst is enough for a list of what a start finds, with a line for each object.
	placeBurst, placeRate = 20_000, 1
	// keyLength bounds each text of a line that is remembered: a remote may choose them.
	keyLength = 200
	// linesMost bounds how many lines of a place are remembered. Further ones have the bound of the place alone.
	linesMost = 256
)

// limited is a handler that omits lines above the bounds. The value of a line's first attribute names its subject.
// Debug messages have no bound, because an operator requested them.
type limited struct {
	slog.Handler
	bounds *bounds
	// with is the value of the first attribute of the logger itself.
	with string
}

// bounds are the state of a limited handler, and of those with attributes that are derived from it.
type bounds struct {
	mu     sync.Mutex
	places map[uintptr]*place
}

type place struct {
	all   *rate.Limiter
	lines map[line]*rate.Limiter
	// omitted counts the lines that were left out since the last that was written.
	omitted int
}

type line struct{ text, with, about string }

// cut shortens a text that becomes part of a key.
func cut(text string) string {
	if len(text) <= keyLength {
		return text
	}
	return strings.Clone(text[:keyLength])
}

func newLimited(h slog.Handler) slog.Handler {
	return &limited{Handler: h, bounds: &bounds{places: map[uintptr]*place{}}}
}

func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		l := line{text: cut(r.Message), with: h.with}
		r.Attrs(func(a slog.Attr) bool {
			l.about = cut(a.Value.String())
			return false
		})
		now := r.Time
		if now.IsZero() {
			now = time.Now()
		}
		may, omitted := h.bounds.take(r.PC, l, now)
		if !may {
			return nil
		}
		if omitted > 0 {
			r.AddAttrs(slog.Int("notLogged", omitted))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := h.with
	if with == "" && len(attrs) > 0 {
		with = cut(attrs[0].Value.String())
	}
	return &limited{Handler: h.Handler.WithAttrs(attrs), bounds: h.bounds, with: with}
}

func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: h.Handler.WithGroup(name), bounds: h.bounds, with: h.with}
}

// take reports whether a line may be written, and how many lines of its place were omitted before it.
func (b *bounds) take(at uintptr, l line, now time.Time) (may bool, omitted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.places[at]
	if p == nil {
		p = &place{all: rate.NewLimiter(placeRate, placeBurst), lines: map[line]*rate.Limiter{}}
		b.places[at] = p
	}
	// The bound of the line comes first: a repeated line must not use up the room of others in its place.
	if limit := p.limitOf(l, now); limit != nil && !limit.AllowN(now, 1) || !p.all.AllowN(now, 1) {
		p.omitted++
		return false, 0
	}
	omitted, p.omitted = p.omitted, 0
	return true, omitted
}

// limitOf returns the limit of a line; nil if too many lines are remembered.
func (p *place) limitOf(l line, now time.Time) *rate.Limiter {
	limit := p.lines[l]
	if limit != nil {
		return limit
	}
	if len(p.lines) >= linesMost {
		for other, limit := range p.lines {
			if limit.TokensAt(now) >= lineBurst { // as a new one
				delete(p.lines, other)
			}
		}
	}
	if len(p.lines) >= linesMost {
		return nil
	}
	limit = rate.NewLimiter(rate.Every(lineEvery), lineBurst)
	p.lines[l] = limit
	return limit
}
