package show

import (
	"fmt"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Finding is one result of a check, good or bad.
type Finding struct {
	// Code is stable, for programs; its Anchor has cause and fix. It determines Level.
	Code  finding.Code  `json:"code"`
	Level finding.Level `json:"level"`
	// Subject is the checked object: a file, a name, an address.
	Subject  string `json:"subject"`
	Evidence string `json:"evidence"`
	// Side is who must act: the name of a cluster, "network", or empty for none.
	Side string `json:"side,omitempty"`
	// Fix is one command, or one sentence if no command helps.
	Fix string `json:"fix,omitempty"`
}

// Found is a finding with the level of its code. Side and fix may be empty.
func Found(code finding.Code, side, subject, fix, evidence string, args ...any) Finding {
	return Finding{Code: code, Level: code.Level(), Side: side, Subject: subject, Fix: fix,
		Evidence: fmt.Sprintf(evidence, args...)}
}

// Blocker is a finding that keeps a verb from writing to the cluster of a context, whatever its code is elsewhere.
func Blocker(context string, code finding.Code, subject, fix, evidence string, args ...any) Finding {
	f := Found(code, context, context+": "+subject, fix, evidence, args...)
	f.Level = finding.Error
	return f
}
