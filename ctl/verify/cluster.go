package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type verified struct {
	*apply.Applier
	number int
	name   string
	links  []string
	image  string
	// exporterConfig and brokerConfig are the fields of the parts' configuration that verify reads.
	exporterConfig, brokerConfig fleet.PartConfig
	// calico is empty if the cluster has none.
	calico     schema.GroupVersion
	corefile   string
	noCorefile error
	pods       map[string]Pod
}

// openVerified reads the properties of a cluster on which the checks depend.
func openVerified(ctx context.Context, c *fleet.Cluster, progress io.Writer) (*verified, error) {
	out := &verified{Applier: apply.New(c, progress), pods: map[string]Pod{}}
	broker, err := c.Part(ctx, fleet.Broker, "")
	if err != nil {
		return nil, err
	}
	defer broker.Close()
	s, err := broker.Leading(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", broker.Where, grpcstatus.Convert(cmp.Or(broker.Standby, err)).Message())
	}
	out.name = s.GetCluster()
	for _, l := range s.GetLinks() {
		out.links = append(out.links, l.GetCluster())
	}
	for _, of := range []struct {
		part string
		into *fleet.PartConfig
	}{{fleet.Exporter, &out.exporterConfig}, {fleet.Broker, &out.brokerConfig}} {
		pods, err := c.Pods(ctx, of.part, "")
		if err != nil {
			return nil, err
		}
		*of.into, _ = c.PartConfig(ctx, pods[0].Config) // one that cannot be read is taken for the usual one
		out.image = pods[0].Image
	}
	calico, err := kube.Calico(c.Config)
	switch {
	case err == nil:
		out.calico = calico.GroupVersion
	case !errors.Is(err, kube.ErrNoCalico):
		return nil, fmt.Errorf("%s: %w", c.Context, err)
	}
	out.corefile, out.noCorefile = c.Objects.Corefile(ctx, fleet.Corefile)
	return out, nil
}

