package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

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
