// Package fleet reaches the parts of a cluster for semaphorectl: their unix sockets, or the address of an exporter or broker with mTLS.
//
// In go the flags of a command, out come connections to parts, and the answers of those that do what is asked. It prints nothing and
// judges nothing. It imports internal/identity and internal/config for TLS, and no verb of semaphorectl.
package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/unixsocket"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// socketDir is where the parts put their sockets unless their configuration says otherwise.
const socketDir = "/run/semaphore"

// askRole is how long it may take to find out whether a part is a standby, and to reach the leader.
const askRole = 3 * time.Second

// Target is how to reach a part.
type Target struct {
	// Sockets are the unix sockets to ask; none for those of this machine.
	Sockets []string
	// Address is a host:port to ask instead of a socket: the Part (exporter or broker) of Cluster, with the files of TLSDir.
	Address, Part, Cluster, TLSDir string
}

// Flags adds the flags of a command that asks parts.
func (t *Target) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&t.Sockets, "socket", nil, "unix socket of a part; may be repeated (default: those in "+socketDir+", and in a standby broker's container the leader)")
	f.StringVar(&t.Address, "address", "", "host:port of an exporter or broker, instead of a socket")
	f.StringVar(&t.Part, "part", "broker", "with --address: exporter or broker")
	f.StringVar(&t.Cluster, "cluster", "", "with --address: the part's cluster")
	f.StringVar(&t.TLSDir, "tls-dir", ".", "with --address: directory with tls.crt and tls.key of spiffe://CLUSTER/semaphorectl, and CLUSTER.pem; "+
		"see semaphorectl pki init")
	cmd.MarkFlagsMutuallyExclusive("socket", "address")
}

// Part is a part that can be asked.
type Part struct {
	semaphorev1.DebugServiceClient
	// Where is the socket or address.
	Where string
	conn  *grpc.ClientConn
}

// Close ends the connection.
func (p *Part) Close() error { return p.conn.Close() }

// Dial is the parts to be asked, one at least. A connection is made when it is first used.
func (t *Target) Dial(ctx context.Context) ([]*Part, error) {
	if t.Address != "" {
		creds, err := t.credentials()
		if err != nil {
			return nil, err
		}
		p, err := newPart(t.Address, t.Address, creds)
		if err != nil {
			return nil, err
		}
		return []*Part{p}, nil
	}
	sockets, err := t.findSockets()
	if err != nil {
		return nil, err
	}
	var parts []*Part
	for _, socket := range sockets {
		if len(t.Sockets) == 0 {
			socket = leading(ctx, socket)
		}
		p, err := newPart(socket, "unix://"+socket, insecure.NewCredentials())
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// leading is the socket at which the part that leads is asked: where the one of a socket is a standby, that which it has for the
// leader. kubectl exec with the name of a Deployment takes any of its pods. Whatever goes wrong, the part itself says it.
func leading(ctx context.Context, socket string) string {
	toLeader := unixsocket.ToLeader(socket)
	if _, err := os.Stat(toLeader); err != nil {
		return socket
	}
	ctx, cancel := context.WithTimeout(ctx, askRole)
	defer cancel()
	for _, path := range []string{socket, toLeader} {
		p, err := newPart(path, "unix://"+path, insecure.NewCredentials())
		if err != nil {
			return socket
		}
		s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
		_ = p.Close()
		if path == socket && !s.GetStandby() || path == toLeader && (err != nil || s.GetStandby()) {
			return socket
		}
	}
	return toLeader
}

func newPart(where, target string, creds credentials.TransportCredentials) (*Part, error) {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &Part{semaphorev1.NewDebugServiceClient(conn), where, conn}, nil
}

func (t *Target) credentials() (credentials.TransportCredentials, error) {
	var server func(string) spiffeid.ID
	switch t.Part {
	case "broker":
		server = identity.Broker
	case "exporter":
		server = identity.Exporter
	default:
		return nil, fmt.Errorf("--part %q: use exporter or broker; an agent is asked through its socket", t.Part)
	}
	if err := config.ClusterName(t.Cluster); err != nil {
		return nil, fmt.Errorf("--cluster: %w", err)
	}
	source, err := identity.NewSource(config.TLS{
		CertFile: filepath.Join(t.TLSDir, "tls.crt"), KeyFile: filepath.Join(t.TLSDir, "tls.key"), BundleDir: t.TLSDir,
	})
	if err != nil {
		return nil, fmt.Errorf("--tls-dir %s: %w", t.TLSDir, err)
	}
	return credentials.NewTLS(source.ClientTLS(server(t.Cluster))), nil
}

func (t *Target) findSockets() ([]string, error) {
	if len(t.Sockets) > 0 {
		var found []string
		for _, s := range t.Sockets {
			path, err := filepath.Abs(s)
			if err != nil {
				return nil, err
			}
			if _, err := os.Stat(path); err != nil {
				return nil, fmt.Errorf("--socket: %w", err)
			}
			found = append(found, path)
		}
		return found, nil
	}
	found, err := filepath.Glob(filepath.Join(socketDir, "*.sock"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no part's socket in %s: run this where a part runs (kubectl -n semaphore exec deploy/semaphore-broker -- semaphorectl …), or give --socket or --address", socketDir)
	}
	return found, nil
}
