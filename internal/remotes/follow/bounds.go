package follow

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/remotes"
)

// Bounds writes the bounds that agents enforce on their broker, for all remotes in effect: subnets, port and
// encryption. The exporter writes it, which no remote and no agent can instruct, and never the broker.
type Bounds struct {
	config *leader.Kept
	// problem is the reason why agents do not receive the remotes, and judged why they receive some in an earlier form.
	problem, judged *kube.Problem
	// before are the remotes as they were written last, and use those that follow from basis: JudgeRemotes takes a
	// second for 250 remotes of which one is wrong. One goroutine uses them.
	before, use []config.Remote
	basis       basis
}

// basis has the arguments of bounds.JudgeRemotes.
type basis struct {
	own         *config.Broker
	now, before []config.Remote
}

func NewBounds(client kubernetes.Interface, namespace string, log *slog.Logger) *Bounds {
	return &Bounds{config: leader.NewKept(client, namespace, bounds.RemotesIn, managedBy, log),
		problem: kube.NewProblem(log), judged: kube.NewProblem(log)}
}

// Load reads what an earlier process wrote. It waits until the apiserver gives it, also without the right to the
// ConfigMap: without what it has, Save would leave out a remote whose port must stay. It fails only if ctx ends.
func (b *Bounds) Load(ctx context.Context) error {
	object, err := earlier(ctx, b.config, func(err error) {
		b.problem.Set(fmt.Sprintf("agents do not get changed RemoteClusters: %v", err))
	})
	if object != nil {
		b.before = bounds.ReadRemotes([]byte(object.Data[bounds.RemotesFile]))
	}
	return err
}

// Problems returns why agents do not get the remotes, or not all as they are, a line each.
func (b *Bounds) Problems() []string { return append(b.problem.Lines(), b.judged.Lines()...) }

// Reports returns the foreign changes that Save undid, a line.
func (b *Bounds) Reports() []string { return b.config.Reports() }

// Save writes the bounds if they changed, or if another writer has changed them. own is the configuration against which
// agents judge them. objects have the ports that the broker assigned to them. Agents cannot rely on these: one would
// not use a remote with the port of another one, so such a remote keeps the form in which it was written before. It
// fails if the ConfigMap cannot be written.
func (b *Bounds) Save(ctx context.Context, own *config.Broker, d remotes.Decision, objects remotes.Objects,
	ports config.DevicePorts) error {
	b.judge(basis{own, boundsOf(d, objects, ports, b.before), b.before})
	if err := b.config.Hold(ctx, bounds.RemotesFile, bounds.RemotesText(b.use)); err != nil {
		b.problem.Set(fmt.Sprintf("agents do not get changed RemoteClusters: %v", err))
		return err
	}
	b.problem.Set("")
	b.before = b.use
	return nil
}

func (b *Bounds) judge(on basis) {
	if reflect.DeepEqual(on, b.basis) {
		return
	}
	use, wrong := bounds.JudgeRemotes(on.own, on.now, on.before)
	b.judged.Set(strings.Join(wrong, "; "))
	b.use, b.basis = use, on
}

// boundsOf returns the remotes in effect as agents read them, oldest first.
func boundsOf(d remotes.Decision, objects remotes.Objects, ports config.DevicePorts, before []config.Remote) (
	all []config.Remote,
) {
	had := map[string]uint16{}
	for _, r := range before {
		had[r.Name] = r.WireGuard.ListenPort
	}
	for _, o := range d.InEffect.ByAge() {
		if len(o.Spec.PodSubnets) == 0 {
			continue
		}
		// ServicePrefix, as prefixes are compared wherever remotes are read.
		r := config.Remote{Name: o.Name, ServicePrefix: o.Spec.ServicePrefix,
			PodSubnets: remotes.As[string](o.Spec.PodSubnets), NodeSubnets: remotes.As[string](o.Spec.NodeSubnets),
			Encryption: config.Strictness(o.Spec.Encryption)}
		r.WireGuard.ListenPort = objects[o.Name].ListenPort
		if w := o.Spec.WireGuard; w != nil && w.ListenPort != 0 {
			r.WireGuard.ListenPort = uint16(w.ListenPort)
		} else if port := r.WireGuard.ListenPort; port < ports.First || port > ports.Last {
			// The broker has assigned none yet, or one outside of its range, which no operator chose.
			if r.WireGuard.ListenPort = had[o.Name]; r.WireGuard.ListenPort == 0 {
				continue
			}
		}
		all = append(all, r)
	}
	return all
}
