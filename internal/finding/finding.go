// Package finding owns the codes of all reports of the parts and semaphorectl: refused objects, problems, Events and
// the findings of check. A code is defined once, with its severity and its meaning. It is the label of a metric, the
// reason of an Event, the word in a status, and the anchor in the document that has cause and fix.
//
// It also judges the status of a part: which findings follow from it.
//
// define adds codes when the program starts, and they never change. The package is pure.
package finding

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Code is the stable name of a finding, for programs, metrics and documents.
type Code string

// Anchor is the place of the code in the documents: those that parts report are in one page, because alerts lead there.
func (c Code) Anchor() string {
	page := "troubleshooting.md"
	switch c.Definition().Area {
	case Preflights:
		page = "install.md"
	case Paths:
		page = "explain.md"
	case Checks, Traffic, Installs:
		page = "checks.md"
	}
	return "docs/" + page + "#" + string(c)
}

// Level returns the severity of a code; Error for one that is not defined.
func (c Code) Level() Level { return c.Definition().Level }

func (c Code) EventType() string {
	if c.Level() == OK {
		return "Normal"
	}
	return "Warning"
}

type Level string

const (
	// OK was examined and has no problem.
	OK Level = "ok"
	// Warning works now and may stop, or was not seen to work.
	Warning Level = "warning"
	// NotChecked is the level of a check that was not made: it is neither good nor bad.
	NotChecked Level = "not-checked"
	// Error does not work until an operator acts.
	Error Level = "error"
)

// Area is where codes appear.
type Area string

const (
	// Refusals are the codes of objects that a broker's admission or limits refuse.
	Refusals Area = "refusals"
	// Exports are the codes of objects that an exporter does not export, or not completely.
	Exports Area = "exports"
	// Offers are the reasons of the exporter's Events on Services.
	Offers Area = "offers"
	// Services are the codes of Services of remotes that have no mirror, or another than was exported: in Events, in a
	// metric, and in the broker's answer to the exporter.
	Services Area = "services"
	Events   Area = "events"
	// Conditions are reasons of the conditions of a RemoteCluster that no other area has.
	Conditions Area = "conditions"
	// Paths are the links that semaphorectl explain examines.
	Paths  Area = "paths"
	Checks Area = "checks"
	// Preflights are the codes of semaphorectl check --pre that no other area has.
	Preflights Area = "preflights"
	Traffic    Area = "traffic"
	// Installs are the codes of what prevents that semaphorectl install and link write, beside those of check --pre.
	Installs Area = "installs"
	// Status are the codes of the faults of a part itself, and of those that it is connected to.
	Status Area = "status"
)

// Side is who can fix a finding, as seen from the cluster of the part that reports it.
type Side string

const (
	Here   Side = "this-cluster"
	Remote Side = "remote-cluster"
	Both   Side = "both-clusters"
)

type Act struct {
	Side Side
	// Command shows more, or fixes it. CLUSTER is replaced by the remote, NODE by a node, CONTEXT by the context of the
	// kubeconfig for the own cluster.
	Command string
	// Alert is the alert of deploy/features/alerts that fires for it, or NoAlert; AlertOfErrors or AlertOfWarnings unless
	// another is given.
	Alert string
	// Condition is the type of the condition of a RemoteCluster that is false because of it; empty for none.
	Condition string
}

// Alerts for findings without one of their own, by their level.
const (
	AlertOfErrors   = "SemaphoreFindingError"
	AlertOfWarnings = "SemaphoreFindingWarning"
	// NoAlert is for codes of which no part has a metric: an Event, a condition, or semaphorectl alone shows them.
	NoAlert = "none"
)

var acts = map[Area]Act{
	Refusals: {Side: Remote, Command: "semaphorectl status --context CLUSTER", Alert: "SemaphoreObjectsRefused",
		Condition: "Healthy"},
	Exports:    {Side: Here, Command: "semaphorectl status"},
	Offers:     {Side: Both, Command: "semaphorectl status"},
	Services:   {Side: Both, Command: "semaphorectl status -o wide"},
	Events:     {Side: Here, Command: "kubectl -n semaphore get events"},
	Checks:     {Side: Here, Command: "semaphorectl check"},
	Conditions: {Side: Here, Command: "kubectl get remotecluster CLUSTER -o yaml"},
	Status:     {Side: Here, Command: "semaphorectl status -o wide"},
}

type Definition struct {
	Code  Code
	Area  Area
	Level Level
	// Meaning is one clause without a period.
	Meaning string
	Act
}

var definitions = map[Code]Definition{}

// define makes a code; an act overrides the defaults of the area. It panics when the program starts if the code exists
// already.
func define(area Area, level Level, code Code, meaning string, own ...Act) Code {
	if _, twice := definitions[code]; twice {
		panic(fmt.Sprintf("finding: the code %q is defined twice", code))
	}
	act := acts[area]
	for _, a := range own {
		act = Act{cmp.Or(a.Side, act.Side), cmp.Or(a.Command, act.Command), cmp.Or(a.Alert, act.Alert),
			cmp.Or(a.Condition, act.Condition)}
	}
	if act.Alert == "" {
		act.Alert = AlertOfErrors
		if level == Warning {
			act.Alert = AlertOfWarnings
		}
	}
	definitions[code] = Definition{code, area, level, meaning, act}
	return code
}

// Definition returns the meaning of a code. One that is not defined is an error without an act.
func (c Code) Definition() Definition {
	if d, ok := definitions[c]; ok {
		return d
	}
	return Definition{Code: c, Level: Error}
}

// Of returns the codes of an area, sorted.
func Of(area Area) []Code {
	var codes []Code
	for _, d := range All() {
		if d.Area == area {
			codes = append(codes, d.Code)
		}
	}
	return codes
}

// All returns all definitions, sorted by area and code.
func All() []Definition {
	return slices.SortedFunc(maps.Values(definitions), func(a, b Definition) int {
		return cmp.Or(cmp.Compare(a.Area, b.Area), cmp.Compare(a.Code, b.Code))
	})
}
