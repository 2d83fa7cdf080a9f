package e2e

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

//go:embed workloads/c1.yaml
var workloadsC1 string

//go:embed workloads/c2.yaml
var workloadsC2 string

//go:embed workloads/export.yaml
var exportC2 string

//go:embed workloads/policy.yaml
var policyC2 string

// URLs of echo of c2 in c1: exported, under the name that all clusters share; offered by its label, under the name of
// its cluster.
const (
	exportedURL = "http://echo.shop.svc.clusterset.local:8080"
	mirroredURL = "http://echo.shop.svc.cluster.c2:8080"
)

// webURL is the URL of the demo's service of both clusters, under the name that clients of c1 know without semaphore.
const webURL = "http://web.shop.svc.cluster.local"

// Step is one line of the demo's table.
type Step struct {
	// Name states what must hold.
	Name string
	// run checks it and returns the evidence in one line, or an error that says why it does not hold.
	run func(context.Context, *Scenario) (string, error)
}

// Scenario is two connected clusters and the observations so far.
type Scenario struct {
	tb       *testbed.Testbed
	c1, c2   *testbed.Cluster
	in       *Installation
	progress func(string)

	before  map[string]fingerprint // of clusters and nodes, before the installation
	echoURL string                 // of echo of c2 in c1
}

// New returns a Scenario for a testbed with clusters c1 and c2 without semaphore. repo is the checkout whose bin/ and
// deploy/ are used.
func New(tb *testbed.Testbed, repo string, progress func(string)) (*Scenario, error) {
	s := &Scenario{tb: tb, progress: progress, echoURL: mirroredURL}
	s.c1, s.c2 = tb.Cluster("c1"), tb.Cluster("c2")
	if s.c1 == nil || s.c2 == nil {
		return nil, fmt.Errorf("the scenario needs clusters c1 and c2, the testbed has %d others", len(tb.Clusters()))
	}
	s.in = NewInstallation(tb, repo)
	return s, nil
}

// Prepare applies the definitions of the Multi-Cluster Services API, takes the fingerprints of clusters and nodes, and
// installs semaphore and the workloads. c2 exports echo.
func (s *Scenario) Prepare(ctx context.Context) error {
	for _, c := range s.tb.Clusters() {
		if _, err := mcs.ApplyDefinitions(ctx, c.Dynamic); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	s.progress("taking the fingerprints of clusters and nodes, to compare with at the end")
	before, err := s.fingerprints(ctx)
	if err != nil {
		return err
	}
	s.before = before
	// One step kills a leader. The shortest Lease shows the same as the default of 15 s.
	s.in.Lease = "5s"
	s.in.MCS, s.echoURL = true, exportedURL
	s.in.withOwnNames()
	s.progress("starting echo in c2, its clients in c1")
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.applyWorkloads(gctx); err != nil {
			return err
		}
		return s.c2.ApplyYAML(gctx, exportC2)
	})
	g.Go(func() error { return s.in.Install(gctx, s.progress) })
	if err := g.Wait(); err != nil {
		return err
	}
	s.progress("waiting until c1 has the name of echo")
	for _, what := range []string{"create", "jsonpath={.spec.ips}"} {
		if _, err := s.c1.Kubectl(ctx, nil, "-n", "shop", "wait", "--for="+what, "--timeout=60s",
			"serviceimport/echo"); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scenario) applyWorkloads(ctx context.Context) error {
	if err := s.c1.ApplyYAML(ctx, workloadsC1); err != nil {
		return err
	}
	if err := s.c2.ApplyYAML(ctx, workloadsC2); err != nil {
		return err
	}
	for _, w := range []struct {
		c    *testbed.Cluster
		what []string
	}{
		{s.c1, []string{"rollout", "status", "deployment/client", "--timeout=300s"}},
		{s.c1, []string{"wait", "--for=condition=Ready", "pod/stranger", "--timeout=300s"}},
		{s.c1, []string{"rollout", "status", "deployment/web", "--timeout=300s"}},
		{s.c2, []string{"rollout", "status", "deployment/echo", "--timeout=300s"}},
		{s.c2, []string{"rollout", "status", "deployment/web", "--timeout=300s"}},
	} {
		if _, err := w.c.Kubectl(ctx, nil, append([]string{"-n", "shop"}, w.what...)...); err != nil {
			return fmt.Errorf("starting the workloads: %w\n%s", err, w.c.Diagnose(ctx, "shop"))
		}
	}
	return nil
}

// Steps returns the steps in the order in which they must run.
func Steps() []Step {
	return []Step{
		{"a pod of c1 fetches " + exportedURL + "; c2 answers, and sees the own IP of the pod", byName},
		{"on the wire between the nodes: WireGuard, and not one byte of the request", encrypted},
		{"a policy of c2 that selects c1's set admits the labelled client and refuses another pod of c1", admitted},
		{"the labelled pod is replaced: its new IP is admitted, the old one is not", replaced},
		{"a new pod behind the service in c2 takes traffic from c1; a deleted one gets none", scaled},
		{"web is scaled to 0 in c1: c2 answers under the same name, " + webURL + "; then c1 again", ownName},
		{"the broker is killed: traffic continues; the standby takes over: nothing was torn down", brokerKilled},
		{"semaphore is removed: nodes and clusters are as they were", removedCleanly},
	}
}

// Run runs one step.
func (s *Scenario) Run(ctx context.Context, step Step) (evidence string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	started := time.Now()
	evidence, err = step.run(ctx, s)
	return evidence, time.Since(started), err
}
