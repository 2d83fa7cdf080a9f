package ctl

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// socketDir is where the parts put their sockets unless their configuration says otherwise.
const socketDir = "/run/semaphore"

// target is how to reach a part.
type target struct {
	socket  string
	address string
	part    string
	cluster string
	tls     config.TLS
}

func (t *target) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&t.socket, "socket", "", "unix socket of the part (default: the one in "+socketDir+")")
	f.StringVar(&t.address, "address", "", "host:port of an exporter or broker, instead of a socket")
	f.StringVar(&t.part, "part", "broker", "with --address: exporter or broker")
	f.StringVar(&t.cluster, "cluster", "", "with --address: the part's cluster")
	f.StringVar(&t.tls.CertFile, "cert", "tls.crt", "with --address: certificate of spiffe://CLUSTER/semaphorectl")
	f.StringVar(&t.tls.KeyFile, "key", "tls.key", "with --address: its key")
	f.StringVar(&t.tls.BundleDir, "bundles", ".", "with --address: directory of CLUSTER.pem")
}

// dial is a client of the part. The connection is made when it is first used.
func (t *target) dial() (semaphorev1.DebugServiceClient, *grpc.ClientConn, error) {
	conn, err := t.connect()
	if err != nil {
		return nil, nil, err
	}
	return semaphorev1.NewDebugServiceClient(conn), conn, nil
}

func (t *target) connect() (*grpc.ClientConn, error) {
	if t.address == "" {
		socket, err := t.findSocket()
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	var server func(string) spiffeid.ID
	switch t.part {
	case "broker":
		server = identity.Broker
	case "exporter":
		server = identity.Exporter
	default:
		return nil, fmt.Errorf("--part %q: use exporter or broker; an agent is asked through its socket", t.part)
	}
	if _, err := spiffeid.TrustDomainFromString(t.cluster); err != nil {
		return nil, fmt.Errorf("--cluster %q: %w", t.cluster, err)
	}
	source, err := identity.NewSource(t.tls)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(t.address, grpc.WithTransportCredentials(credentials.NewTLS(source.ClientTLS(server(t.cluster)))))
}

func (t *target) findSocket() (string, error) {
	if t.socket != "" {
		return filepath.Abs(t.socket)
	}
	found, err := filepath.Glob(filepath.Join(socketDir, "*.sock"))
	if err != nil {
		return "", err
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no part's socket in %s: run this where a part runs (kubectl exec deploy/semaphore-broker -- semaphorectl …), or give --socket or --address", socketDir)
	default:
		return "", fmt.Errorf("several parts' sockets: give one of %q as --socket", found)
	}
}
