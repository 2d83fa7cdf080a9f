package apply

import (
	"sync"
	"time"
)

// How far apart the writes of one object are at least, where it is written that often.
const (
	// minSpacing is what a change waits for at most that must not wait, and any change that comes alone.
	minSpacing = 100 * time.Millisecond
	// maxSpacing is what others wait for at most, while more and more of them come.
	maxSpacing = 500 * time.Millisecond
	// quiet is for how long no other has come when they wait no longer.
	quiet = 75 * time.Millisecond
)

// pace spreads the writes of each object. A change of an object that was not written lately is written at once. In a
// burst, where each write would carry one change or two, and the apiserver would be kept from what causes the burst, the
// writes are first minSpacing apart and then ever more, as long as each carries several changes. The end of a burst is
// seen by its silence.
type pace struct {
	mu      sync.Mutex
	objects map[string]*paced
}

// paced is the pace of one object.
type paced struct {
	// spacing after the write at written.
	written time.Time
	spacing time.Duration
	// changes since then, and when the last one came.
	changes int
	changed time.Time
}

func newPace() *pace { return &pace{objects: map[string]*paced{}} }

// change notes that an object is to change.
func (p *pace) change(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.objects[name]; o != nil {
		o.changes++
		o.changed = now
	}
}

// wait is for how long yet the object is not to be written; urgent is asked only where that matters.
func (p *pace) wait(name string, now time.Time, urgent func() bool) time.Duration {
	p.mu.Lock()
	o := p.objects[name]
	if o == nil {
		p.mu.Unlock()
		return 0
	}
	due := o.due()
	least := o.written.Add(minSpacing)
	p.mu.Unlock()
	if due.After(now) && due.After(least) && urgent() {
		due = least
	}
	return max(0, due.Sub(now))
}

// due is when the object may be written.
func (o *paced) due() time.Time {
	due, silent := o.written.Add(o.spacing), o.changed.Add(quiet)
	if !o.changed.IsZero() && silent.Before(due) {
		due = silent
	}
	return due
}

// wrote notes a write, which is the first after a while when another object of the name is not remembered.
func (p *pace) wrote(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	if o == nil {
		o = &paced{}
		p.objects[name] = o
	}
	if o.changes > 1 && now.Sub(o.written) < 2*maxSpacing {
		o.spacing = min(2*o.spacing, maxSpacing)
	} else {
		o.spacing = minSpacing
	}
	o.written, o.changes, o.changed = now, 0, time.Time{}
}

// gone forgets an object.
func (p *pace) gone(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.objects, name)
}
