//go:build linux

package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"golang.org/x/sys/unix"
)

func namespace(t *testing.T) *netns.Namespace {
	t.Helper()
	testkit.NeedsRoot(t, "it captures packets")
	ns := testkit.Value(netns.Create(fmt.Sprintf("capture-test-%d", os.Getpid())))(t)
	t.Cleanup(func() { testkit.NoError(t, ns.Delete()) })
	return ns
}

func TestCapture(t *testing.T) {
	ns := namespace(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	receiver := testkit.Value(ns.ListenPacket(ctx, "udp", "127.0.0.1:0"))(t)
	defer receiver.Close()
	sender := testkit.Value(ns.DialContext(ctx, "udp", receiver.LocalAddr().String()))(t)
	defer sender.Close()
	send := func(text string) {
		t.Helper()
		testkit.Value(sender.Write([]byte(text)))(t)
	}

	send("too early")
	began := time.Now().Add(-time.Second)
	c := testkit.Value(Start(ns, "lo"))(t)
	const many = 1000
	for i := range many {
		send(fmt.Sprintf("packet %04d", i))
	}
	p, err := c.Wait(ctx, func(p Packet) bool { return bytes.Contains(p.Data, []byte("packet 0007")) })
	if err != nil || p.Time.Before(began) || p.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("Wait = %v, %v", p, err)
	}
	send("the last one") // and at once:
	packets := testkit.Value(c.Stop())(t)
	count := func(text string) (n int) {
		for _, p := range packets {
			if bytes.Contains(p.Data, []byte(text)) {
				n++
			}
		}
		return n
	}
	// On loopback each packet is seen twice, outgoing and incoming.
	if count("packet 0") != 2*many || count("the last one") != 2 || count("too early") != 0 {
		t.Errorf("of %d packets: %d numbered, %d last, %d early", len(packets), count("packet 0"), count("the last one"),
			count("too early"))
	}
	if again, err := c.Stop(); err != nil || len(again) != len(packets) {
		t.Errorf("second Stop: %d packets, %v", len(again), err)
	}

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.Wait(short, func(Packet) bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait for nothing: %v", err)
	}
	if _, err := Start(ns, "eth7"); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "eth7 of "+ns.Name()) {
		t.Errorf("capture of no interface: %v", err)
	}
}
