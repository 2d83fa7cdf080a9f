package waiting

// Lines are items that wait in lines of their owners. Owners take turns, an item at a time, so that one with thousands
// of items delays an item of another owner by one. The zero value is empty.
//
// It is not safe for concurrent use.
type Lines[T any] struct {
	of map[string][]T
	// order lists the owners with a line, in the order of their turns.
	order []string
}

func (l *Lines[T]) Push(owner string, item T) {
	line, there := l.of[owner]
	if l.of == nil {
		l.of = map[string][]T{}
	}
	if l.of[owner] = append(line, item); !there {
		l.order = append(l.order, owner)
	}
}

// Pop takes the first item of the owner whose turn it is, and returns false if there is none. An owner that rests has
// no turn, and an item that is gone is dropped.
func (l *Lines[T]) Pop(rests func(owner string) bool, gone func(T) bool) (owner string, item T, ok bool) {
	var none T
	for range len(l.order) {
		owner = l.order[0]
		l.order = l.order[1:]
		line := l.of[owner]
		for !ok && len(line) > 0 && !rests(owner) {
			item, ok = line[0], !gone(line[0])
			line[0] = none
			line = line[1:]
		}
		if l.of[owner] = line; len(line) > 0 {
			l.order = append(l.order, owner)
		} else {
			delete(l.of, owner)
		}
		if ok {
			return owner, item, true
		}
	}
	return "", none, false
}
