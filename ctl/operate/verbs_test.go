package operate

import (
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestVerbsOfOperators: the output of an operator's orders to a broker.
func TestVerbsOfOperators(t *testing.T) {
	t.Run("release", func(t *testing.T) {
		broker := ctltest.ServeControl(t, "broker", operator{})
		s := ctltest.NewSession(t)
		s.Call("release c2", "--socket", broker)
		s.Call("release c2 --kind service", "--socket", broker)
		s.Call("release c2 --kind pods", "--socket", broker)
		s.Call("release c9", "--socket", broker)
		s.Call("release", "--socket", broker)
		s.Golden("release", nil)
	})
	t.Run("drain", func(t *testing.T) {
		broker := ctltest.ServeControl(t, "broker", drainer{})
		s := ctltest.NewSession(t)
		s.Call("drain cluster c2", "--socket", broker)
		s.Call("drain cluster c3 --for 2h", "--socket", broker)
		s.Call("drain service c2:shop/echo --dry-run", "--socket", broker)
		s.Call("drain node c2/n1", "--socket", broker)
		s.Call("drain node c2/n2", "--socket", broker)
		s.Call("drain node n1", "--socket", broker)
		s.Call("drain cluster", "--socket", broker)
		s.Golden("drain", nil)

		s = ctltest.NewSession(t)
		s.Call("undrain cluster c2", "--socket", broker)
		s.Call("undrain service c2:shop/echo", "--socket", broker)
		s.Call("undrain cluster c9", "--socket", broker)
		s.Golden("undrain", nil)
	})
	t.Run("rotate-key", func(t *testing.T) {
		broker, agent := ctltest.ServeControl(t, "broker", rotator{}), ctltest.ServeControl(t, "agent", rotator{node: "n1"})
		s := ctltest.NewSession(t)
		s.Call("rotate-key --node n1", "--socket", broker)
		s.Call("rotate-key --all", "--socket", broker)
		s.Call("rotate-key --all --remote c9", "--socket", broker)
		s.Call("rotate-key", "--socket", agent)
		s.Call("rotate-key --force", "--socket", agent)
		s.Golden("rotate-key", nil)
	})
}
