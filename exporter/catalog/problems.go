package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var Reasons = finding.Of(finding.Exports)

type problemKey struct {
	key    Key
	reason finding.Code
}

func byText(a, b Key) int { return cmp.Compare(a.String(), b.String()) }

// setProblem records the fault of an object; an empty text clears it.
func (c *Catalog) setProblem(key Key, reason finding.Code, text string) {
	at := problemKey{key, reason}
	if c.problems[at] != text && key.Kind == semaphorev1.Kind_KIND_SERVICE {
		c.offersVersion++ // offers quote it
	}
	if text == "" {
		delete(c.problems, at)
		return
	}
	c.problems[at] = text
}

func (c *Catalog) forgetProblems(key Key) {
	for _, reason := range Reasons {
		c.setProblem(key, reason, "")
	}
}

// Findings are the objects that are not, or only in part, exported, and why, by the reason.
func (c *Catalog) Findings() (found []finding.Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := map[finding.Code][]Key{}
	for p := range c.problems {
		keys[p.reason] = append(keys[p.reason], p.key)
	}
	for _, reason := range Reasons {
		all := keys[reason]
		if len(all) == 0 {
			continue
		}
		slices.SortFunc(all, byText)
		var lines []string
		for _, key := range all {
			lines = append(lines, fmt.Sprintf("%s: %s", key, c.problems[problemKey{key, reason}]))
		}
		found = append(found, finding.Lines(reason, "", lines)...)
	}
	if n := len(c.locations.outside); n > 0 {
		lines := c.outsideProblems()
		found = append(found, finding.New(finding.IPOutsideNode, "", n, lines...).Full(lines...))
	}
	return found
}

func (c *Catalog) CountProblems() map[finding.Code]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[finding.Code]int{}
	if n := len(c.locations.outside); n > 0 {
		out[finding.IPOutsideNode] = n
	}
	for p := range c.problems {
		out[p.reason]++
	}
	return out
}
