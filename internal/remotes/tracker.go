package remotes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Definition is the state of the CustomResourceDefinition of RemoteClusters.
type Definition struct {
	// UID is empty if there is no definition.
	UID types.UID
	// Terminating is set while it is being deleted: the apiserver deletes all objects first.
	Terminating bool
}

// Tracker knows which objects exist. The deletion of an object is an operator's order. The loss of all objects with
// their definition is not: the objects stay in effect, until one of that name exists again, and is deleted.
type Tracker struct {
	objects Objects
	// lost are the objects that disappeared with their definition.
	lost map[string]bool
}

// NewTracker returns a tracker that knows the objects in effect that an earlier process stored; each object stays until
// the resource is listed.
func NewTracker(before Objects) *Tracker {
	t := &Tracker{objects: Objects{}, lost: map[string]bool{}}
	maps.Copy(t.objects, before)
	return t
}

// Objects returns the existing and the lost ones.
func (t *Tracker) Objects() Objects { return maps.Clone(t.objects) }

// Listed records a complete list that was made under a definition.
func (t *Tracker) Listed(d Definition, list []Object) {
	there := map[string]bool{}
	for _, o := range list {
		there[o.Name] = true
		t.Put(o)
	}
	for name := range t.objects {
		if !there[name] {
			t.Deleted(name, d)
		}
	}
}

func (t *Tracker) Put(o Object) {
	t.objects[o.Name] = o
	delete(t.lost, o.Name)
}

// Deleted records the disappearance of an object; d is the definition as it was read after that.
func (t *Tracker) Deleted(name string, d Definition) {
	o, ok := t.objects[name]
	switch {
	case !ok:
	case d.UID == "" || d.Terminating || o.Definition != d.UID:
		t.lost[name] = true
	default:
		delete(t.objects, name)
		delete(t.lost, name)
	}
}

// Problem names the lost objects; empty for none.
func (t *Tracker) Problem() string {
	if len(t.lost) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(t.lost))
	return fmt.Sprintf("RemoteClusters %s disappeared with their CustomResourceDefinition: they stay in effect; "+
		"create them again to change them, and delete one then to remove it", strings.Join(names, ", "))
}
