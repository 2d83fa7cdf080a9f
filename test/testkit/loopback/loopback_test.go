package loopback

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) {
	Enter()
	os.Exit(m.Run())
}

// TestEnter: the namespace has only loopback, child processes of a test are in it, too, and no port is returned twice
// or taken by an outgoing connection.
func TestEnter(t *testing.T) {
	testkit.NeedsRoot(t, "it makes a network namespace")
	interfaces := testkit.Value(net.Interfaces())(t)
	if len(interfaces) != 1 || interfaces[0].Name != "lo" || interfaces[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces %v, want lo alone, up", interfaces)
	}
	ours := testkit.Value(os.Readlink("/proc/self/ns/net"))(t)
	out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
	if theirs := strings.TrimSpace(string(out)); err != nil || theirs != ours {
		t.Errorf("a program runs in %s, %v, want %s", theirs, err, ours)
	}
	ports := map[string]bool{}
	for range 100 {
		address := Address(t)
		if ports[address] {
			t.Errorf("%s is given out twice", address)
		}
		ports[address] = true
		listener := testkit.Value(net.Listen("tcp", address))(t)
		defer listener.Close()
		conn := testkit.Value(net.Dial("tcp", address))(t)
		defer conn.Close()
		if port := conn.LocalAddr().(*net.TCPAddr).Port; port <= lastPort {
			t.Errorf("an outgoing connection has port %d, which is to be given out", port)
		}
	}
}
