package apply

import (
	"sync"
	"time"
)

// Changes that come no faster than this are each written at once. The rates are above what is promised (50 a second in one
// object, 200 in all). The bursts are what comes in a clump when a busy machine delivers nothing for a sixth of a second: a
// clump of a trickle must not count as a burst, and one that did has to be forgotten soon.
const (
	objectRate, objectBurst = 60, 12
	allRate, allBurst       = 250, 36
)

// The apiserver is the bottleneck when so many writes of different objects are under way at once, and writes take so many
// times what one takes that is under way alone. So a machine that is slow for other reasons is no bottleneck: fewer writes
// of ours would not make it faster.
const (
	manyUnderWay = 4
	slowdown     = 3
)

// How far apart the writes of one object are at least in a burst.
const (
	// minSpacing is what a change waits for at most that must not wait.
	minSpacing = 100 * time.Millisecond
	// maxSpacing is what others wait for at most, while more and more of them come.
	maxSpacing = 500 * time.Millisecond
	// The burst is over when nothing has changed for twice as long as there was between changes at most lately; within these
	// bounds.
	leastQuiet, mostQuiet = 25 * time.Millisecond, 50 * time.Millisecond
	// askEvery is how often it is asked whether the burst is over, for each object that waits: a thousand times a second,
	// however many do.
	askEvery = time.Millisecond
)

// pace decides when the objects of one type are written. As long as changes come one by one, each is written at once, and what
// comes while a write is under way goes with the next. In a burst, where each write would carry one change or two and keep
// the apiserver from what causes the burst, the writes of an object are first minSpacing apart and then ever more, as long as
// each carries several changes. The end of a burst is seen by silence: of all objects, as a burst of pods is mostly one of
// several sets, each of which is silent now and then. While the apiserver is the bottleneck, an object is not written for
// as long after a write as the write took, so that half as many writes are under way.
//
// It keeps the state; decide decides.
type pace struct {
	mu      sync.Mutex
	objects map[string]*pacedObject
	all     traffic
}

// traffic is what all objects of a type have in common.
type traffic struct {
	meter
	// changed is when the last change of any object came, and gap the longest time between two of the last few hundred.
	changed time.Time
	gap     time.Duration
	// waiting is how many objects have changes that are not written.
	waiting int
	// underWay is how many writes are under way; only is the object of the one that has been alone from its beginning.
	underWay int
	only     *pacedObject
	// took is how long the last few writes took, and alone how long those of them took that were alone.
	took, alone time.Duration
}

// pacedObject is the pace of one object.
type pacedObject struct {
	meter
	// spacing after the write that began at written and lasted so long, if there was one.
	written         time.Time
	lasted, spacing time.Duration
	// changes since it was last taken to be written, and how many were then.
	changes, taken int
	// began is when the write under way began; zero for none.
	began time.Time
}

// meter says whether more comes than a rate, by a bucket that leaks at that rate: a burst begins when the bucket is full. It
// holds a quarter more, and the burst is over when three quarters are left.
type meter struct {
	level float64
	at    time.Time
	over  bool
}

// add notes a change, of which rate may come in a second and burst more at once.
func (m *meter) add(now time.Time, rate, burst float64) {
	m.leak(now, rate, burst)
	m.level = min(m.level+1, burst*5/4)
	m.over = m.over || m.level > burst
}

func (m *meter) leak(now time.Time, rate, burst float64) {
	if d := now.Sub(m.at); d > 0 {
		m.level, m.at = max(m.level-rate*d.Seconds(), 0), now
	}
	m.over = m.over && m.level > burst*3/4
}

// bottleneck says whether the apiserver takes writes more slowly because of their number.
func (t *traffic) bottleneck() bool {
	return t.underWay >= manyUnderWay && t.alone > 0 && t.took > slowdown*t.alone
}

// average moves an average of about eight by one more.
func average(of *time.Duration, took time.Duration) {
	if *of == 0 {
		*of = took
	}
	*of += (took - *of) / 8
}

// decide is for how long yet an object is not to be written; 0 for it is, now. urgent says whether an address in it has
// to leave: that waits no longer than minSpacing, and in no case longer than one that joins.
func decide(now time.Time, o pacedObject, all traffic, urgent bool) time.Duration {
	burst := o.over || all.over
	if o.written.IsZero() || !burst && !all.bottleneck() {
		return 0
	}
	spacing := max(o.spacing, minSpacing)
	if !burst {
		spacing = min(2*o.lasted, maxSpacing)
	}
	if urgent && spacing > minSpacing {
		spacing = minSpacing
	}
	wait := o.written.Add(spacing).Sub(now)
	if o.changes > 0 {
		silent := all.changed.Add(min(max(leastQuiet, 2*all.gap), mostQuiet)).Sub(now)
		if silent > 0 {
			silent = max(silent, time.Duration(all.waiting)*askEvery)
		}
		wait = min(wait, silent)
	}
	return max(wait, 0)
}

func newPace() *pace {
	return &pace{objects: map[string]*pacedObject{}, all: traffic{gap: mostQuiet}}
}

// change notes that an object is to change.
func (p *pace) change(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.gap = max(p.all.gap-p.all.gap/256, min(now.Sub(p.all.changed), mostQuiet))
	p.all.changed = now
	p.all.add(now, allRate, allBurst)
	if o := p.objects[name]; o != nil {
		if o.changes == 0 {
			p.all.waiting++
		}
		o.changes++
		o.add(now, objectRate, objectBurst)
	}
}

// wait is for how long yet the object is not to be written. With 0 it is to be written now, with all changes so far.
// urgent is asked only where that matters.
func (p *pace) wait(name string, now time.Time, urgent func() bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	if o == nil {
		return 0
	}
	p.all.leak(now, allRate, allBurst)
	o.leak(now, objectRate, objectBurst)
	wait := decide(now, *o, p.all, false)
	if wait > 0 && max(o.spacing, 2*o.lasted) > minSpacing {
		p.mu.Unlock() // urgent has locks of its own
		hurry := urgent()
		p.mu.Lock()
		if o = p.objects[name]; o == nil {
			return 0
		}
		wait = decide(now, *o, p.all, hurry)
	}
	if wait == 0 {
		p.take(o)
	}
	return wait
}

// writing notes that a write of an object begins.
func (p *pace) writing(name string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	if o == nil {
		o = &pacedObject{}
		p.objects[name] = o
	}
	o.began = now
	p.all.underWay++
	p.all.only = nil
	if p.all.underWay == 1 {
		p.all.only = o
	}
}

// wrote notes how the write of an object ended.
func (p *pace) wrote(name string, now time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.objects[name]
	if o == nil || o.began.IsZero() {
		return
	}
	p.all.underWay--
	began, took := o.began, now.Sub(o.began)
	o.began = time.Time{}
	if !ok {
		return // a refusal says nothing of how long a write takes
	}
	average(&p.all.took, took)
	if p.all.only == o {
		average(&p.all.alone, took)
		p.all.alone = min(p.all.alone, 2*took) // the first ones, on new connections, take long
	}
	if o.taken > 1 && (o.over || p.all.over) && began.Sub(o.written) < 2*maxSpacing {
		o.spacing = min(max(o.spacing, minSpacing)*5, maxSpacing)
	} else {
		o.spacing = minSpacing
	}
	o.written, o.lasted = began, took
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
func (p *pace) take(o *pacedObject) {
	if o.changes > 0 {
		p.all.waiting--
	}
	o.changes, o.taken = 0, o.changes
}
