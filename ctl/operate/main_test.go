package operate_test

import (
	"testing"

	"github.com/kube-semaphore/semaphore/ctl"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestMain(m *testing.M) { ctltest.Main(m, ctl.Command) }
