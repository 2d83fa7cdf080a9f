package apply

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Findings returns the objects that differ from the desired ones: names that other objects have, writes that the
// apiserver rejects, and objects that another writer keeps changing. There is one finding for each code and cluster,
// with the number of objects and the first ones.
func (o *Objects[T]) Findings() (found []finding.Finding) {
	type key struct {
		code    finding.Code
		cluster string
	}
	at := map[key]int{}
	for _, p := range o.loop.Problems() {
		k := key{finding.WriteFailed, o.machine.FailingOf(p.Key)}
		if c := (writes.NotOurs{}); errors.As(p.Err, &c) {
			k.code = finding.NameTaken
		}
		i, ok := at[k]
		if !ok {
			i = len(found)
			at[k] = i
			found = append(found, finding.Finding{Code: k.code, Cluster: finding.Clean(k.cluster), Since: p.Since})
		}
		f := &found[i]
		if p.Since.Before(f.Since) {
			f.Since = p.Since
		}
		if f.Count++; f.Count <= finding.Shown {
			line := fmt.Sprintf("%s %s: %v (since %s)", o.kind.Name, p.Key, p.Err, p.Since.UTC().Format(time.RFC3339))
			f.First, f.Lines = append(f.First, finding.Clean(line)), append(f.Lines, line)
		}
	}
	for i := range found {
		if f := &found[i]; f.Count > finding.Shown {
			f.Lines = append(f.Lines, fmt.Sprintf("%d more objects of type %s of cluster %s could not be written",
				f.Count-finding.Shown, o.kind.Name, cmp.Or(f.Cluster, "unknown")))
		}
	}
	shown := func(code finding.Code, lines []string, are string) {
		of := finding.Lines(code, "", lines)
		if more := len(lines) - finding.Shown; more > 0 {
			of[0].Lines = append(lines[:finding.Shown:finding.Shown],
				fmt.Sprintf("%d more objects of type %s are %s", more, o.kind.Name, are))
		}
		found = append(found, of...)
	}
	shown(finding.Contested, o.machine.Contests(time.Now()), "changed by others")
	shown(finding.Leaving, o.machine.Leaving(time.Now()), "deleted and kept by finalizers")
	if o.kind.unread != nil {
		found = append(found, finding.Lines(finding.Unreadable, "", o.kind.unread.Lines())...)
	}
	return found
}
