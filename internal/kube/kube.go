// Package kube is how the parts reach an apiserver: client configuration, and the client
// for Calico's types in whichever API group the cluster serves them.
//
// It knows client-go and nothing of what the parts do with it.
//
// It imports internal/config for its section and internal/program for the version, which an apiserver sees, and no part.
package kube

import (
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// Config is the client configuration for the cluster: of the kubeconfig file that c
// names, or else of the pod's own ServiceAccount.
func Config(c config.Kube, part string) (*rest.Config, error) {
	var (
		cfg *rest.Config
		err error
	)
	if c.KubeConfigPath != "" {
		cfg, err = clientcmd.BuildConfigFromFlags("", c.KubeConfigPath)
	} else {
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("how to reach the apiserver (kube.kubeConfigPath %q): %w", c.KubeConfigPath, err)
	}
	joinLogs()
	cfg.QPS, cfg.Burst = c.QPS, c.Burst
	cfg.UserAgent = fmt.Sprintf("semaphore-%s/%s", part, program.Version)
	return cfg, nil
}

// joinLogs puts what client-go tells through klog into the part's own log. Once: klog may be in use the next time.
var joinLogs = sync.OnceFunc(func() { klog.SetSlogLogger(slog.Default()) })

// Quiet is cfg for types that the apiserver calls deprecated, and that are used all the same: its warnings, one with each answer, are
// not logged.
func Quiet(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg
}

// Protobuf is cfg for Kubernetes' own types, which the apiserver encodes several times
// faster as protobuf than as JSON. Custom resources have no such encoding.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg
}
