package services

import (
	"testing"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestDescribeOwnName: the description says which clusters serve the own name of a Service, and why.
func TestDescribeOwnName(t *testing.T) {
	for _, test := range []struct {
		name string
		use  string
		own  string
		min  *semaphorev1.GlobalSettings
		want string
	}{
		{"enough here", "failover", "10.1.0.1", nil,
			"own name: failover, served by this cluster: 1 of 1 ready here, 1 is enough"},
		{"none ready", "failover", "10.1.0.1?", nil, "own name: failover, served by c2: 0 of 1 ready here, 1 is enough"},
		{"none", "failover", "", nil, "own name: failover, served by c2: 0 of 0 ready here, 1 is enough"},
		{"too few", "failover", "10.1.0.1 10.1.0.2?", &semaphorev1.GlobalSettings{MinReady: 2},
			"own name: failover, served by this cluster and c2: 1 of 2 ready here, 2 are enough"},
		{"a share", "failover", "10.1.0.1 10.1.0.2? 10.1.0.3?", &semaphorev1.GlobalSettings{MinReadyPercent: 50},
			"own name: failover, served by this cluster and c2: 1 of 3 ready here, 50% is enough"},
		{"all", "all", "10.1.0.1", nil, "own name: all, served by this cluster and c2: 1 of 1 ready here, 1 is enough"},
	} {
		p := alone(t, "podSubnets: [10.1.0.0/16], ownNames: true")
		p.heard("c1", "c2", "c2-a", "c3")
		own := settled(test.min)
		own.OwnName = &semaphorev1.OwnName{Use: test.use, Uid: "u1"}
		p.apply("c1", offering(own, test.own)...)
		p.apply("c2", offering(settled(test.min), "10.2.0.1 10.2.0.2")...)
		p.Now = p.Now.Add(time.Hour)
		p.follow(p.Due(p.Now))
		for _, d := range p.engine().Services() {
			if d.Own == nil || d.Own.String() != test.want {
				t.Errorf("%s: %v; want %s", test.name, d.Own, test.want)
			}
		}
		all, total := p.engine().OwnNames()
		if leads := total == 1; leads != (test.name != "enough here") || leads && (all[0].Namespace != "shop" ||
			all[0].Service != "echo") {
			t.Errorf("%s: leads to others: %v", test.name, all)
		}
		p.apply("c1", offering(settled(test.min), test.own)...)
		if d := p.engine().Services()[0]; d.Service != glEcho || d.Own != nil || len(p.Lenders()) > 0 {
			t.Errorf("%s, without the annotation: %v", test.name, d.Own)
		}
	}
}

// TestOwnNamesInOrder: those come first that the own cluster does not suffice for.
func TestOwnNamesInOrder(t *testing.T) {
	p := alone(t, "podSubnets: [10.1.0.0/16], ownNames: true")
	p.heard("c1", "c2", "c2-a", "c3")
	for name, use := range map[string]string{"a": "all", "b": "failover", "c": "all", "d": "failover"} {
		s := global()
		s.OwnName = &semaphorev1.OwnName{Use: use, Uid: "u1"}
		p.apply("c1", svc("shop", name, s))
		p.apply("c2", svc("shop", name, global()), slc("shop", name, endpoints(name, "10.2.0.1")))
	}
	order := ""
	all, _ := p.engine().OwnNames()
	for _, d := range all {
		order += d.Service
	}
	if order != "bdac" {
		t.Errorf("the order is %s", order)
	}
}
