package follow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// boundsIn is the ConfigMap with which kubelets give agents the bounds of their broker.
const boundsIn = "semaphore-remotes"

// Bounds writes the bounds that agents enforce on their broker, for all remotes in effect: subnets, port and
// encryption. The exporter writes it, which no remote and no agent can instruct, and never the broker.
type Bounds struct {
	api corev1client.ConfigMapInterface
	// problem is the reason why agents do not receive the remotes.
	problem *kube.Problem

	mu    sync.Mutex
	saved string
}

// NewBounds returns Bounds for the agents in a namespace.
func NewBounds(client kubernetes.Interface, namespace string, log *slog.Logger) *Bounds {
	return &Bounds{api: client.CoreV1().ConfigMaps(namespace), problem: kube.NewProblem(log)}
}

// Problems returns why agents do not get the remotes, a line.
func (b *Bounds) Problems() []string { return b.problem.Lines() }

// Save writes the bounds if they changed. objects have the ports that the broker assigned to them; Save leaves out one
// outside of the range, because no operator chose it.
func (b *Bounds) Save(ctx context.Context, d remotes.Decision, objects remotes.Objects,
	ports config.DevicePorts) error {
	text, err := boundsOf(d, objects, ports)
	if err != nil {
		return err
	}
	b.mu.Lock()
	same := b.saved == text
	b.mu.Unlock()
	if same {
		return nil
	}
	if err := write(ctx, b.api, boundsIn, config.RemotesFile, text); err != nil {
		b.problem.Set(fmt.Sprintf("agents do not get changed RemoteClusters: ConfigMap %s: %v", boundsIn, err))
		return err
	}
	b.problem.Set("")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved = text
	return nil
}

func boundsOf(d remotes.Decision, objects remotes.Objects, ports config.DevicePorts) (string, error) {
	type remote struct {
		Name        string   `json:"name"`
		PodSubnets  []string `json:"podSubnets"`
		NodeSubnets []string `json:"nodeSubnets,omitempty"`
		// ServicePrefix, as prefixes are compared wherever remotes are read.
		ServicePrefix string `json:"servicePrefix,omitempty"`
		Encryption    string `json:"encryption,omitempty"`
		WireGuard     struct {
			ListenPort uint16 `json:"listenPort"`
		} `json:"wireguard"`
	}
	file := struct {
		Remotes []remote `json:"remotes"`
	}{Remotes: []remote{}}
	for _, o := range d.InEffect.ByAge() {
		if len(o.Spec.PodSubnets) == 0 {
			continue
		}
		r := remote{Name: o.Name, ServicePrefix: o.Spec.ServicePrefix, Encryption: o.Spec.Encryption}
		for _, s := range o.Spec.PodSubnets {
			r.PodSubnets = append(r.PodSubnets, string(s))
		}
		for _, s := range o.Spec.NodeSubnets {
			r.NodeSubnets = append(r.NodeSubnets, string(s))
		}
		if w := o.Spec.WireGuard; w != nil && w.ListenPort != 0 {
			r.WireGuard.ListenPort = uint16(w.ListenPort)
		} else if r.WireGuard.ListenPort = objects[o.Name].ListenPort; r.WireGuard.ListenPort < ports.First ||
			r.WireGuard.ListenPort > ports.Last {
			continue // the broker has assigned none yet, or one outside of its range
		}
		file.Remotes = append(file.Remotes, r)
	}
	text, err := yaml.Marshal(file)
	return string(text), err
}
