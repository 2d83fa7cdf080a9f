//go:build linux

package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// target is the running container that probes and hooks are directed at.
type target struct {
	node      *netns.Namespace // where a kubelet would dial from
	ip        netip.Addr
	container *corev1.Container
	process   *container.Process
}

// check carries out one handler; nil means success.
func (t target) check(ctx context.Context, h corev1.ProbeHandler) error {
	switch {
	case h.HTTPGet != nil:
		return t.httpGet(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		address, err := t.address(h.TCPSocket.Host, h.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := t.node.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	case h.GRPC != nil:
		return t.grpcHealth(ctx, h.GRPC)
	case h.Exec != nil:
		return t.exec(ctx, h.Exec)
	}
	return errors.New("probe has no handler; want httpGet, tcpSocket, grpc or exec")
}

func (t target) exec(ctx context.Context, e *corev1.ExecAction) error {
	var said strings.Builder
	err := t.process.Exec(ctx, container.ExecSpec{Args: e.Command, Stdout: &said, Stderr: &said})
	if err != nil {
		return fmt.Errorf("%w: %s", err, cut(said.String()))
	}
	return nil
}

func (t target) httpGet(ctx context.Context, g *corev1.HTTPGetAction) error {
	address, err := t.address(g.Host, g.Port)
	if err != nil {
		return err
	}
	path := g.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	scheme := "http"
	if g.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "kube-probe/testbed")
	for _, h := range g.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			request.Host = h.Value
		} else {
			request.Header.Add(h.Name, h.Value)
		}
	}
	client := http.Client{
		Transport: &http.Transport{
			DialContext:       t.node.DialContext,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as documented for probes
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 10<<10))
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP status %d: %s", response.StatusCode, cut(string(body)))
	}
	return nil
}

func (t target) grpcHealth(ctx context.Context, g *corev1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+netip.AddrPortFrom(t.ip, uint16(g.Port)).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return t.node.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	request := &healthv1.HealthCheckRequest{}
	if g.Service != nil {
		request.Service = *g.Service
	}
	answer, err := healthv1.NewHealthClient(conn).Check(ctx, request)
	if err != nil {
		return err
	}
	if answer.Status != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health status %s", answer.Status)
	}
	return nil
}

// address is the host and port of a handler, the pod's by default; a port's name is one of the container's.
func (t target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = t.ip.String()
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		i := slices.IndexFunc(t.container.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal })
		switch {
		case i >= 0:
			number = int(t.container.Ports[i].ContainerPort)
		case number == 0:
			return "", fmt.Errorf("container %s has no port %q", t.container.Name, port.StrVal)
		}
	}
	return netHostPort(host, number), nil
}

// cut bounds what a program said for a log or an event.
func cut(s string) string {
	const most = 300
	s = strings.TrimSpace(s)
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// Before its first success a probe is also tried between its periods, so that a pod becomes ready soon after its process
// does: a testbed starts many pods, and many manifests have a period of 10 s. Failures count from the end of the first
// period on, and once a period.
const (
	eagerFirst = 20 * time.Millisecond
	eagerMost  = time.Second
)

// watchProbe tries a probe until ctx ends, and reports each change of its outcome: true at the first success and after
// successThreshold successes in a row, false after failureThreshold failures in a row, with the last error. With once, it
// ends with the first true.
func watchProbe(ctx context.Context, p *corev1.Probe, try func(context.Context) error, once bool, report func(ok bool, err error)) {
	period := seconds(p.PeriodSeconds, 10)
	timeout := seconds(p.TimeoutSeconds, 1)
	outcome := probeOutcome{successes: max(int(p.SuccessThreshold), 1), failures: max(int(p.FailureThreshold), 1)}
	delay := time.Duration(p.InitialDelaySeconds) * time.Second
	timer := time.NewTimer(delay)
	defer timer.Stop()
	due := time.Now().Add(delay + period) // when a failure counts
	eager := eagerFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		onTime := !time.Now().Before(due)
		if onTime {
			due = time.Now().Add(period)
		}
		attempt, cancel := context.WithTimeout(ctx, timeout)
		err := try(attempt)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if outcome.add(err == nil, onTime) {
			report(outcome.ok, err)
			if outcome.ok && once {
				return
			}
		}
		wait := time.Until(due)
		if !outcome.succeeded {
			wait = min(wait, eager)
			eager = min(2*eager, eagerMost)
		}
		timer.Reset(max(wait, 0))
	}
}

// probeOutcome turns attempts into an outcome.
type probeOutcome struct {
	successes, failures int // thresholds
	known, ok           bool
	succeeded           bool // it was ok at some time
	inRow               int  // of the last attempts, those with the same result
	last                bool
}

// add takes an attempt and says whether the outcome changed. A failure that is not on time is no attempt.
func (o *probeOutcome) add(ok, onTime bool) bool {
	if !ok && !onTime {
		if o.last {
			o.inRow, o.last = 0, false
		}
		return false
	}
	if ok != o.last {
		o.inRow = 0
	}
	o.last = ok
	o.inRow++
	needed := o.failures
	if ok {
		needed = o.successes
	}
	if o.inRow < needed || o.known && o.ok == ok {
		return false
	}
	o.known, o.ok, o.succeeded = true, ok, o.succeeded || ok
	return true
}

func seconds(n int32, otherwise int32) time.Duration {
	if n <= 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}
