package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// In a cluster without Calico, the broker is ready, reports what is missing, and does everything that does not need
// Calico. It writes sets once Calico exists.
func TestNoCalico(t *testing.T) {
	tier.OnlyAll(t, "TestTheCalicoAPIServerComesAndGoes (broker/apply), TestCalico (internal/kube)")
	l := newLab(t, "a")
	both := config{"features": []string{"services", "policy"}}
	broker := l.broker(both)
	exporter := l.exporter("a", broker.address, both)
	pod := kubetest.Create(t, l.kube.CoreV1().Pods("shop"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Labels: map[string]string{setLabel: "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "main"}}},
	})
	ip := strings.Replace(l.subnets["a"], "0.0/16", "9.9", 1)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	kubetest.UpdateStatus(t, l.kube.CoreV1().Pods("shop"), pod)
	for i := range 5 {
		l.offer("a", fmt.Sprint("a-", i), i)
	}
	l.waitMirrors("a", 5)
	for _, d := range []*daemon{broker, exporter} {
		eventually(t, settle, d.ready)
	}
	eventually(t, settle, func(ctx context.Context) error {
		s, err := broker.status(ctx)
		if err == nil && !strings.Contains(strings.Join(s.GetProblems(), "\n"), "is Calico installed?") {
			err = fmt.Errorf("nothing is said of Calico: %q", s.GetProblems())
		}
		return err
	})
	// The broker still works, and a restart with nothing to write writes nothing.
	l.offer("a", "later", 9)
	beside := kubetest.WriteBeside(t, l.kube)
	took := l.waitMirrors("a", 6)
	if late := beside.Late(); took > time.Second+late {
		t.Errorf("a Service was mirrored after %s, want a second, and %s for a machine as busy as this one", seconds(took),
			seconds(late))
	}
	beside.Stop()
	l.withdraw("a-0")
	l.waitMirrors("a", 5)
	was := l.mustMirrors("a")
	broker.kill()
	broker.run()
	broker.connected("a")
	eventually(t, settle, broker.ready)
	l.unchanged("a", was)

	kubetest.InstallCalico(t, l.rest, kubetest.CalicoCRD, "globalnetworksets", "ippools")
	calico := testkit.Value(kube.Calico(l.rest))(t)
	came := eventually(t, settle, func(ctx context.Context) error {
		set, err := calico.GlobalNetworkSets().Get(ctx, "a-shop-web")
		if err == nil && strings.Join(set.Spec.Nets, ",") != ip+"/32" {
			err = fmt.Errorf("it has %v", set.Spec.Nets)
		}
		return err
	})
	t.Logf("without Calico a Service was mirrored after %s; the set came %s after Calico", seconds(took), seconds(came))
}
