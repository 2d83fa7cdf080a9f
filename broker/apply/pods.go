package apply

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Pods follows the pods of one ServiceAccount, to say which of them end.
type Pods struct {
	kube           kubernetes.Interface
	namespace      string
	serviceAccount string
	ended          func(types.UID)
	options        Options
}

// NewPods calls ended with the UID of each pod that is deleted, or whose containers have ended for good. It may be called more
// than once for a pod.
func NewPods(kube kubernetes.Interface, namespace, serviceAccount string, ended func(types.UID), options Options) *Pods {
	return &Pods{kube: kube, namespace: namespace, serviceAccount: serviceAccount, ended: ended, options: options}
}

// Run follows until ctx ends.
func (p *Pods) Run(ctx context.Context) error {
	of := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.serviceAccountName", p.serviceAccount).String()}
	informer, err := following[*corev1.Pod]{
		kind: "pod", listWatch: listWatch(p.kube.CoreV1().Pods(p.namespace), of), example: &corev1.Pod{}, reduce: reducePod,
		saw: func(_, pod *corev1.Pod, gone bool) {
			if gone || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				p.ended(pod.UID)
			}
		},
	}.informer(p.options)
	if err != nil {
		return err
	}
	ctx, stop := follow(ctx, informer)
	defer stop()
	<-ctx.Done()
	return ctx.Err()
}

// reducePod leaves of a pod what is asked of it.
func reducePod(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}
}
