//go:build linux

package kubelet

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKubelet has one cluster for all that pods do; its parts leave no pods behind.
func TestKubelet(t *testing.T) {
	c := startCluster(t)
	parts := []struct {
		name string
		test func(*cluster)
	}{
		{"network", testNetwork}, {"filesystem", testFilesystem}, {"environment", testEnvironment},
		{"volumes", testVolumes}, {"tokens", testTokens}, {"probes", testProbes}, {"restarts", testRestarts},
		{"init containers", testInit}, {"completion", testCompletion}, {"deletion", testDeletion},
		{"addresses", testAddresses}, {"scheduling", testScheduling}, {"host network", testHostNetwork},
		{"errors", testErrors}, {"writes", testWrites}, {"speed", testSpeed},
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			part.test(&sub)
			zero := int64(0)
			pods, err := c.client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pods.Items {
				if err := c.client.CoreV1().Pods(namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
			for range 1000 {
				if len(c.allWorkers()) == 0 {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			t.Errorf("%d pods stay on their nodes", len(c.allWorkers()))
		})
	}
	// What still runs when the kubelet stops is removed too; startCluster looks.
	c.server("last", nil)
	c.wait("last", "ready", ready)
}
