package streams

import (
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// proxy listens where the environment says that a proxy is. The environment is read once in a process.
var proxy net.Listener

func TestMain(m *testing.M) {
	var err error
	if proxy, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		panic(err)
	}
	for name, value := range map[string]string{"HTTPS_PROXY": "http://" + proxy.Addr().String(), "NO_PROXY": ""} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
