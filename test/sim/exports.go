package sim

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// This file has what the clusters of the simulation in memory.go export, as a leader has it after admission.

// numbers of the clusters, in their addresses.
var numbers = map[string]int{"c1": 1, "c2": 2, "c2-a": 3, "c3": 4}

// change is a random change: of an export, of a remote's presence, or an operator's drain.
func (m *memory) change() {
	cluster := pickOf(m, m.clusters()...)
	switch m.rng.IntN(16) {
	case 0:
		if cluster != m.config.Cluster && m.alike {
			m.leaveOrReturn(cluster)
		}
		return
	case 1:
		m.drains = pickOf(m, choice.Drains{}, choice.NewDrains(choice.Drain{Target: choice.Target{Cluster: cluster}}),
			choice.NewDrains(choice.Drain{Target: choice.Target{Namespace: "shop", Service: "echo"}}, choice.Drain{
				Target:   choice.Target{Cluster: cluster, Node: "elsewhere"},
				Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/30", numbers[cluster]))}}))
		m.event(fmt.Sprint("drains ", m.drains.All()), func() { m.mirrors.SetDrains(m.drains) })()
		m.run()
		return
	}
	if m.gone[cluster] {
		return
	}
	var changes []replica.Change
	for range 1 + m.rng.IntN(3) {
		key, o := m.export(cluster)
		was := m.said[cluster][key]
		if was == nil && o == nil {
			continue
		}
		if m.said[cluster][key] = o; o == nil {
			delete(m.said[cluster], key)
		}
		changes = append(changes, replica.Change{Key: key, Old: was, New: o})
	}
	m.event(fmt.Sprint(cluster, " ", changes), func() { m.take(cluster, replica.Result{Changes: changes}) })()
	if m.rng.IntN(2) == 0 {
		m.run()
	}
}

// leaveOrReturn makes a remote silent, and known to be gone, or brings it back with what it exports.
func (m *memory) leaveOrReturn(cluster string) {
	if !m.gone[cluster] {
		m.gone[cluster] = true
		m.event(cluster+" goes", func() { m.mirrors.SetGone(cluster, true) })()
		m.run()
		return
	}
	delete(m.gone, cluster)
	if m.heard[cluster] != nil { // it continues where it was
		m.event(cluster+" returns", func() { m.mirrors.SetGone(cluster, false) })()
		m.run()
		return
	}
	for _, do := range m.snapshots(cluster) {
		do()
		m.run()
	}
}

// export is a random object of a cluster; nil for its deletion.
func (m *memory) export(cluster string) (replica.Key, *semaphorev1.Object) {
	key := replica.Key{Namespace: pickOf(m, "shop", "shop", "a-shop")}
	kinds := 10
	if cluster == m.config.Cluster {
		kinds = 6 // the own cluster exports Services alone
	}
	switch n := m.rng.IntN(kinds); {
	case n < 2:
		key.Kind, key.Name = semaphorev1.Kind_KIND_SERVICE, pickOf(m, "echo", "web")
		if m.rng.IntN(5) == 0 && !(m.alike && m.said[cluster][key].GetService().GetMultiCluster() != nil) {
			return key, nil
		}
		return key, &semaphorev1.Object{Spec: &semaphorev1.Object_Service{Service: m.exportedService(m.said[cluster][key])}}
	case n < 6:
		key.Kind, key.Name = semaphorev1.Kind_KIND_ENDPOINT_SLICE, pickOf(m, "s1", "s2", "s3")
		if m.rng.IntN(6) == 0 {
			return key, nil
		}
		return key, &semaphorev1.Object{Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: m.exportedSlice(cluster)}}
	case n < 8:
		key.Kind, key.Name = semaphorev1.Kind_KIND_SET_MEMBER, pickOf(m, "p0", "p1", "p2", "p3")
		if m.rng.IntN(4) == 0 {
			return key, nil
		}
		return key, m.exportedMember(cluster, key)
	}
	key.Kind, key.Namespace, key.Name = semaphorev1.Kind_KIND_NODE, "", pickOf(m, "n0", "n1", "n2", "n3")
	if m.rng.IntN(4) == 0 {
		return key, nil
	}
	return key, &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: m.exportedNode(cluster, key.Name)}}
}

// exportedService is what a Service becomes. Where remotes leave, no ServiceExport comes or goes: while the cluster
// that decides on a derived Service is silent, its object does not change, and so does not say who was first.
func (m *memory) exportedService(was *semaphorev1.Object) *semaphorev1.Service {
	s := &semaphorev1.Service{Mirror: m.rng.IntN(2) == 0, Global: m.rng.IntN(3) > 0, Headless: m.rng.IntN(4) == 0,
		PublishNotReadyAddresses: m.rng.IntN(5) == 0, IpFamilies: pickOf(m, nil, []string{"IPv4"}, []string{"IPv4", "IPv6"})}
	s.Ports = []*semaphorev1.Port{{Name: m.port(), Protocol: "TCP", Port: pickOf[int32](m, 80, 80, 81)}}
	if m.rng.IntN(3) == 0 && !m.alike {
		s.Ports = append(s.Ports, &semaphorev1.Port{Name: "more", Protocol: "UDP", Port: 53})
	}
	if !s.Headless && m.rng.IntN(4) == 0 {
		s.ClientIpAffinitySeconds = 60
	}
	if m.rng.IntN(2) == 0 {
		s.GlobalSettings = &semaphorev1.GlobalSettings{Prefer: pickOf(m, nil, []string{"c2"}, []string{"c3", "c1"}),
			MinReady: m.rng.Int32N(4), WhenGone: pickOf(m, semaphorev1.WhenGone_WHEN_GONE_UNSPECIFIED,
				semaphorev1.WhenGone_WHEN_GONE_KEEP, semaphorev1.WhenGone_WHEN_GONE_WITHDRAW), LocalFirst: m.rng.IntN(2) == 0}
	}
	if m.rng.IntN(2) == 0 {
		s.OwnName = &semaphorev1.OwnName{Use: pickOf(m, "failover", "failover", "all", ""), Uid: "u"}
	}
	if is := was.GetService().GetMultiCluster() != nil; is || m.rng.IntN(2) == 0 && !(m.alike && was != nil) {
		s.MultiCluster = &semaphorev1.MultiClusterExport{InternalTrafficPolicy: pickOf(m, "", "Local")}
	}
	return s
}

