package kubetest

import (
	"context"
	"net"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Through returns a path to the apiserver that a test can interrupt.
func Through(t *testing.T, api *rest.Config) (*rest.Config, *proxy.Proxy) {
	t.Helper()
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := proxy.New(listener, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(api.Host, "https://"))
	})
	testkit.Run(t, p.Run)
	through := rest.CopyConfig(api)
	through.Host = "https://" + p.Address().String()
	return through, p
}
