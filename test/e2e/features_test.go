package e2e

import (
	"context"
	"slices"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

// TestFeatures has each feature once, on one pair of clusters: the README's commands connect them, check --traffic
// finds them well, and after the removal they are as before. Installed from files, Services, own names, the
// Multi-Cluster Services API, encryption, policies and explain follow. TestDocuments, TestServices, TestOwnName,
// TestMCS, TestPolicies and TestExplain have all cases of each, on clusters of their own.
func TestFeatures(t *testing.T) {
	ctx := needsBed(t)
	b := newDocumentsBed(ctx, t)
	must(t, b.c1.StartCalicoAPIServer(ctx))
	m := newMCSBed(ctx, t, b.Scenario)
	before, err := b.fingerprints(ctx)
	must(t, err)
	var (
		s *servicesBed
		p *policyBed
	)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T)
	}{
		{"connected by commands", b.connects},
		{"traffic", b.verifiesWell},
		{"unlinked", b.unlinks},
		{"uninstalled", func(ctx context.Context, t *testing.T) {
			must(t, inBoth(b.Scenario, func(c *testbed.Cluster) error {
				_, err := b.commands(ctx, "semaphorectl uninstall --context "+c.Name+" --yes; kubectl --context "+c.Name+
					" -n shop label service echo mirror.semaphore.uw.io/mirror-service-", 0)
				return err
			}))
			b.asBefore(ctx, t, before)
			b.syncFrequency(ctx, t, testbed.FastSync)
		}},
		{"installed from files", func(ctx context.Context, t *testing.T) {
			must(t, inBoth(b.Scenario, func(c *testbed.Cluster) error {
				_, err := b.commands(ctx, "kubectl --context "+c.Name+" delete namespace shop --wait", 0)
				return err
			}))
			b.in.MCS = true
			b.in.Broker, b.in.Components = "reserveTunnelAddresses: true", []string{"tunnel-addresses"}
			b.in.withOwnNames()
			must(t, b.in.Install(ctx, b.progress))
			s = newServicesBed(ctx, t, b.Scenario)
		}},
		{"ClusterIP", func(ctx context.Context, t *testing.T) { s.clusterIP(ctx, t) }},
		{"headless", func(ctx context.Context, t *testing.T) { s.headless(ctx, t) }},
		{"rolling update", func(ctx context.Context, t *testing.T) { s.rollingUpdate(ctx, t, 4) }},
		{"own name", func(ctx context.Context, t *testing.T) { ownNames(ctx, t, s) }},
		{"MCS", m.conforms},
		{"encrypted", func(ctx context.Context, t *testing.T) {
			evidence, err := encrypted(ctx, b.Scenario)
			must(t, err)
			t.Log(evidence)
		}},
		{"policies", func(ctx context.Context, t *testing.T) {
			p = startPolicyBed(ctx, t, b.Scenario)
			p.examples(ctx, t, "one-set", "own-and-remote")
		}},
		{"transitions", func(ctx context.Context, t *testing.T) { p.transitions(ctx, t) }},
		{"explain", func(ctx context.Context, t *testing.T) {
			e := &explainBed{documentsBed: b, saved: map[string]string{}}
			must(t, e.c1.ApplyYAML(ctx, workload(explainedClient, setLabel+": web")))
			ready(ctx, t, e.c1, "pod/"+explainedClient)
			must(t, e.c2.ApplyYAML(ctx, explainedShop))
			e.reaches(ctx, t, "echo")
			e.whole(ctx, t, "echo")
			broken := []finding.Code{finding.PathDNS, finding.PathHandshake, finding.PathPolicyIn}
			for _, c := range brokenLinks() {
				if slices.Contains(broken, c.code) && !t.Run(string(c.code), func(t *testing.T) { e.breaks(ctx, t, c) }) {
					return
				}
			}
			e.whole(ctx, t, "echo")
		}},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(ctx, t) }) {
			return // each step needs those before it
		}
	}
}

// verifiesWell checks that check --traffic, as docs/install.md prints it, finds the clusters well.
func (b *documentsBed) verifiesWell(ctx context.Context, t *testing.T) {
	expect(t, b.verifies(ctx, t, 0), true, nil)
}
