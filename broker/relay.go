package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
)

const (
	// concurrent relayed connections: semaphorectl has one
	relayed     = 16
	reachLeader = 5 * time.Second
)

// relay is a unix socket beside the debug socket, at which semaphorectl in a standby's container reaches the leader. It
// copies bytes over mTLS to the leader's federation listener, where this cluster's broker may do what an operator may.
// It exists because `kubectl exec deployment/semaphore-broker` picks any replica.
type relay struct {
	cfg    *config.Broker
	source *identity.Source
	client kubernetes.Interface
	pod    config.Pod
	log    *slog.Logger
}

func (r *relay) serve(ctx context.Context) error {
	path := conns.ToLeader(r.cfg.Listen.DebugSocket)
	if len(r.pod.IPs) == 0 || path == "" {
		return nil
	}
	listener, err := conns.Listen(path)
	if err != nil {
		return fmt.Errorf("socket to the leader: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, relayed)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("socket to the leader: %w", err)
		}
		select {
		case room <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		running.Go(func() {
			defer func() { <-room }()
			if err := r.carry(ctx, conn); err != nil {
				r.log.Warn("cannot connect semaphorectl to the leader", "error", err)
			}
		})
	}
}

func (r *relay) carry(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	leader, err := r.dial(ctx)
	if err != nil {
		return err
	}
	defer leader.Close()
	stop := context.AfterFunc(ctx, func() {
		conn.Close()
		leader.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(leader, conn) // the end of either ends both
		leader.Close()
	}()
	_, _ = io.Copy(conn, leader)
	conn.Close()
	<-done
	return nil
}

func (r *relay) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, reachLeader)
	defer cancel()
	address, err := r.leader(ctx)
	if err != nil {
		return nil, err
	}
	tlsConfig := r.source.ClientTLS(identity.Broker(r.cfg.Cluster))
	tlsConfig.NextProtos = []string{"h2"}
	return (&tls.Dialer{Config: tlsConfig}).DialContext(ctx, "tcp", address)
}

// leader returns the address of the leader's federation listener, from the leader's slices.
func (r *relay) leader(ctx context.Context) (string, error) {
	if len(r.cfg.Listen.Services) == 0 {
		return "", errors.New("listen.services names none")
	}
	family := discoveryv1.AddressTypeIPv4
	if !r.pod.IPs[0].Is4() {
		family = discoveryv1.AddressTypeIPv6
	}
	slice, err := r.client.DiscoveryV1().EndpointSlices(r.pod.Namespace).Get(ctx,
		leader.SliceName(r.cfg.Listen.Services[0], family), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, e := range slice.Endpoints {
		for _, p := range slice.Ports {
			if p.Name != nil && *p.Name == federationPort && p.Port != nil {
				return net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))), nil
			}
		}
	}
	return "", errors.New("nobody leads")
}
