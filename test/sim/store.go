package sim

import (
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// table has the objects of one type in a destination's apiserver, with the real one's rules for versions and
// preconditions. Objects are immutable once stored.
type table[T writes.Object] struct {
	d       *dest
	name    string
	objects map[string]T
	// log is what a watch of the broker's objects delivers.
	log []told[T]
	// written is called for each change, before it takes effect.
	written func(name string, before, after T, by writer)
}

type told[T writes.Object] struct {
	name   string
	object T
	gone   bool
}

// writer is the author of a write.
type writer int

const (
	byBroker  writer = iota
	byLate           // a broker that has crashed or been deposed since it sent the write
	bySomeone        // a person, or another program
)

func newTable[T writes.Object](d *dest, name string, written func(string, T, T, writer)) *table[T] {
	return &table[T]{d: d, name: name, objects: map[string]T{}, written: written}
}

func (t *table[T]) resource() schema.GroupResource { return schema.GroupResource{Resource: t.name} }

func ours[T writes.Object](o T) bool {
	return o.GetLabels()[naming.LabelManagedBy] == naming.ManagedByBroker
}

// read returns the object under a name.
func (t *table[T]) read(name string) (T, error) {
	o, there := t.objects[name]
	if !there {
		return o, apierrors.NewNotFound(t.resource(), name)
	}
	return o, nil
}

// put stores o, which it then owns.
func (t *table[T]) put(name string, o T, by writer) T {
	t.d.version++
	o.SetResourceVersion(strconv.Itoa(t.d.version))
	before, was := t.objects[name]
	t.written(name, before, o, by)
	t.objects[name] = o
	if ours(o) {
		t.log = append(t.log, told[T]{name, o, false})
	} else if was && ours(before) {
		t.log = append(t.log, told[T]{name, before, true})
	}
	return o
}

func (t *table[T]) create(o T, by writer) (T, error) {
	name := o.GetName()
	if _, there := t.objects[name]; there {
		return o, apierrors.NewAlreadyExists(t.resource(), name)
	}
	out := o.DeepCopyObject().(T)
	t.d.uids++
	out.SetUID(types.UID(strconv.Itoa(t.d.uids)))
	return t.put(name, out, by), nil
}

func (t *table[T]) update(o T, by writer) (T, error) {
	name := o.GetName()
	have, there := t.objects[name]
	switch {
	case !there:
		return o, apierrors.NewNotFound(t.resource(), name)
	case o.GetResourceVersion() != have.GetResourceVersion() || o.GetUID() != have.GetUID():
		return o, apierrors.NewConflict(t.resource(), name, nil)
	}
	return t.put(name, o.DeepCopyObject().(T), by), nil
}

func (t *table[T]) delete(o T, by writer) error {
	name := o.GetName()
	have, there := t.objects[name]
	switch {
	case !there:
		return apierrors.NewNotFound(t.resource(), name)
	case o.GetResourceVersion() != have.GetResourceVersion() || o.GetUID() != have.GetUID():
		return apierrors.NewConflict(t.resource(), name, nil)
	}
	t.d.version++
	var none T
	t.written(name, have, none, by)
	delete(t.objects, name)
	if ours(have) {
		t.log = append(t.log, told[T]{name, have, true})
	}
	return nil
}
