package debug

import (
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxChanges bounds the changes of one answer; the others are counted.
const maxChanges = 500

// The actions of a preview.
const (
	Accept   = semaphorev1.PreviewAction_PREVIEW_ACTION_ACCEPT
	Reject   = semaphorev1.PreviewAction_PREVIEW_ACTION_REJECT
	Select   = semaphorev1.PreviewAction_PREVIEW_ACTION_SELECT
	Export   = semaphorev1.PreviewAction_PREVIEW_ACTION_EXPORT
	Changed  = semaphorev1.PreviewAction_PREVIEW_ACTION_CHANGE
	Withdraw = semaphorev1.PreviewAction_PREVIEW_ACTION_WITHDRAW
	Refuse   = semaphorev1.PreviewAction_PREVIEW_ACTION_REFUSE
	Create   = semaphorev1.PreviewAction_PREVIEW_ACTION_CREATE
	Delete   = semaphorev1.PreviewAction_PREVIEW_ACTION_DELETE
	Clash    = semaphorev1.PreviewAction_PREVIEW_ACTION_CLASH
	Note     = semaphorev1.PreviewAction_PREVIEW_ACTION_NOTE
)

// Changes is the answer of a preview, which is bounded.
type Changes struct{ semaphorev1.PreviewResponse }

// Add adds a change, whose texts may be of any origin.
func (c *Changes) Add(action semaphorev1.PreviewAction, object, cluster string, code finding.Code, text string) {
	if len(c.Changes) == maxChanges {
		c.More++
		return
	}
	c.Changes = append(c.Changes, &semaphorev1.PreviewChange{Action: action, Object: finding.Clean(object),
		Cluster: finding.Clean(cluster), Code: string(code), Text: finding.Clean(text)})
}

// Problems adds the lines of findings that are not among those of before.
func (c *Changes) Problems(action semaphorev1.PreviewAction, cluster string, before, now []finding.Finding) {
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
