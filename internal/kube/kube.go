// Package kube connects the parts to an apiserver: client configuration, and the client for Calico's types in the API
// group that the cluster serves.
//
// It knows client-go and nothing of its use by the parts.
package kube

import (
	"fmt"
	"log/slog"
	"regexp"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// Config returns the client configuration for the cluster: from the kubeconfig file or the URL that c names, or else
// from the pod's own ServiceAccount. It fails if the source that it takes is missing or cannot be used; of servers it
// asks only the one of kube.remoteCAURL.
func Config(c config.Kube, part string) (*rest.Config, error) {
	var (
		cfg *rest.Config
		err error
	)
	switch {
	case c.RemoteAPIURL != "":
		cfg, err = remoteConfig(c)
	case c.KubeConfigPath != "":
		cfg, err = clientcmd.BuildConfigFromFlags("", c.KubeConfigPath)
	default:
		cfg, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("how to reach the apiserver (kube.kubeConfigPath %q, kube.remoteAPIURL %q): %w",
			c.KubeConfigPath, c.RemoteAPIURL, err)
	}
	joinLogs()
	cfg.QPS, cfg.Burst = c.QPS, max(1, int(2*c.QPS))
	cfg.UserAgent = fmt.Sprintf("semaphore-%s/%s", part, program.Version)
	return cfg, nil
}

// MissingRight matches the text by which an apiserver denies a request for want of a right (k8s.io/apiserver,
// pkg/endpoints/handlers/responsewriters), and has the verb and the resource. Quotas and policies deny by other texts.
var MissingRight = regexp.MustCompile(`User "[^"]*" cannot (\S+) resource "([^"]*)"`)

// joinLogs redirects klog's messages, which client-go writes, to the part's log. It does so once, because klog may be
// in use afterwards.
var joinLogs = sync.OnceFunc(func() { klog.SetSlogLogger(slog.Default()) })

// Quiet returns a copy of cfg that does not log the apiserver's warnings. It is for deprecated types that are used
// nevertheless: each answer has a warning.
func Quiet(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg
}

// Protobuf returns a copy of cfg for Kubernetes' own types, which the apiserver encodes several times faster as
// protobuf than as JSON. Custom resources have no protobuf encoding.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return cfg
}
