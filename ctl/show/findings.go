package show

import "github.com/kube-semaphore/semaphore/internal/finding"

// Finding is one result of a check, good or bad.
type Finding struct {
	// Code is stable, for programs; docs/certificates.md lists them all. It determines Level.
	Code  finding.Code  `json:"code"`
	Level finding.Level `json:"level"`
	// Subject is what was checked: a file, a name, an address.
	Subject string `json:"subject"`
	// Evidence is what was seen.
	Evidence string `json:"evidence"`
	// Side is who must act: the name of a cluster, "network", or empty for nobody.
	Side string `json:"side,omitempty"`
	// Fix is one command, or one sentence if no command helps.
	Fix string `json:"fix,omitempty"`
}
