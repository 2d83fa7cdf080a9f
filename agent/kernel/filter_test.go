package kernel

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestNoPodRoutes: the kernel filters out exactly the events that the agent does not need: those of Calico's routes to
// pods, and of the local table.
func TestNoPodRoutes(t *testing.T) {
	t.Parallel()
	vm, err := bpf.NewVM(noPodRoutes())
	testkit.Must(t, err)
	for _, c := range []struct {
		kind            uint16
		table, protocol byte
		taken           bool
	}{
		{unix.RTM_NEWROUTE, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, true},
		{unix.RTM_DELROUTE, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, true},
		{unix.RTM_NEWROUTE, unix.RT_TABLE_MAIN, calicoProtocol, false},
		{unix.RTM_DELROUTE, unix.RT_TABLE_MAIN, calicoProtocol, false},
		{unix.RTM_NEWROUTE, unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL, false},
		{unix.RTM_NEWLINK, unix.RT_TABLE_LOCAL, calicoProtocol, true},
		{unix.RTM_DELADDR, unix.RT_TABLE_LOCAL, calicoProtocol, true},
		{unix.RTM_NEWRULE, unix.RT_TABLE_LOCAL, calicoProtocol, true},
	} {
		m := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
		binary.NativeEndian.PutUint16(m[4:], c.kind)
		m[unix.SizeofNlMsghdr+4], m[unix.SizeofNlMsghdr+5] = c.table, c.protocol
		n, err := vm.Run(m)
		if taken := n != 0; taken != c.taken || err != nil {
			t.Errorf("message %d, table %d, protocol %d: taken %v, %v", c.kind, c.table, c.protocol, taken, err)
		}
	}
}
