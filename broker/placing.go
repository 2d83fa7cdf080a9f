package broker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// agentsDaemonSet is the name of the agents' DaemonSet in the manifests, and placeEvery is how often it is read: it
// rarely changes, and only a status depends on it.
const (
	agentsDaemonSet = "semaphore-agent"
	placeEvery      = 30 * time.Second
)

// placing knows on which nodes agents can run.
type placing struct {
	kube      kubernetes.Interface
	namespace string
	node      func(name string) (*corev1.Node, bool)
	log       *slog.Logger
	// template is that of the DaemonSet; nil while it is not known.
	template atomic.Pointer[corev1.PodSpec]
}

// run reads the DaemonSet until ctx ends. Without it, or without the right to read it, an agent is expected on each
// node that can have one.
func (p *placing) run(ctx context.Context) error {
	last := ""
	for {
		set, err := p.kube.AppsV1().DaemonSets(p.namespace).Get(ctx, agentsDaemonSet, metav1.GetOptions{})
		text := ""
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			p.template.Store(&set.Spec.Template.Spec)
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			p.template.Store(nil)
			text = err.Error()
		default:
			text = err.Error() // the settings that were read stay
		}
		if text != "" && text != last {
			p.log.Info("cannot read the agents' DaemonSet; an agent is expected on each Linux node", "error", text)
		}
		last = text
		if err := kube.Sleep(ctx, placeEvery); err != nil {
			return err
		}
	}
}

// exempt returns why no agent is expected on a node; empty if one is.
func (p *placing) exempt(name string) string {
	node, ok := p.node(name)
	if !ok {
		return ""
	}
	return nodes.Exempt(node, p.template.Load())
}