// port is the name of a port: one name where remotes leave, so that all ready endpoints serve their Services, and
// several elsewhere. Both together are not covered.
func (m *memory) port() string {
	if m.alike {
		return "web"
	}
	return pickOf(m, "web", "web", "api")
}

// address is one of a node of a cluster.
func (m *memory) address(cluster, node, family string, i int) string {
	if family == "IPv6" {
		return fmt.Sprintf("fd00:%d::%s:%d", numbers[cluster], node[1:], i)
	}
	return fmt.Sprintf("10.%d.%s.%d", numbers[cluster], node[1:], i)
}

func (m *memory) exportedSlice(cluster string) *semaphorev1.EndpointSlice {
	s := &semaphorev1.EndpointSlice{Service: pickOf(m, "echo", "web"), AddressType: pickOf(m, "IPv4", "IPv4", "IPv6")}
	if m.rng.IntN(6) > 0 {
		s.Ports = []*semaphorev1.Port{{Name: m.port(), Protocol: "TCP", Port: pickOf[int32](m, 8080, 8080, 9090)}}
	}
	for range m.rng.IntN(7) {
		address := m.address(cluster, pickOf(m, "n0", "n1"), s.AddressType, m.rng.IntN(4))
		e := &semaphorev1.Endpoint{Addresses: []string{address}}
		e.Ready = pickOf(m, nil, ptr.To(true), ptr.To(true), ptr.To(false))
		e.Serving, e.Terminating = pickOf(m, nil, ptr.To(true), ptr.To(false)), pickOf(m, nil, nil, ptr.To(true))
		if m.rng.IntN(2) == 0 {
			e.Hostname = pickOf(m, "p0", "p1")
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// exportedMember is a pod in a set. No two pods of a cluster have one address for long: which of them came last is
// known to nobody who was not there.
func (m *memory) exportedMember(cluster string, key replica.Key) *semaphorev1.Object {
	taken := map[string]bool{}
	for other, o := range m.said[cluster] {
		for _, ip := range o.GetSetMember().GetIps() {
			taken[ip] = taken[ip] || other != key
		}
	}
	member := &semaphorev1.SetMember{PodUid: "u0", SetName: pickOf(m, "red", "blue")}
	if was := m.said[cluster][key].GetSetMember(); was != nil && m.rng.IntN(2) == 0 {
		member.PodUid = was.GetPodUid()
	} else {
		m.ids++
		member.PodUid = fmt.Sprint("u", m.ids)
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		if ip := m.address(cluster, "n2", family, m.rng.IntN(6)); !taken[ip] {
			member.Ips = append(member.Ips, ip)
		}
	}
	slices.Sort(member.Ips)
	if len(member.Ips) == 0 {
		return nil
	}
	return &semaphorev1.Object{Spec: &semaphorev1.Object_SetMember{SetMember: member}}
}

// firstNode is a node that each remote exports all the time: from a remote that had no peers, a new leader cannot tell
// one that has no encryption, and reaches all of its endpoints until it has heard it.
var firstNode = replica.Key{Kind: semaphorev1.Kind_KIND_NODE, Name: "n9"}

func (m *memory) exportedFirst(cluster string) *semaphorev1.Node {
	key := make([]byte, 32)
	key[0] = byte(100 + numbers[cluster])
	at := fmt.Sprintf("172.18.%d.99:51820", numbers[cluster])
	return &semaphorev1.Node{PodCidrs: []string{fmt.Sprintf("10.%d.9.0/24", numbers[cluster])},
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: key, Address: at}}
}

// exportedNode is a node, with a key that others may have, or CIDRs that overlap those of others; not with both in one
// run. Nobody stores what a node keeps that is no peer, as another has its key: a new leader may give its CIDRs to a
// node that had none of them.
func (m *memory) exportedNode(cluster, name string) *semaphorev1.Node {
	of := func(node string) []string {
		return []string{fmt.Sprintf("10.%d.%s.0/24", numbers[cluster], node[1:]),
			netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%s:0/112", numbers[cluster], node[1:])).String()}
	}
	n := &semaphorev1.Node{PodCidrs: of(name)}
	if m.overlapping && m.rng.IntN(4) == 0 {
		n.PodCidrs = append(n.PodCidrs, of(pickOf(m, "n0", "n1", "n4"))...)
		slices.Sort(n.PodCidrs)
		n.PodCidrs = slices.Compact(n.PodCidrs)
	}
	if m.rng.IntN(5) == 0 {
		return n // it has no key yet
	}
	key := make([]byte, 32)
	key[0] = byte(10*numbers[cluster]) + name[1] - '0'
	if !m.overlapping && m.rng.IntN(4) == 0 {
		key[0] = byte(2 + m.rng.IntN(2)) // admission refuses 1
	}
	n.Wireguard = &semaphorev1.WireGuardEndpoint{PublicKey: key,
		Address: fmt.Sprintf("172.18.%d.%d:51820", numbers[cluster], 1+name[1]-'0')}
	return n
}
