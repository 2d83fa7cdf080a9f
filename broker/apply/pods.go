package apply

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
)

// Pods watches the pods of one ServiceAccount, and reports which of them end.
type Pods struct {
	kube           kubernetes.Interface
	namespace      string
	serviceAccount string
	ended          func(types.UID)
	options        InformerOptions
	// Synced reports whether the end of each pod that is there from now on is reported.
	onlyWatched
}

// NewPods calls ended with the UID of each pod that is deleted, or whose containers have terminated for good. It may
// call it more than once for a pod.
func NewPods(kube kubernetes.Interface, namespace, serviceAccount string, ended func(types.UID),
	options InformerOptions) *Pods {
	return &Pods{kube: kube, namespace: namespace, serviceAccount: serviceAccount, ended: ended, options: options}
}

// Run watches until ctx ends, and returns ctx's error.
func (p *Pods) Run(ctx context.Context) error {
	of := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.serviceAccountName",
		p.serviceAccount).String()}
	return Watch[*corev1.Pod]{
		Kind: writes.Pod, ListWatch: ListWatch(p.kube.CoreV1().Pods(p.namespace), of), Example: &corev1.Pod{},
		Reduce: reducePod,
		Saw: func(_, pod *corev1.Pod, gone bool) {
			if gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				p.ended(pod.UID)
			}
		},
	}.Run(ctx, p.options, &Store[*corev1.Pod]{}, func(ctx context.Context) error {
		p.synced.Store(true)
		return untilEnd(ctx)
	})
}

// reducePod keeps of a pod what its readers need.
func reducePod(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
}
