package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// FastSync is the syncFrequency of kubelets of a testbed: they update the volume of a changed ConfigMap or Secret
// within one and a half times this interval. kubelet's default is a minute, which would dominate the time of the tests.
const FastSync = 5 * time.Second

// SyncFrequency restarts the kubelets of a cluster with another syncFrequency; 0 is kubelet's default, for a test that
// claims how long something takes in clusters of others. Containers continue.
func (c *Cluster) SyncFrequency(ctx context.Context, every time.Duration) error {
	for _, n := range c.Nodes {
		text, err := os.ReadFile(n.file("kubelet.yaml"))
		if err != nil {
			return err
		}
		config := map[string]any{}
		if err := json.Unmarshal(text, &config); err != nil {
			return fmt.Errorf("settings of kubelet of %s: %w", n.Name, err)
		}
		if delete(config, "syncFrequency"); every > 0 {
			config["syncFrequency"] = every.String()
		}
		if text, err = json.Marshal(config); err != nil {
			return err
		}
		if err := os.WriteFile(n.file("kubelet.yaml"), text, 0o600); err != nil {
			return err
		}
		kubelet := c.Process("kubelet/" + n.Name)
		if kubelet == nil {
			return errors.New("no kubelet on " + n.Name)
		}
		if err := kubelet.Stop(); err != nil {
			return err
		}
		began := time.Now()
		kubelet.Start()
		if err := n.waitReady(ctx, began); err != nil {
			return err
		}
	}
	return nil
}
