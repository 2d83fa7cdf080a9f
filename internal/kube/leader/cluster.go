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

// clientConfig returns the access to the apiserver that stores the Lease. It is the cluster in which this process runs,
// so that an exporter that reads another cluster writes nothing there.
func clientConfig(c config.Kube, part string) (*rest.Config, error) {
	cfg, err := kube.Config(c.Own(), part)
	if errors.Is(err, rest.ErrNotInCluster) {
		return kube.Config(c, part)
	}
	if err != nil {
		return nil, fmt.Errorf("leader election uses the ServiceAccount of the pod (or switch it off: "+
			"leaderElection.enabled): %w", err)
	}
	return cfg, nil
}

var podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Namespace returns the namespace of a part's own objects: leaderElection.namespace, else that of the pod. Outside of a
// pod it is "semaphore"; it fails if the pod's file cannot be read.
func Namespace(configured string) (string, error) {
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
