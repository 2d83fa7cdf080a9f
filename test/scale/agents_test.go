package scale

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// client is an agent that only attaches: its stream and the state of it are the product's, and it has no device.
type client struct {
	node, token string

	mu    sync.Mutex
	state *stream.State
	// current says that the broker has said that all is sent, at last at the time at.
	current bool
	at      time.Time
	changes int
	// addresses has the endpoint of each peer.
	addresses map[string]string
}

// client creates the Node, the pod and the token of an agent.
func (h *hub) client(ctx context.Context, i int) (*client, error) {
	c := &client{node: fmt.Sprintf("node-%05d", i), state: stream.NewState(), addresses: map[string]string{}}
	core, pods := h.kube.CoreV1(), h.kube.CoreV1().Pods(mirrors)
	if _, err := core.Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: c.node},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("172.30.%d.%d", i/250%256, 1+i%250)}}},
	}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + c.node},
		Spec: corev1.PodSpec{NodeName: c.node, ServiceAccountName: "semaphore-agent",
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	token, err := core.ServiceAccounts(mirrors).CreateToken(ctx, "semaphore-agent", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{"semaphore-broker.c1"}, ExpirationSeconds: ptr.To(int64(24 * 3600)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c.token = filepath.Join(h.dir, "token-"+c.node)
	return c, os.WriteFile(c.token, []byte(token.Status.Token), 0o600)
}

// attach runs the stream of a client until ctx ends.
func (h *hub) attach(ctx context.Context, c *client) {
	cfg := &config.Agent{Cluster: "c1"}
	cfg.Broker.Address, cfg.Broker.TokenFile = h.peering, c.token
	cfg.Broker.BundleFile = filepath.Join(h.dir, "bundles", "c1.pem")
	_ = stream.New(cfg, c).Run(ctx)
}

func (c *client) Begin() []*semaphorev1.AttachRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Begin()
	epoch, revision := c.state.Resume()
	return []*semaphorev1.AttachRequest{stream.Hello(epoch, revision, c.state.Held()),
		players.Report(&semaphorev1.DeviceReport{Cluster: "c2", Interface: "wireguard.c2", ListenPort: 51820,
			PublicKey: publicKey(c.node, 0), Backend: semaphorev1.Backend_BACKEND_USERSPACE})}
}

func (c *client) Receive(_ context.Context, m *semaphorev1.AttachResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.state.Receive(m); err != nil {
		return err
	}
	for _, change := range m.GetChanges().GetChanges() {
		c.changes++
		if p := change.GetPeer(); p != nil {
			c.addresses[p.GetKey().GetNode()] = p.GetWireguard().GetAddress()
			c.at = time.Now()
		}
	}
	if m.GetSynced() != nil {
		c.current, c.at = true, time.Now()
	}
	return nil
}

func (c *client) Ended(error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = false
}
