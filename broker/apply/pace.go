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
	// Nothing is waited for any longer when nothing has changed for twice as long as there was between changes at most lately;
	// within these bounds.
	leastQuiet, mostQuiet = 25 * time.Millisecond, 50 * time.Millisecond
	// lookEvery is how often it is looked whether nothing changes any more, for each object that waits: a thousand looks a
	// second, however many do.
	lookEvery = time.Millisecond
)

// pace spreads the writes of each object. A change of an object that was not written lately is written at once. In a
// burst, where each write would carry one change or two, and the apiserver would be kept from what causes the burst, the
// writes are first minSpacing apart and then ever more, as long as each carries several changes. The end of a burst is
// seen by silence: of all objects, as a burst of pods is mostly one of several sets, each of which is silent now and then.
type pace struct {
	mu      sync.Mutex
	objects map[string]*paced
	// changed is when the last change of any object came, and gap the longest time between two of the last few hundred.
	changed time.Time
	gap     time.Duration
	// waiting is how many objects have changes that are not written.
	waiting int
}

// paced is the pace of one object.
type paced struct {
	// spacing after the write at written.
	written time.Time
	spacing time.Duration
	// changes since it was last looked at to be written, and how many were then.
	changes, taken int
}

func newPace() *pace { return &pace{objects: map[string]*paced{}, gap: mostQuiet} }

// change notes that an object is to change.
func (p *pace) change(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap = max(p.gap-p.gap/256, min(now.Sub(p.changed), mostQuiet))
	p.changed = now
	if o := p.objects[name]; o != nil {
		if o.changes == 0 {
			p.waiting++
		}
		o.changes++
	}
}

// wait is for how long yet the object is not to be written. With 0 it is to be written now, with all changes so far.
// urgent is asked only where that matters.
func (p *pace) wait(name string, now time.Time, urgent func() bool) time.Duration {
	p.mu.Lock()
	o := p.objects[name]
	if o == nil {
		p.mu.Unlock()
		return 0
	}
	due, least := o.written.Add(o.spacing), o.written.Add(minSpacing)
	p.mu.Unlock() // urgent has locks of its own
	if due.After(now) && due.After(least) && urgent() {
		due = least
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := due.Sub(now)
	if o.changes > 0 {
		silent := p.changed.Add(min(max(leastQuiet, 2*p.gap), mostQuiet)).Sub(now)
		if silent > 0 {
			silent = max(silent, time.Duration(p.waiting)*lookEvery)
		}
		wait = min(wait, silent)
	}
	if wait > 0 {
		return wait
	}
	p.take(o)
	return 0
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
	if o.taken > 1 && now.Sub(o.written) < 2*maxSpacing {
		o.spacing = min(o.spacing*5/2, maxSpacing)
	} else {
		o.spacing = minSpacing
	}
	o.written = now
}

// gone forgets an object.
func (p *pace) gone(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.objects[name]; o != nil {
		p.take(o)
		delete(p.objects, name)
	}
}

// take has an object wait no longer.
func (p *pace) take(o *paced) {
	if o.changes > 0 {
		p.waiting--
	}
	o.changes, o.taken = 0, o.changes
}
