//go:build linux

package kubelet

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// requestToken asks the apiserver for a token of a ServiceAccount.
func (k *Kubelet) requestToken(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return k.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
}

// sourcePatience bounds a read of an object that the watch has not shown yet.
const sourcePatience = 5 * time.Second

// configMap is a ConfigMap by the watch, or by the apiserver where the watch does not show it: it may be as new as the pod
// that refers to it.
func (k *Kubelet) configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	cm, err := k.configMaps.ConfigMaps(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		ctx, cancel := context.WithTimeout(ctx, sourcePatience)
		defer cancel()
		return k.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return cm, err
}

// secret is a Secret, found as configMap does.
func (k *Kubelet) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	s, err := k.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		ctx, cancel := context.WithTimeout(ctx, sourcePatience)
		defer cancel()
		return k.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return s, err
}

// linkedServices are the services whose addresses a pod's environment has.
func (k *Kubelet) linkedServices(pod *corev1.Pod) ([]*corev1.Service, error) {
	if pod.Spec.EnableServiceLinks != nil && !*pod.Spec.EnableServiceLinks {
		return nil, nil
	}
	return k.services.Services(pod.Namespace).List(labels.Everything())
}
