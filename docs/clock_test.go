package docs_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// clock lists the functions of tests that compare a time of the wall clock, how often, and why that holds on a busy
// machine. A test that is not here counts, or looks at an order, or runs in testing/synctest; what is a figure is a
// benchmark (CONTRIBUTING.md).
var clock = map[string]compares{
	"agent/stream/state_test.go TestWriter":                               {1, endsLoop},
	"agent/node_test.go TestHealing":                                      {2, grows},
	"agent/node_test.go TestTrafficContinuesThroughChangesAndRestarts":    {1, grows},
	"agent/node_test.go next":                                             {1, answered},
	"agent/node_test.go start":                                            {1, answered},
	"agent/node_test.go unanswered":                                       {1, answered},
	"agent/permissive_test.go TestPermissiveFallsBack":                    {1, givesUp},
	"agent/policy_test.go TestPolicyTakenRoute":                           {1, inBubble},
	"agent/paths/path_test.go TestNarrowPath":                             {1, givesUp},
	"agent/paths/probe_test.go TestRoundTrip":                             {1, inProduct},
	"agent/routing_test.go TestManyServices":                              {2, grows},
	"agent/kernel/key_test.go TestKeyIsMadeOnce":                          {1, stamp},
	"agent/kernel/key_test.go TestReplace":                                {1, stamp},
	"broker/apply/contest_test.go TestInterference":                       {2, grows},
	"broker/apply/contest_test.go of":                                     {2, grows},
	"broker/apply/shared_test.go outage":                                  {3, grows},
	"agent/bench_test.go returned":                                        {1, figure},
	"agent/tunnel_bench_test.go turn":                                     {2, figure},
	"broker/fanout_bench_test.go benchUntil":                              {1, figure},
	"broker/faults_test.go refusedObjects":                                {1, grows},
	"broker/faults_test.go terminating":                                   {1, grows},
	"broker/operator/page_test.go TestSlowReader":                         {1, grows},
	"broker/operator/page_test.go TestSlowStatus":                         {1, inProduct},
	"broker/picture_test.go TestPageOfABroker":                            {1, givesUp},
	"broker/rules_test.go TestR25TheClockOfARemoteDecidesNothing":         {1, stamp},
	"broker/sets_test.go transitions":                                     {1, notTested},
	"test/e2e/answer_bench_test.go answered":                              {1, clusters},
	"test/e2e/explain_test.go breaks":                                     {1, clusters},
	"test/e2e/faults/certificates_test.go deposed":                        {1, clusters},
	"test/e2e/faults/guard_test.go finish":                                {1, clusters},
	"test/e2e/faults/guard_test.go run":                                   {1, clusters},
	"test/e2e/faults/leader_test.go TestF23_LeaderLosesItsLease":          {5, clusters},
	"test/e2e/faults/leader_test.go TestF24_StoppedLeaderIsResumed":       {1, clusters},
	"test/e2e/global_test.go answers":                                     {1, clusters},
	"test/e2e/global_test.go flapping":                                    {1, clusters},
	"test/e2e/global_test.go heard":                                       {1, clusters},
	"test/e2e/mcs_test.go mcsHeadlessIPs":                                 {1, clusters},
	"test/e2e/mcs_test.go stays":                                          {1, clusters},
	"test/e2e/migration/world_test.go lost":                               {1, clusters},
	"test/e2e/migration/world_test.go mayBeMore":                          {1, clusters},
	"test/e2e/migration/world_test.go pause":                              {1, clusters},
	"test/e2e/packets_test.go lost":                                       {1, clusters},
	"test/e2e/packets_test.go mayBeMore":                                  {1, clusters},
	"test/e2e/traffic_bench_test.go packets":                              {1, figure},
	"test/e2e/transitions_test.go kernelUntil":                            {1, clusters},
	"exporter/blocks_test.go TestR12AKubeletTakesNoPodCIDR":               {1, endsLoop},
	"exporter/publish/hostile_test.go TestHostileBroker":                  {1, atLeast},
	"ctl/verify/load_test.go TestLoad":                                    {1, atLeast},
	"ctl/verify/probe_test.go TestAsk":                                    {1, atLeast},
	"ctl/link/link_test.go completesObjects":                              {1, besideWrites},
	"internal/debug/debug_test.go TestRecorderFillsInWho":                 {1, stamp},
	"internal/debug/debug_test.go TestServeSocket":                        {1, stamp},
	"internal/debug/limits_test.go TestFlood":                             {1, givesUp},
	"internal/debug/limits_test.go TestSilentConnection":                  {2, atLeast},
	"internal/identity/identity_test.go TestBrokenRotationKeepsWhatWorks": {1, stamp},
	"internal/identity/identity_test.go TestExpired":                      {2, stamp},
	"internal/kube/away_test.go TestRetryWhileAway":                       {1, besideWrites},
	"internal/kube/reconcile/loop_test.go testBackoffOfEachKeyAlone":      {1, inBubble},
	"internal/program/http_test.go TestLongProfile":                       {1, atLeast},
	"internal/program/program_test.go TestSignals":                        {1, givesUp},
	"test/redteam/connections_test.go attackHTTP":                         {1, besideWrites},
	"test/redteam/connections_test.go failAdmissions":                     {1, grows},
	"test/redteam/connections_test.go idleConnections":                    {1, endsLoop},
	"test/redteam/cost_test.go TestAnotherRemoteIsAcknowledged":           {3, withoutWaits},
	"test/redteam/exports_test.go TestExportsOfARemoteAreBounded":         {1, besideWrites},
	"test/redteam/federation_test.go TestHostileBrokerOfARemote":          {2, besideWrites},
	"test/redteam/limits_test.go TestWritesForARemoteAreBounded":          {3, grows},
	"test/redteam/remote_test.go end":                                     {1, givesUp},
	"test/sim/sim_test.go play":                                           {1, endsLoop},
	"test/testbed/images/containerd_test.go removeGroups":                 {1, givesUp},
	"test/testbed/machine/machine_test.go TestMachineIsSwitchedOff":       {1, givesUp},
}

