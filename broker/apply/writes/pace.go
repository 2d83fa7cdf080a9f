package writes

import "time"

// Changes at up to these rates are written one by one. The rates are above the promised ones (50 a second in one
// object, 200 in all). The bursts absorb what arrives together after a busy machine delivered nothing for a sixth of a
// second. That must not count as a burst, and if it does, the burst must end soon.
const (
	objectRate, objectBurst = 60, 12
	allRate, allBurst       = 250, 36
)

// The apiserver counts as the bottleneck when at least this many writes of different objects are in flight, and a write
// takes this many times as long as a lone one. On a machine that is slow for other reasons lone writes are slow too,
// and fewer writes would not make it faster.
const (
	manyUnderWay = 4
	slowdown     = 3
)

// The spacing of writes of one object.
const (
	// burstSpacing is that during a burst, and urgentSpacing that of an urgent change.
	burstSpacing, urgentSpacing = 180 * time.Millisecond, 100 * time.Millisecond
	// maxSpacing bounds that of writes that each take long.
	maxSpacing = 500 * time.Millisecond
	// The burst is over when nothing has changed for quiet.
	quiet = 40 * time.Millisecond
)

// pace decides when the objects of one type are written. While changes arrive one by one, each is written immediately,
// and those that arrive during a write go with the next one. In a burst, each write would carry one or two changes and
// delay the apiserver's work that causes the burst. So the writes of an object are burstSpacing apart. The end of a
// burst is a time without changes of any object, because a burst of pods usually belongs to several sets, each of which
// pauses now and then. While the apiserver is the bottleneck, an object is not written for as long after a write as the
// write took, which halves the writes in flight.
//
// pace keeps the state, without a lock; decide decides.
type pace struct {
	objects map[string]*pacedObject
	all     traffic
}

// traffic is the state that all objects of a type share.
type traffic struct {
	meter
	// changed is the time of the last change of any object.
	changed time.Time
	// underWay counts the writes in flight; only is the object of a write that has been alone since its start.
	underWay int
	only     *pacedObject
	// took is the average duration of the last writes, and alone that of the last writes that were alone.
	took, alone time.Duration
}

type pacedObject struct {
	meter
	// written is when the last write began, and lasted how long it took.
	written time.Time
	lasted  time.Duration
	// changes counts those since the last write was taken.
	changes int
	// began is when the write in flight began; zero for none.
	began time.Time
}

// meter is a leaky bucket that reports whether events arrive faster than a rate: a burst begins when the bucket is
// full. It holds a quarter more, and the burst is over at three quarters.
type meter struct {
	level float64
	at    time.Time
	over  bool
}

// add records a change; rate per second may arrive, and burst more at one time.
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

// bottleneck reports whether the number of writes slows the apiserver.
func (t *traffic) bottleneck() bool {
	return t.underWay >= manyUnderWay && t.alone > 0 && t.took > slowdown*t.alone
}

// average adds one value to a moving average of about eight.
func average(of *time.Duration, took time.Duration) {
	if *of == 0 {
		*of = took
	}
	*of += (took - *of) / 8
}

// decide returns how long an object must wait before it is written; 0 means that it is written now. urgent means that
// an address must be removed from the object: such a change waits at most urgentSpacing, and never longer than an added
// address.
func decide(now time.Time, o pacedObject, all traffic, urgent bool) time.Duration {
	burst := o.over || all.over
	if o.written.IsZero() || !burst && !all.bottleneck() {
		return 0
	}
	spacing := burstSpacing
	if !burst {
		spacing = min(2*o.lasted, maxSpacing)
	}
	if urgent {
		spacing = min(spacing, urgentSpacing)
	}
	wait := o.written.Add(spacing).Sub(now)
	if o.changes > 0 {
		wait = min(wait, all.changed.Add(quiet).Sub(now))
	}
	return max(wait, 0)
}

func newPace() *pace {
	return &pace{objects: map[string]*pacedObject{}}
}

func (p *pace) change(name string, now time.Time) {
	p.all.changed = now
	p.all.add(now, allRate, allBurst)
	if o := p.objects[name]; o != nil {
		o.changes++
		o.add(now, objectRate, objectBurst)
	}
}

// wait returns how long the object must wait, and how long if it is urgent.
func (p *pace) wait(name string, now time.Time) (wait, urgent time.Duration) {
	o := p.objects[name]
	if o == nil {
		return 0, 0
	}
	p.all.leak(now, allRate, allBurst)
	o.leak(now, objectRate, objectBurst)
	return decide(now, *o, p.all, false), decide(now, *o, p.all, true)
}

// taken records that the object is written now, with all changes so far.
func (p *pace) taken(name string) {
	if o := p.objects[name]; o != nil {
		o.changes = 0
	}
}

func (p *pace) writing(name string, now time.Time) {
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

func (p *pace) wrote(name string, now time.Time, ok bool) {
	o := p.objects[name]
	if o == nil || o.began.IsZero() {
		return
	}
	p.all.underWay--
	began, took := o.began, now.Sub(o.began)
	o.began = time.Time{}
	if !ok {
		return // a refusal has no meaningful duration
	}
	average(&p.all.took, took)
	if p.all.only == o {
		average(&p.all.alone, took)
		p.all.alone = min(p.all.alone, 2*took) // the first writes, on new connections, are slow
	}
	o.written, o.lasted = began, took
}

func (p *pace) forget(name string) { delete(p.objects, name) }
