package kube

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func TestConfigOfMissingFile(t *testing.T) {
	_, err := Config(config.Kube{KubeConfigPath: "no/such/file"}, "broker")
	if err == nil || !strings.Contains(err.Error(), "kube.kubeConfigPath") ||
		!strings.Contains(err.Error(), "no/such/file") {
		t.Errorf("error %v; want one that names the field and the file", err)
	}
}

func TestConfigOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := Config(config.Kube{}, "broker")
	if err == nil || !strings.Contains(err.Error(), "kube.kubeConfigPath") {
		t.Errorf("error %v; want one that names the field", err)
	}
}

func TestConfigReachesApiserver(t *testing.T) {
	path := kubetest.Kubeconfig(t, kubetest.Start(t))
	cfg := testkit.Value(Config(config.Kube{KubeConfigPath: path, QPS: 7}, "broker"))(t)
	if cfg.QPS != 7 || cfg.Burst != 14 || !strings.HasPrefix(cfg.UserAgent, "semaphore-broker/") {
		t.Errorf("QPS %v, burst %d, user agent %q", cfg.QPS, cfg.Burst, cfg.UserAgent)
	}
	protobuf := Protobuf(cfg)
	if cfg.ContentType != "" {
		t.Error("Protobuf changed its argument")
	}
	for name, c := range map[string]*kubernetes.Clientset{
		"json": kubernetes.NewForConfigOrDie(cfg), "protobuf": kubernetes.NewForConfigOrDie(protobuf),
	} {
		if ns, err := c.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil || ns.UID == "" {
			t.Errorf("%s: namespace default: %v, %v", name, ns, err)
		}
	}
}
