package debug

import (
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxChanges bounds the changes of one answer; the others are counted.
const maxChanges = 500

// The actions of what a preview says; see PreviewChange.
const (
	Accept   = "accept"
	Reject   = "reject"
	Select   = "select"
	Export   = "export"
	Changed  = "change"
	Withdraw = "withdraw"
	Refuse   = "refuse"
	Create   = "create"
	Delete   = "delete"
	Clash    = "clash"
	Note     = "note"
)

// Changes is the answer of a preview, which is bounded.
type Changes struct{ semaphorev1.PreviewResponse }

// Add adds a change, whose texts may be of any origin.
func (c *Changes) Add(action, object, cluster string, code finding.Code, text string) {
	if len(c.Changes) == maxChanges {
		c.More++
		return
	}
	c.Changes = append(c.Changes, &semaphorev1.PreviewChange{Action: action, Object: finding.Clean(object),
		Cluster: finding.Clean(cluster), Code: string(code), Text: finding.Clean(text)})
}

// Problems adds the lines of findings that are not among those of before.
func (c *Changes) Problems(action, cluster string, before, now []finding.Finding) {
	had := map[string]bool{}
	for _, f := range before {
		for _, line := range f.Lines {
			had[string(f.Code)+line] = true
		}
	}
	for _, f := range now {
		for _, line := range f.Lines {
			if !had[string(f.Code)+line] {
				c.Add(action, "", cluster, f.Code, line)
			}
		}
	}
}
