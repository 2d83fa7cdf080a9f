package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Parts of a cluster, by the label app.kubernetes.io/component of their pods. Their containers have the same names.
const (
	Exporter = "exporter"
	Broker   = "broker"
	Agent    = "agent"
)

type Pod struct {
	Namespace, Name, Node string
	// Container is the one in which semaphorectl runs.
	Container string
	Ready     bool
	// Image is that of the container; Config is the ConfigMap with the part's configuration, empty where the pod has none.
	Image, Config string
}

func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Pods returns the running pods of a part, of one node if node names one: the leader first, if EndpointSlices name it,
// then those that are ready. It fails if none runs.
func (c *Cluster) Pods(ctx context.Context, part, node string) ([]*Pod, error) {
	pods, err := c.PodObjects(ctx, part, node)
	if err != nil {
		return nil, err
	}
	leader := ""
	if part == Broker && len(pods) > 1 {
		leader = c.leader(ctx)
	}
	found := candidates(pods, part, leader)
	if len(found) == 0 {
		on := ""
		if node != "" {
			on = " on node " + node
		}
		there := fmt.Sprintf(", of %d there", len(pods))
		if len(pods) == 0 {
			there = ": is it another -n, not installed, or scaled to 0?"
		}
		return nil, fmt.Errorf("%s: no pod of the %s runs%s in namespace %s%s", c.Context, part, on, c.Namespace, there)
	}
	return found, nil
}

// PodObjects returns the pods of a part, of one node if node names one, whether they run or not. It fails if the
// cluster does not list them.
func (c *Cluster) PodObjects(ctx context.Context, part, node string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=semaphore,app.kubernetes.io/component=" + part}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	pods, err := List[corev1.Pod](ctx, c.Objects, PodsGVR, c.Namespace, options)
	if Silent(err) {
		return nil, fmt.Errorf("%s: %w", c.Context, Plain(err))
	}
	return pods, err
}

// candidates returns the pods to ask, in order. A pod that is not ready may be asked for the reason.
func candidates(pods []corev1.Pod, part, leader string) []*Pod {
	var out []*Pod
	for _, p := range pods {
		i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.Name == part &&
				s.State.Running != nil
		})
		if i < 0 || p.DeletionTimestamp != nil && p.Name != leader {
			continue
		}
		pod := &Pod{Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Container: part,
			Ready: p.Status.ContainerStatuses[i].Ready}
		for _, c := range p.Spec.Containers {
			if c.Name == part {
				pod.Image = c.Image
			}
		}
		for _, v := range p.Spec.Volumes {
			if v.Name == "config" && v.ConfigMap != nil {
				pod.Config = v.ConfigMap.Name
			}
		}
		out = append(out, pod)
	}
	rank := func(p *Pod) int {
		switch {
		case p.Name == leader:
			return 0
		case p.Ready:
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b *Pod) int { return cmp.Or(rank(a)-rank(b), strings.Compare(a.Name, b.Name)) })
	return out
}

// EndpointSlice has the fields that semaphorectl reads. The types of that group are left out to keep the program small.
type EndpointSlice struct {
	Metadata  metav1.ObjectMeta `json:"metadata"`
	Endpoints []SliceEndpoint   `json:"endpoints"`
	Ports     []struct {
		Name *string `json:"name"`
		Port *int32  `json:"port"`
	} `json:"ports"`
}

type SliceEndpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready *bool `json:"ready"`
	} `json:"conditions"`
	TargetRef *corev1.ObjectReference `json:"targetRef"`
}

func (e *SliceEndpoint) Ready() bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// leader returns the pod that the slices of the broker's Service name (docs/adr/0023-calls-reach-the-leader.md). A
// caller who may exec may lack the right to list them, and does not need it: a standby relays semaphorectl to the
// leader.
func (c *Cluster) leader(ctx context.Context) string {
	all, _ := List[EndpointSlice](ctx, c.Objects, SlicesGVR, c.Namespace,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=semaphore-broker"})
	for _, slice := range all {
		for _, e := range slice.Endpoints {
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				return e.TargetRef.Name
			}
		}
	}
	return ""
}

// reach bounds the time to reach a part through an apiserver.
const reach = 15 * time.Second

// Part connects to one of the pods of a part, of one node for an agent: to the one that leads, or a standby if the
// leader cannot be reached. It fails with the reasons of all pods if none can be reached, and at once if the caller may
// not exec.
func (c *Cluster) Part(ctx context.Context, part, node string) (*Part, error) {
	ctx, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	pods, err := c.Pods(ctx, part, node)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, pod := range pods {
		p, err := c.dial(ctx, pod)
		if err != nil {
			failed = errors.Join(failed, err)
			if ctx.Err() != nil || apierrors.IsForbidden(err) {
				return nil, failed
			}
			continue
		}
		return c.fromStandby(ctx, p, pods), nil
	}
	return nil, failed
}

// Status asks a part for its status. It has the time twice: to be reached, and to answer. It fails if a part does not,
// and, beside the status of a standby, if the leader cannot be reached.
func (c *Cluster) Status(ctx context.Context, part, node string,
	timeout time.Duration) (*semaphorev1.GetStatusResponse, error) {
	dialling, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	p, err := c.Part(dialling, part, node)
	if err != nil {
		return nil, err
	}
	s, err := p.Status(ctx, timeout)
	return s, cmp.Or(err, p.Standby)
}

// fromStandby replaces a standby that names its leader by the leader, because an exporter relays no caller. On any
// error the standby answers, and has the error.
func (c *Cluster) fromStandby(ctx context.Context, p *Part, pods []*Pod) *Part {
	s, err := p.GetStatus(ctx, &semaphorev1.GetStatusRequest{})
	if err != nil || !s.GetStandby() {
		return p
	}
	if s.GetLeader() == "" {
		p.Standby = errors.New("only a standby answers; no leader is known")
		return p
	}
	err = errors.New("it is ending, or does not run")
	if i := slices.IndexFunc(pods, func(pod *Pod) bool { return pod.Name == s.GetLeader() }); i >= 0 {
		var leader *Part
		if leader, err = c.dial(ctx, pods[i]); err == nil {
			p.Close()
			return leader
		}
	}
	p.Standby = fmt.Errorf("only a standby answers; the leader is %s: %w", s.GetLeader(), err)
	return p
}