func (c *verified) create(ctx context.Context, namespace, image string) error {
	image = cmp.Or(image, c.image)
	objects := []any{verifyNamespace(namespace)}
	for _, name := range []string{verifyServer, verifyClient, verifyStranger} {
		objects = append(objects, verifyPod(namespace, name, image, c.exporterConfig.Domains()))
	}
	if c.exporterConfig.Has(config.Services) { // a mirror for others, and a global service that only this cluster has
		objects = append(objects,
			verifyServiceObject(namespace, verifyService, c.exporterConfig.MirrorSelector, naming.DefaultMirrorSelector),
			verifyServiceObject(namespace, verifyGlobalService(c.number), c.exporterConfig.GlobalSelector,
				naming.DefaultGlobalSelector))
	}
	for _, object := range objects {
		if err := c.createOne(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// createOne makes an object. A pod is refused until a controller has created the namespace's ServiceAccount.
func (c *verified) createOne(ctx context.Context, typed any) error {
	object, err := fleet.Object(typed)
	if err != nil {
		return err
	}
	delete(object.Object, "status")
	ref := apply.RefOf(object)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.Until(ctx, ref.String(), func() (string, error) {
		_, err := c.Of(ref).Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount \"default\" not found") {
			return err.Error(), nil
		}
		if err != nil {
			err = fmt.Errorf("%s: create %s: %w", c.Context, ref, err)
		}
		return "", err
	})
}

// awaitPods waits until the pods run, and reports where.
func (c *verified) awaitPods(ctx context.Context, namespace string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return c.Until(ctx, "the pods of "+namespace, func() (string, error) {
		all, err := fleet.List[corev1.Pod](ctx, c.Objects, fleet.PodsGVR, namespace, metav1.ListOptions{})
		var waiting []string
		for i := range all {
			p := &all[i]
			if !isReady(p) {
				waiting = append(waiting, cmp.Or(apply.Stuck(p), "pod "+p.Name+": "+string(p.Status.Phase)))
				continue
			}
			pod := Pod{Name: p.Name, Node: p.Spec.NodeName}
			for _, ip := range p.Status.PodIPs {
				if a, err := netip.ParseAddr(ip.IP); err == nil {
					pod.IPs = append(pod.IPs, a)
				}
			}
			c.pods[p.Name] = pod
		}
		return strings.Join(waiting, "; "), err
	})
}

func isReady(p *corev1.Pod) bool {
	return len(p.Status.PodIPs) > 0 && fleet.IsReady(p)
}

// ask makes a pod ask. An error means that the pod could not be made to.
func (c *verified) ask(ctx context.Context, namespace, pod string, q Question) (o Outcome, err error) {
	err = c.probe(ctx, namespace, pod, q.Within+q.Attempt, &o, "ask", q.URL, "--attempt", q.Attempt.String(),
		"--within", q.Within.String(), fmt.Sprintf("--bytes=%d", q.Bytes), fmt.Sprintf("--refused=%t", q.Refused))
	return o, err
}

// measure makes the client measure. An error means that it could not be made to.
func (c *verified) measure(ctx context.Context, namespace string, server netip.AddrPort, m Measurement) (out Measured,
	err error) {
	err = c.probe(ctx, namespace, verifyClient, m.While+Grace, &out, "measure", string(m.Name), server.String(),
		fmt.Sprintf("--streams=%d", m.Streams), "--while", m.While.String())
	return out, err
}

func (c *verified) probe(ctx context.Context, namespace, pod string, within time.Duration, result any,
	args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, within+15*time.Second)
	defer cancel()
	out, err := c.Run(ctx, &fleet.Pod{Namespace: namespace, Name: pod, Container: verifyContainer},
		append([]string{"probe"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, result); err != nil {
		return fmt.Errorf("%s: probe in pod %s/%s: %w", c.Context, namespace, pod, err)
	}
	return nil
}

func (c *verified) device(ctx context.Context, node, of string) (*semaphorev1.DeviceStatus, error) {
	s, err := c.Status(ctx, fleet.Agent, node, 10*time.Second)
	if err != nil {
		return nil, err
	}
	for _, d := range s.GetDevices() {
		if d.GetCluster() == of {
			return d, nil
		}
	}
	return nil, nil
}

// mirrors returns the broker's Services for a namespace of other clusters.
func (c *verified) mirrors(ctx context.Context, of string) ([]corev1.Service, error) {
	where := cmp.Or(c.brokerConfig.MirrorNamespace, fleet.DefaultNamespace)
	all, err := c.Objects.Services(ctx, where, naming.LabelManagedBy+"="+naming.ManagedByBroker)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s corev1.Service) bool {
		return s.Annotations[naming.AnnotationSourceNamespace] != of && !strings.HasPrefix(s.Name, naming.Global(of, ""))
	}), nil
}

// awaitMirror waits for a Service of the broker, within a time that starts at began. It reads at least once.
func (c *verified) awaitMirror(ctx context.Context, namespace, sought string, began time.Time, within time.Duration,
	is func(corev1.Service) bool) (Service, error) {
	for {
		all, err := c.mirrors(ctx, namespace)
		s := Service{Sought: sought, Waited: time.Since(began).Seconds()}
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			s.Namespace, s.Name = all[i].Namespace, all[i].Name
		}
		if err != nil || i >= 0 || time.Since(began) > within {
			return s, err
		}
		if err := kube.Sleep(ctx, 300*time.Millisecond); err != nil {
			return s, err
		}
	}
}

// sets returns the broker's sets of pods in a namespace; none without the feature policy. A connection that was kept
// would end: the broker ends one that was idle for two minutes, as during measurements.
func (c *verified) sets(ctx context.Context, namespace string) ([]*semaphorev1.PolicySet, error) {
	if !c.brokerConfig.Has(config.Policy) {
		return nil, nil
	}
	broker, err := c.Part(ctx, fleet.Broker, "")
	if err != nil {
		return nil, err
	}
	defer broker.Close()
	return fleet.ReceiveSets(ctx, broker, &semaphorev1.ListSetsRequest{Namespace: namespace})
}

// removeNamespace deletes a namespace, without a word to the garbage collector, and waits until it no longer exists.
func removeNamespace(ctx context.Context, a *apply.Applier, namespace string) error {
	ref := apply.NamespaceRef(namespace)
	if err := a.Of(ref).Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return fmt.Errorf("%s: deleting %s: %w", a.Cluster.Context, ref, err)
	}
	return a.Gone(ctx, ref)
}

// awaitNothing waits until the broker has neither Services nor sets of the namespace.
func (c *verified) awaitNothing(ctx context.Context, namespace string) error {
	return c.Until(ctx, "the broker to remove what it has of "+namespace, func() (string, error) {
		services, err := c.mirrors(ctx, namespace)
		if err != nil {
			return "", err
		}
		sets, err := c.sets(ctx, namespace)
		if err != nil {
			return "", fmt.Errorf("%s: %s", c.Context, grpcstatus.Convert(err).Message())
		}
		if len(services)+len(sets) == 0 {
			return "", nil
		}
		return fmt.Sprintf("it still has %d Services and %d sets of it", len(services), len(sets)), nil
	})
}
