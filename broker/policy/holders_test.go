package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var holdersStart = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return holdersStart.Add(time.Duration(seconds) * time.Second) }

func member(uid, set string, ips ...string) *semaphorev1.Object {
	return &semaphorev1.Object{Spec: &semaphorev1.Object_SetMember{
		SetMember: &semaphorev1.SetMember{PodUid: uid, SetName: set, Ips: ips}}}
}

func take(m *Holders, cluster string, second int, pod string, old, now *semaphorev1.Object) {
	key := replica.Key{Kind: kindMember, Namespace: "shop", Name: pod}
	m.Take(cluster, []replica.Change{{Key: key, Old: old, New: now, ObservedAt: at(second)}}, at(second))
}

func said(all []*semaphorev1.Holder) string {
	var out []string
	for _, h := range all {
		from, until := "?", "now"
		if h.GetFrom() != nil {
			from = fmt.Sprint(h.GetFrom().AsTime().Sub(holdersStart).Seconds())
		}
		if h.GetUntil() != nil {
			until = fmt.Sprint(h.GetUntil().AsTime().Sub(holdersStart).Seconds())
		}
		out = append(out, fmt.Sprintf("%s/%s/%s(%s) in %s %s-%s", h.GetCluster(), h.GetNamespace(), h.GetPod(), h.GetUid(),
			h.GetSet(), from, until))
	}
	return strings.Join(out, "; ")
}

// TestHolders: who had an address is distinguished by time, also where an address passes from pod to pod.
func TestHolders(t *testing.T) {
	m := NewHolders(100, holdersStart)
	ip := netip.MustParseAddr("10.2.0.5")
	is := func(what, want string, now ...Holder) {
		t.Helper()
		all, since := m.Holders(ip, now)
		if got := said(all); got != want || !since.Equal(holdersStart) {
			t.Errorf("%s: %s\nwant %s", what, got, want)
		}
	}
	web := Holder{"c2", "shop", "web", "u1", "web"}
	// A first snapshot says nothing of when.
	first := pods("shop/web u1 web 10.2.0.5")
	first[0].ObservedAt = time.Time{}
	m.Take("c2", first, at(0))
	is("no pod is known to have changed", "c2/shop/web(u1) in web ?-now", web)
	take(m, "c2", 10, "web", member("u1", "web", "10.2.0.5"), nil)
	is("it ended", "c2/shop/web(u1) in web ?-10")
	take(m, "c2", 20, "db", nil, member("u2", "db", "10.2.0.5", "fd02::5"))
	is("another pod has it", "c2/shop/db(u2) in db 20-now; c2/shop/web(u1) in web ?-10",
		Holder{"c2", "shop", "db", "u2", "db"})
	take(m, "c2", 30, "db", member("u2", "db", "10.2.0.5", "fd02::5"), member("u2", "db", "10.2.0.5"))
	is("it lost another address", "c2/shop/db(u2) in db 20-now; c2/shop/web(u1) in web ?-10")
	take(m, "c2", 40, "db", member("u2", "db", "10.2.0.5"), member("u2", "cache", "10.2.0.5"))
	is("it changed its set", "c2/shop/db(u2) in cache 40-now; c2/shop/db(u2) in db 20-40; c2/shop/web(u1) in web ?-10")

	all, _ := m.Holders(ip, nil)
	for second, want := range map[int]string{5: "c2/shop/web(u1) in web ?-10", 15: "", 25: "c2/shop/db(u2) in db 20-40",
		40: "c2/shop/db(u2) in cache 40-now"} {
		if got := said(At(append([]*semaphorev1.Holder{}, all...), at(second))); got != want {
			t.Errorf("at %d: %s, want %s", second, got, want)
		}
	}
}

// TestShares: a remote whose pods change all the time pushes out none of what another remote has in its share, and the
// answer about the other's addresses is complete for as long as before. A remote alone has all the room.
func TestShares(t *testing.T) {
	m := NewHolders(30, holdersStart)
	change := func(cluster string, second int, ip string) {
		take(m, cluster, second, ip, nil, member(ip, "s", ip))
	}
	for i := range 40 {
		change("c2", i, fmt.Sprintf("10.2.0.%d", i))
	}
	if q := m.queues["c2"]; len(q.changes) != 30 || !q.since.Equal(at(9)) {
		t.Errorf("alone it has %d changes since %s", len(q.changes), q.since)
	}
	for i := range 10 {
		change("c3", 40+i, fmt.Sprintf("10.3.0.%d", i))
		change("c4", 40+i, fmt.Sprintf("10.4.0.%d", i))
	}
	for i := range 10_000 {
		change("c2", 50+i, fmt.Sprintf("10.2.%d.%d", 1+i/250, i%250))
	}
	for _, cluster := range []string{"c2", "c3", "c4"} {
		if q := m.queues[cluster]; len(q.changes) != 10 {
			t.Errorf("%s has %d changes", cluster, len(q.changes))
		}
	}
	for i := range 10 {
		all, since := m.Holders(netip.MustParseAddr(fmt.Sprintf("10.3.0.%d", i)), nil)
		if len(all) != 1 || all[0].GetFrom().AsTime() != at(40+i) || !since.Equal(holdersStart) {
			t.Errorf("10.3.0.%d: %s since %s", i, said(all), since)
		}
	}
	if _, since := m.Holders(netip.MustParseAddr("10.2.0.39"), nil); !since.Equal(at(50 + 9_989)) {
		t.Errorf("an address that no pod is known to have had: complete since %s", since)
	}
	if m.n != 30 {
		t.Errorf("%d changes are kept", m.n)
	}
}
