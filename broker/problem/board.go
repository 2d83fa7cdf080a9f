package problem

import (
	"slices"
	"sync"
)

// Board shows the newest summary of each remote. Its methods may be called from any goroutine, and wait for nobody. The zero value is empty.
type Board struct {
	summaries sync.Map // of *Summary, by cluster
}

// Publish replaces the summaries of some remotes.
func (b *Board) Publish(changed map[string]*Summary) {
	for cluster, s := range changed {
		b.summaries.Store(cluster, s)
	}
}

// Take shows what a set has now, and warns of what came. Of one topic one Event is written for a while.
func (b *Board) Take(s *Set, warn func(cluster, topic, reason, note string)) {
	added, changed := s.Take()
	b.Publish(changed)
	for _, is := range added {
		warn(is.Cluster, is.Reason+" "+is.Object+" "+is.Code, is.Reason, is.Text)
	}
}

// Of is the summary of a remote. It must not be changed.
func (b *Board) Of(cluster string) *Summary {
	if s, ok := b.summaries.Load(cluster); ok {
		return s.(*Summary)
	}
	return &Summary{}
}

// Lines are those of all remotes, in the order of their names.
func (b *Board) Lines() (lines []string) {
	var clusters []string
	for cluster := range b.summaries.Range {
		clusters = append(clusters, cluster.(string))
	}
	slices.Sort(clusters)
	for _, cluster := range clusters {
		lines = append(lines, b.Of(cluster).Lines(cluster)...)
	}
	return lines
}
