package leader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// clientConfig is how to reach the apiserver that has the Lease: that of the cluster which this process runs in, so
// that an exporter which reads another cluster writes nothing there.
func clientConfig(c config.Kube, part string) (*rest.Config, error) {
	own := c
	own.KubeConfigPath = ""
	cfg, err := kube.Config(own, part)
	if errors.Is(err, rest.ErrNotInCluster) {
		return kube.Config(c, part)
	}
	if err != nil {
		return nil, fmt.Errorf("leader election uses the ServiceAccount of the pod (or switch it off: leaderElection.enabled): %w", err)
	}
	return cfg, nil
}

// podNamespace is where Kubernetes tells a pod its namespace.
var podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// ownNamespace is where the Lease is: as configured, else where the pod is, else "semaphore".
func ownNamespace(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace, nil
	}
	data, err := os.ReadFile(podNamespace)
	if errors.Is(err, fs.ErrNotExist) {
		return "semaphore", nil
	}
	if err != nil {
		return "", fmt.Errorf("namespace of the pod, for leader election (or say it: leaderElection.namespace): %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
