// Package fleet reaches the parts of clusters for semaphorectl: through an apiserver, as kubectl exec does, or by their
// unix sockets, or the address of an exporter or broker with mTLS (docs/architecture/semaphorectl.md).
//
// Its input are the flags of a command; its output are connections to parts, and the answers of those that support what
// is asked, and objects of a cluster as values (Objects). It prints nothing and judges nothing.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const socketDir = "/run/semaphore"

// askRole bounds the time to find out whether a part is a standby, and to reach the leader: after a rollout the next
// one leads within seconds.
const askRole = 10 * time.Second

// Target says how to reach a part.
type Target struct {
	// Access names the clusters, if neither sockets nor an address are given.
	Access *Access
	// Parts are those to ask in a cluster, such as Broker.
	Parts []string
	// ReadsCluster is set if the command reads the cluster's objects, too: Access may then be given beside a socket or
	// an address.
	ReadsCluster bool
	// Orders is set if the command changes something. Others reach the part at a socket that takes no orders, which is
	// all that the ClusterRole semaphore-viewer lets a caller do.
	Orders bool
	// ReadOnly is for Stdio: the socket that takes no orders.
	ReadOnly bool
	// Nodes are those whose agents are asked: in place of the other parts, or beside them if AgentsToo is set.
	Nodes     []string
	AgentsToo bool
	// Sockets are the unix sockets to ask; none for those of this machine.
	Sockets []string
	// Address is a host:port to ask instead of a socket: the Part (exporter or broker) of Cluster, with the files of
	// TLSDir.
	Address, Part, Cluster, TLSDir string
}

func (t *Target) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&t.Sockets, "socket", nil,
		"in a part's container: unix `socket` of a part; may be repeated (default: those in "+socketDir+
			", and in a standby broker's container the leader)")
	f.StringVar(&t.Address, "address", "", "`host:port` of an exporter or broker, without an apiserver")
	f.StringVar(&t.Part, "part", "",
		"exporter or broker (default: all; with --address: broker)")
	show.ClusterFlag(cmd, &t.Cluster, "with --address: the part's")
	f.StringVar(&t.TLSDir, "tls-dir", ".",
		"with --address: `directory` with tls.crt and tls.key of spiffe://CLUSTER/semaphorectl, and CLUSTER.pem; "+
			"see semaphorectl pki init")
	cmd.MarkFlagsMutuallyExclusive("socket", "address")
	for _, name := range []string{"socket", "address", "part", "cluster", "tls-dir"} {
		_ = f.SetAnnotation(name, connection, nil) // the flag is there
	}
	_ = cmd.RegisterFlagCompletionFunc("part", cobra.FixedCompletions([]cobra.Completion{Exporter, Broker},
		cobra.ShellCompDirectiveNoFileComp))
	if slices.Contains(t.Parts, Agent) {
		f.StringSliceVar(&t.Nodes, "agent", nil, "`node` whose agent is asked; may be repeated")
	}
}

// connection annotates the flags that say how to reach a part without an apiserver.
const connection = "semaphore-connection"

// OfConnection reports whether a flag says how to reach a part: such flags are alike for all verbs that ask parts.
func OfConnection(f *pflag.Flag) bool {
	_, is := f.Annotations[connection]
	return is
}

type Part struct {
	semaphorev1.DebugServiceClient
	// Where is the socket, the address, or the context and the pod.
	Where string
	// Context is the context of the cluster, if the part was reached through an apiserver.
	Context string
	// Standby is why this is a standby in place of its leader, which was sought; nil for any other part.
	Standby error
	conn    *grpc.ClientConn
	// carrier is the connection below gRPC's, which gRPC closes too late for us; nil for none.
	carrier io.Closer
}

func (p *Part) Close() error {
	err := p.conn.Close()
	if p.carrier != nil {
		err = errors.Join(err, p.carrier.Close())
	}
	return err
}

type Dialer func(context.Context) (*Part, error)

// Dial returns the parts to ask. It fails as Dialers does, and, beside parts, for others that cannot be reached, such
// as the leader of a standby.
func (t *Target) Dial(ctx context.Context) ([]*Part, error) {
	dialers, err := t.Dialers()
	if err != nil {
		return nil, err
	}
	found, failed := All(dialers, func(dial Dialer) (*Part, error) { return dial(ctx) })
	found = slices.DeleteFunc(found, func(p *Part) bool { return p == nil })
	for _, p := range found {
		failed = append(failed, p.Standby)
	}
	return found, joinLines(failed)
}

