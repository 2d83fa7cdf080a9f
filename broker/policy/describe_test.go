package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// setLines is what Describe returns, a set a line.
func setLines(p *Plan, req *semaphorev1.ListSetsRequest) string {
	var address netip.Addr
	if req.GetAddress() != "" {
		address = netip.MustParseAddr(req.GetAddress())
	}
	var lines []string
	for _, s := range p.Describe(req, address) {
		line := fmt.Sprintf("%s/%s/%s", s.Cluster, s.Namespace, s.Name)
		for _, o := range s.Objects {
			line += fmt.Sprintf(" %s:%d/%d", o.Name, o.Present, o.Desired)
		}
		for _, pod := range s.Pods {
			line += fmt.Sprintf(" %s(%s)=%s", pod.Name, pod.Uid, strings.Join(pod.Ips, ","))
		}
		if len(s.Missing) > 0 {
			line += " missing " + strings.Join(s.Missing, ",")
		}
		if len(s.Leftover) > 0 {
			line += " leftover " + strings.Join(s.Leftover, ",")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestDescribe(t *testing.T) {
	p := planOf(2)
	k := newCluster(t, p)
	is := func(what string, req *semaphorev1.ListSetsRequest, want ...string) {
		t.Helper()
		if got := setLines(p, req); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n got %s\nwant %s", what, got, strings.Join(want, "\n     "))
		}
	}
	all := &semaphorev1.ListSetsRequest{}
	names := touchedNames(p.Apply("c2", pods("shop/a u1 web 10.2.0.1", "shop/b u2 web 10.2.0.2 fd02::2",
		"shop/idle u3 web", "bank/x u4 db 10.2.0.9")))
	is("nothing is written", all,
		"c2/bank/db c2-bank-db:0/1 x(u4)=10.2.0.9 missing 10.2.0.9",
		"c2/shop/web c2-shop-web:0/2 c2-shop-web.part-2:0/1 a(u1)=10.2.0.1 b(u2)=10.2.0.2,fd02::2 idle(u3)= missing "+
			"10.2.0.1,10.2.0.2,fd02::2")
	is("an address that is not written", &semaphorev1.ListSetsRequest{Address: "10.2.0.9"},
		"c2/bank/db c2-bank-db:0/1 x(u4)=10.2.0.9 missing 10.2.0.9")
	k.settle(names...)
	is("all is written", all,
		"c2/bank/db c2-bank-db:1/1 x(u4)=10.2.0.9",
		"c2/shop/web c2-shop-web:2/2 c2-shop-web.part-2:1/1 a(u1)=10.2.0.1 b(u2)=10.2.0.2,fd02::2 idle(u3)=")
	web := "c2/shop/web c2-shop-web:2/2 c2-shop-web.part-2:1/1 a(u1)=10.2.0.1 b(u2)=10.2.0.2,fd02::2 idle(u3)="
	is("a namespace", &semaphorev1.ListSetsRequest{Cluster: "c2", Namespace: "shop"}, web)
	is("a pod", &semaphorev1.ListSetsRequest{Pod: "idle"}, web)
	is("an address", &semaphorev1.ListSetsRequest{Address: "fd02::2"}, web)
	is("an address that nobody has", &semaphorev1.ListSetsRequest{Address: "10.2.0.77"})
	is("another cluster", &semaphorev1.ListSetsRequest{Cluster: "c3"})
	is("another name", &semaphorev1.ListSetsRequest{Name: "cache"})
	names = touchedNames(p.Apply("c2", pods("shop/b", "bank/x")))
	is("two are to go", all,
		"c2/bank/db c2-bank-db:1/0 leftover 10.2.0.9",
		"c2/shop/web c2-shop-web:2/1 c2-shop-web.part-2:1/0 a(u1)=10.2.0.1 idle(u3)= leftover 10.2.0.2,fd02::2")
	k.settle(names...)
	is("they have gone", all, "c2/shop/web c2-shop-web:1/1 a(u1)=10.2.0.1 idle(u3)=")
}

// A set that another broker has written is shown as such, before the remote has been heard.
func TestDescribeWhatIsThere(t *testing.T) {
	before := planOf(2)
	written := newCluster(t, before)
	written.settle(touchedNames(before.Apply("c2", pods("shop/a u1 web 10.2.0.1")))...)
	p := planOf(2)
	for name, set := range written.sets {
		p.Observed(name, set)
	}
	if got, want := setLines(p, &semaphorev1.ListSetsRequest{Address: "10.2.0.1"}),
		"c2/shop/web c2-shop-web:1/0 leftover 10.2.0.1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A set whose namespace does not exist in the own cluster has its pods, and no object that misses anything.
func TestDescribeWithoutItsNamespace(t *testing.T) {
	p := New([]config.Remote{{Name: "c2"}}, Options{LabelDomains: []string{"d"}, MaxSetSize: 100, Namespaced: true})
	p.Apply("c2", pods("shop/a u1 web 10.2.0.1"))
	all := &semaphorev1.ListSetsRequest{}
	if got, want := setLines(p, all), "c2/shop/web a(u1)=10.2.0.1"; got != want {
		t.Errorf("without the namespace: got %s, want %s", got, want)
	}
	p.Namespace("shop", true)
	if got, want := setLines(p, all), "c2/shop/web c2-shop-web:0/1 a(u1)=10.2.0.1 missing 10.2.0.1"; got != want {
		t.Errorf("with the namespace: got %s, want %s", got, want)
	}
}

// TestDescribeListsAHundredAddresses: a set of which nothing is written lists the first hundred of what is missing.
func TestDescribeListsAHundredAddresses(t *testing.T) {
	p := plan()
	for i := range 150 {
		p.Apply("c2", pods(fmt.Sprintf("shop/p%d u%d web 10.2.0.%d", i, i, i)))
	}
	sets := p.Describe(&semaphorev1.ListSetsRequest{}, netip.Addr{})
	if len(sets) != 1 || len(sets[0].Missing) != 100 || sets[0].Objects[0].Desired != 150 {
		t.Errorf("%v, want one set that lacks 150 addresses and lists 100", sets)
	}
}
