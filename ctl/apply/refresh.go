package apply

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// Refreshed is the annotation by which kubelets look at a pod at once.
const Refreshed = "semaphore.uw.io/refreshed"

// refreshAgain is the time after which Refresh changes pods again: a kubelet may see the change of its pod before that
// of a ConfigMap, and would then look for the latter at its syncFrequency only.
const refreshAgain = 2 * time.Second

// Refresh has kubelets update the volumes of the parts' pods now, and not at their syncFrequency, by which a changed
// ConfigMap takes up to a minute and a half: a kubelet that sees a changed annotation syncs the pod. No part restarts.
// It fails if pods cannot be listed or annotated, and if ctx ends.
func (a *Applier) Refresh(ctx context.Context, parts ...string) error {
	for _, wait := range []time.Duration{0, refreshAgain} {
		if err := kube.Sleep(ctx, wait); err != nil {
			return err
		}
		pods := 0
		for _, part := range parts {
			n, err := a.refresh(ctx, part)
			if err != nil {
				return err
			}
			pods += n
		}
		if pods == 0 {
			break
		}
	}
	return nil
}

// refresh changes the pods of a part, and returns their number.
func (a *Applier) refresh(ctx context.Context, part string) (int, error) {
	all, err := a.Cluster.PodObjects(ctx, part, "")
	if err != nil {
		return 0, err
	}
	pods := a.Objects.Client.Resource(fleet.PodsGVR).Namespace(a.Cluster.Namespace)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, Refreshed, time.Now().UTC().Format(time.RFC3339Nano))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16) // a cluster may have thousands of nodes
	for _, p := range all {
		g.Go(func() error {
			_, err := pods.Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
			}
			return nil
		})
	}
	return len(all), g.Wait()
}
