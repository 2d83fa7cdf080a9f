package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Forward listens on a free port of 127.0.0.1, and carries connections to a port of the loopback of a pod, as kubectl
// port-forward does, until ctx ends. It calls ready with the local port once it listens. It fails if it cannot listen
// or the connection through the apiserver ends before.
func (c *Cluster) Forward(ctx context.Context, pod *Pod, port uint16, problems io.Writer,
	ready func(local uint16) error) error {
	url, err := c.ofPod(pod, "portforward", nil)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		return err
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, c.Config)
	if err != nil {
		return err
	}
	dialer := portforward.NewFallbackDialerForStreaming(websocket,
		spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
	// forwarder.Close ends no connection through the apiserver; only this does.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up := make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"},
		[]string{fmt.Sprintf("0:%d", port)}, ctx.Done(), up, nil, problems)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err = <-ended:
		return errors.Join(fmt.Errorf("%s: port-forward to pod %s/%s", c.Context, pod.Namespace, pod.Name), err)
	case <-up:
	}
	ports, err := forwarder.GetPorts()
	if err == nil {
		err = ready(ports[0].Local)
	}
	if err != nil {
		cancel()
		<-ended
		return err
	}
	if err = <-ended; ctx.Err() != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s: the port-forward to pod %s/%s has ended", c.Context, pod.Namespace, pod.Name), err)
}