// Dialers returns a Dialer for each part to ask, for those who do not wait for the slowest. It fails for flags that
// exclude each other, or that name no part.
func (t *Target) Dialers() ([]Dialer, error) {
	switch {
	case (t.Address != "" || len(t.Sockets) > 0) && t.Access.Given() && !t.ReadsCluster:
		return nil, errors.New(
			"--socket, --address: without --context and --kubeconfig, which reach parts through an apiserver",
		)
	case t.Address != "":
		creds, err := t.credentials()
		if err != nil {
			return nil, err
		}
		return []Dialer{func(context.Context) (*Part, error) { return newPart(t.Address, t.Address, creds) }}, nil
	case len(t.Sockets) > 0 || InContainer() && !t.Access.Given():
		return t.socketDialers()
	}
	return t.clusterDialers()
}

func (t *Target) socketDialers() (out []Dialer, err error) {
	sockets, err := t.findSockets()
	if err != nil {
		return nil, err
	}
	for _, socket := range sockets {
		out = append(out, func(ctx context.Context) (*Part, error) {
			path, standby := socket, error(nil)
			if len(t.Sockets) == 0 {
				path, standby = leading(ctx, socket)
			}
			p, err := newPart(path, "unix://"+path, insecure.NewCredentials())
			if err == nil {
				p.Standby = standby
			}
			return p, err
		})
	}
	return out, nil
}

func (t *Target) clusterDialers() (out []Dialer, err error) {
	wanted, err := t.wanted()
	if err != nil {
		return nil, err
	}
	clusters, err := t.Access.Clusters()
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		c.orders = t.Orders
		for _, w := range wanted {
			out = append(out, func(ctx context.Context) (*Part, error) { return c.Part(ctx, w.part, w.node) })
		}
	}
	return out, nil
}

// wantedPart is a part that a command asks, with the node if it is an agent.
type wantedPart struct{ part, node string }

func (t *Target) wanted() ([]wantedPart, error) {
	var out []wantedPart
	others := len(t.Nodes) == 0 || t.AgentsToo
	for _, part := range t.Parts {
		if part != Agent && (part == t.Part || others && t.Part == "") {
			out = append(out, wantedPart{part: part})
		}
	}
	for _, node := range t.Nodes {
		out = append(out, wantedPart{Agent, node})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("--part %q: use one of %s; an agent is asked by --agent NODE", t.Part,
			strings.Join(t.Parts, ", "))
	}
	return out, nil
}

// joinLines joins several errors into one, each text once; nil for none.
func joinLines(all []error) error {
	var text []string
	for _, err := range all {
		if err == nil {
			continue
		}
		if line := strings.ReplaceAll(err.Error(), "\n", "; "); !slices.Contains(text, line) {
			text = append(text, line)
		}
	}
	if len(text) == 0 {
		return nil
	}
	return errors.New(strings.Join(text, "; "))
}

// InContainer reports whether parts have their sockets here.
func InContainer() bool { return len(socketsHere()) > 0 }

func socketsHere() []string {
	found, _ := filepath.Glob(filepath.Join(socketDir, "*.sock")) // no wrong pattern
	return found
}

// leading returns the socket of the leader: if the part of a socket is a standby, the socket that it has for the
// leader. kubectl exec with the name of a Deployment picks any of its pods. On any error it returns the part's own
// socket, and of a standby the error.
func leading(ctx context.Context, socket string) (string, error) {
	toLeader := conns.ToLeader(socket)
	if _, err := os.Stat(toLeader); err != nil {
		return socket, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askRole)
	defer cancel()
	leads := func(path string, options ...grpc.CallOption) (bool, error) {
		p, err := newPart(path, "unix://"+path, insecure.NewCredentials())
		if err != nil {
			return false, err
		}
		defer p.Close()
		s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{}, options...)
		return !s.GetStandby(), err
	}
	if is, err := leads(socket); is || err != nil {
		return socket, nil
	}
	if is, err := leads(toLeader, grpc.WaitForReady(true)); !is || err != nil {
		return socket, fmt.Errorf("only a standby answers, and its socket to the leader does not: %w",
			cmp.Or(err, errors.New("another standby does")))
	}
	return toLeader, nil
}

func newPart(where, target string, creds credentials.TransportCredentials) (*Part, error) {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &Part{DebugServiceClient: semaphorev1.NewDebugServiceClient(conn), Where: where, conn: conn}, nil
}

func (t *Target) credentials() (credentials.TransportCredentials, error) {
	server := map[string]func(string) spiffeid.ID{"": identity.Broker, Broker: identity.Broker,
		Exporter: identity.Exporter}[t.Part]
	if server == nil {
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
	found := socketsHere()
	if len(found) == 0 {
		return nil,
			fmt.Errorf("no part's socket in %s: give --context, to ask a cluster from here, or --socket or --address",
				socketDir)
	}
	return found, nil
}
