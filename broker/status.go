package broker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ready returns why the process can neither work nor take over; nil if it can.
func (p *process) ready() (note string, err error) { return p.elector.Ready(p.working) }

// working returns why the leader does not do its work; nil if it does.
func (p *process) working() error {
	if f := p.following.Load(); f != nil {
		if err := f.unknown(); err != nil {
			return finding.Because(err, finding.Lines(finding.RemotesUnread, "", f.Problems())...)
		}
	}
	b := p.leading.Load()
	if b == nil {
		return errors.New("the engines do not work yet")
	}
	if !p.listening.Load() || int(b.listening.Load()) < len(b.servers) {
		return errors.New("not all listeners are up")
	}
	return b.synced()
}

// synced returns why the existing objects are not known yet; nil if they are. A cluster without Calico does not delay
// the other features.
func (b *broker) synced() error {
	for _, l := range b.loops {
		if !l.Synced() && (!l.calico || b.calico.Problem() == "") && (!l.mcs || b.mcs.Problem() == "") {
			return finding.Because(fmt.Errorf("%s: those of the cluster are not known yet", l.kind.Plural()),
				append(l.Findings(), b.options.Informers().Failing.Findings()...)...)
		}
	}
	return nil
}

func (p *process) status() *semaphorev1.GetStatusResponse {
	out, found := p.describe(func(b *broker, out *semaphorev1.GetStatusResponse) {
		out.Nodes = b.Peering.Status(b.Nodes.Names(), b.Exempt)
		b.Peering.TunnelStatus(out)
		if b.traffic != nil {
			all, total := b.traffic.Status(time.Now())
			out.ServiceTraffic, out.ServiceTrafficTotal = all, uint32(total)
		}
	})
	finding.Judge(out, found...)
	return out
}

// found returns the findings for a scrape: those of the status, without what only a person reads.
func (p *process) found() []finding.Finding {
	out, found := p.describe(func(b *broker, out *semaphorev1.GetStatusResponse) {
		b.Peering.Overview(out, b.Nodes.Names(), b.Exempt)
	})
	return finding.Found(out, found...)
}

// describe returns a status with its findings. agents adds what agents report.
func (p *process) describe(agents func(*broker, *semaphorev1.GetStatusResponse)) (
	*semaphorev1.GetStatusResponse, []finding.Finding,
) {
	out := &semaphorev1.GetStatusResponse{Part: "broker", Now: timestamppb.Now()} // the judgement needs both
	leads, problem := p.elector.Status(out)
	found := finding.Line(finding.LeaseFailed, "", problem)
	if _, err := p.ready(); err != nil {
		found = append(found, finding.Line(finding.NotReady, "", "not ready: "+err.Error())...)
	}
	if f := p.following.Load(); leads && f != nil {
		found = append(found, f.findings()...)
	}
	if b := p.leading.Load(); leads && b != nil {
		out.Ready, out.Links, out.Drains = p.working() == nil, b.Federation.Status(), b.DrainsStatus()
		b.options.Metrics.Propagation.AddTo(out.Links)
		if b.engines.services != nil {
			out.MultiCluster = b.engines.services.MultiCluster()
			names, total := b.engines.services.OwnNames()
			out.OwnNames, out.OwnNamesTotal = names, uint32(total)
		}
		if b.Peering != nil {
			agents(b, out)
		}
		found = append(found, p.findings(b)...)
	}
	return out, found
}

// findings returns the findings of a leader, except those that follow from the fields of its status.
func (p *process) findings(b *broker) (found []finding.Finding) {
	found = append(finding.Line(finding.CalicoUnserved, "", b.calico.Problem()),
		finding.Lines(finding.NotLed, "", p.front.Problems())...)
	for _, of := range b.finders {
		found = append(found, of()...)
	}
	for _, l := range b.loops {
		found = append(found, l.Findings()...)
	}
	return slices.Concat(found, b.engines.findings(), b.Federation.Findings())
}
