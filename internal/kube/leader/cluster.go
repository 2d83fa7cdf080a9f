package leader

import (
	"errors"
	"fmt"

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