// Why a comparison holds on a busy machine.
const (
	grows    = "the bound is a count that grows with the time that passed: a busy machine is allowed more"
	endsLoop = "it ends a loop, and nothing is asserted about the time"
	givesUp  = "after minutes it gives up what has no bound of its own"
	atLeast  = "a least time, and an end after minutes: a busy machine takes longer"
	inBubble = "it is called in a bubble of testing/synctest"
	stamp    = "a time stamp is of today: an hour or a minute apart"
	answered = "packets count as lost only when later ones were answered long before"
	figure   = "part of a benchmark"
	// besideWrites is for bounds that no count has replaced yet.
	besideWrites = "an upper bound grows by what kubetest.WriteBeside measures at that moment"
	withoutWaits = "the time in which the processes waited for a processor is taken off"
	inProduct    = "the product measured the same time, and the two are compared"
	notTested    = "late is NOT TESTED, which fails make test-all"
	clusters     = "on whole clusters, where nothing is counted yet"
)

type compares struct {
	times int
	why   string
}

// TestClock: no test compares a time of the wall clock unseen.
func TestClock(t *testing.T) {
	found := map[string]int{}
	for _, path := range tracked(t, "*_test.go") {
		_, file := parsed(t, path)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || measures(f) {
				continue
			}
			if n := comparesClock(f.Body); n > 0 {
				found[path+" "+f.Name.Name] += n
			}
		}
	}
	for _, where := range slices.Sorted(maps.Keys(found)) {
		if n, allowed := found[where], clock[where]; n != allowed.times || allowed.why == "" {
			t.Errorf("%s compares a time of the wall clock %d times, and docs/clock_test.go has %d: count, look at an order, "+
				"use testing/synctest or a benchmark, or add it with the reason", where, n, allowed.times)
		}
	}
	for _, where := range slices.Sorted(maps.Keys(clock)) {
		if found[where] == 0 {
			t.Errorf("docs/clock_test.go has %s, which compares no time", where)
		}
	}
}

// measures reports whether a function is part of a benchmark.
func measures(f *ast.FuncDecl) bool {
	for _, p := range f.Type.Params.List {
		if strings.Contains(fmt.Sprint(exprText(p.Type)), "testing.B") {
			return true
		}
	}
	return strings.HasPrefix(f.Name.Name, "Benchmark")
}

func exprText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return exprText(e.X)
	case *ast.SelectorExpr:
		return exprText(e.X) + "." + e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// comparesClock counts the comparisons of times of the wall clock outside of bubbles of testing/synctest.
func comparesClock(body ast.Node) (n int) {
	// Variables with a time that has passed.
	passed := map[string]bool{}
	outside(body, func(node ast.Node) {
		a, ok := node.(*ast.AssignStmt)
		if !ok {
			return
		}
		for i, left := range a.Lhs {
			if name, ok := left.(*ast.Ident); ok && i < len(a.Rhs) && ofClock(a.Rhs[i], passed) {
				passed[name.Name] = true
			}
		}
	})
	outside(body, func(node ast.Node) {
		switch e := node.(type) {
		case *ast.BinaryExpr:
			switch e.Op {
			case token.LSS, token.GTR, token.LEQ, token.GEQ, token.EQL, token.NEQ:
				if ofClock(e.X, passed) || ofClock(e.Y, passed) {
					n++
				}
			}
		case *ast.CallExpr: // time.Now().After(x)
			if s, ok := e.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "After" || s.Sel.Name == "Before") {
				if call, ok := s.X.(*ast.CallExpr); ok && exprText(call.Fun) == "time.Now" {
					n++
				}
			}
		}
	})
	return n
}

// outside calls f for each node that is in no bubble of testing/synctest.
func outside(body ast.Node, f func(ast.Node)) {
	ast.Inspect(body, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok && strings.HasPrefix(exprText(call.Fun), "synctest.") {
			return false
		}
		f(node)
		return true
	})
}

// ofClock reports whether an expression has a time that has passed by the wall clock.
func ofClock(e ast.Expr, passed map[string]bool) (is bool) {
	ast.Inspect(e, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit, *ast.CompositeLit:
			return false
		case *ast.Ident:
			is = is || passed[node.Name]
		case *ast.CallExpr:
			switch exprText(node.Fun) {
			case "time.Since", "time.Until", "testkit.Eventually":
				is = true
			}
			// Only the sign of what a function makes of it is known. Conversions keep it.
			if name := exprText(node.Fun); strings.Contains(name, ".") && name != "time.Duration" && !is &&
				name != "fmt.Sprint" {
				s, ok := node.Fun.(*ast.SelectorExpr)
				if ok {
					is = ofClock(s.X, passed)
				}
				return false
			}
		}
		return !is
	})
	return is
}
