package ctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/diagnose/check"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// dnsFlags say where check finds how the cluster's CoreDNS is configured.
type dnsFlags struct {
	configMap, clusterDomain, kubeconfig string
}

// Where kubeadm and most others keep it, and the word for not looking.
const (
	defaultCorefile = "kube-system/coredns/Corefile"
	noCorefile      = "none"
)

func (d *dnsFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&d.configMap, "coredns", defaultCorefile, "with a broker's --config, NAMESPACE/NAME[/KEY] of the ConfigMap with CoreDNS's configuration, all keys without one; none to not look")
	f.StringVar(&d.clusterDomain, "cluster-domain", defaultClusterDomain, "with a broker's --config: the domain of this cluster's own services")
	f.StringVar(&d.kubeconfig, "kubeconfig", "", "with a broker's --config: kubeconfig file by which to read that ConfigMap, Calico's pools and policies; else as the broker would")
}

// use says what is wrong with the flags.
func (d *dnsFlags) use(configFile string) error {
	switch parts := strings.Split(d.configMap, "/"); {
	case d.configMap != noCorefile && (len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "")):
		return fmt.Errorf("--coredns %q: use NAMESPACE/NAME or NAMESPACE/NAME/KEY of a ConfigMap, such as %s, or %s", d.configMap, defaultCorefile, noCorefile)
	case configFile == "" && (d.configMap != defaultCorefile || d.kubeconfig != ""):
		return errors.New("--coredns, --kubeconfig: the names that CoreDNS is to know are those of a broker's --config")
	}
	for _, e := range validation.IsDNS1123Subdomain(d.clusterDomain) {
		return fmt.Errorf("--cluster-domain %q: %s", d.clusterDomain, e)
	}
	return nil
}

// gather reads what the CoreDNS of a broker's cluster is told; nil for nothing to look at.
func (d *dnsFlags) gather(ctx context.Context, c *config.Broker, file string) *check.DNS {
	if d.configMap == noCorefile || !c.Features.Has(config.Services) {
		return nil
	}
	namespace, rest, _ := strings.Cut(d.configMap, "/")
	name, key, _ := strings.Cut(rest, "/")
	out := &check.DNS{
		Where: "ConfigMap " + namespace + "/" + name, Want: coredns.Blocks(c, d.clusterDomain),
		Print: "semaphorectl coredns --config " + file,
	}
	if d.clusterDomain != defaultClusterDomain {
		out.Print += " --cluster-domain " + d.clusterDomain
	}
	access := c.Kube
	if d.kubeconfig != "" {
		access.KubeConfigPath = d.kubeconfig
	}
	out.Corefile, out.Err = readCorefile(ctx, access, namespace, name, key)
	if errors.Is(out.Err, errNoCluster) {
		out.Unreachable, out.Err = "this is no pod, and --kubeconfig is not given", nil
	}
	return out
}

// errNoCluster is where nothing says how to reach an apiserver.
var errNoCluster = errors.New("no cluster is known here")

// corefileWithin is how long an apiserver may take to answer.
const corefileWithin = 10 * time.Second

// readCorefile is a key of a ConfigMap, or all of them one after the other.
func readCorefile(ctx context.Context, access config.Kube, namespace, name, key string) (string, error) {
	cfg, err := kube.Config(access, "ctl")
	if errors.Is(err, rest.ErrNotInCluster) {
		return "", errNoCluster
	}
	if err != nil {
		return "", err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return "", fmt.Errorf("client for the apiserver: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, corefileWithin)
	defer cancel()
	configMap, err := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var found corev1.ConfigMap
	if err := fromUnstructured(configMap, &found); err != nil {
		return "", err
	}
	if key != "" {
		text, ok := found.Data[key]
		if !ok {
			return "", fmt.Errorf("it has no key %s, only %s", key, strings.Join(slices.Sorted(maps.Keys(found.Data)), ", "))
		}
		return text, nil
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(found.Data)) {
		all = append(all, found.Data[key])
	}
	return strings.Join(all, "\n"), nil
}
