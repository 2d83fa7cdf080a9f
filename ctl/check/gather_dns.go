package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/read"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// dnsFlags are the flags for CoreDNS's configuration.
type dnsFlags struct {
	configMap, clusterDomain string
	access                   *fleet.Access
}

func (d *dnsFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&d.configMap, "coredns", dns.DefaultCorefile,
		"with a broker's --config or --context, NAMESPACE/NAME[/KEY] "+
			"of the ConfigMap with CoreDNS's configuration, all keys without one; none to not look")
	f.StringVar(&d.clusterDomain, "cluster-domain", dns.DefaultClusterDomain,
		"with a broker's --config or --context: the domain of this cluster's own services")
}

// use returns what is wrong with the flags; ofBroker is set if the configuration of a broker may be checked.
func (d *dnsFlags) use(ofBroker bool) error {
	switch parts := strings.Split(d.configMap, "/"); {
	case d.configMap != dns.NoCorefile && (len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "")):
		return fmt.Errorf("--coredns %q: use NAMESPACE/NAME or NAMESPACE/NAME/KEY of a ConfigMap, such as %s, or %s",
			d.configMap, dns.DefaultCorefile, dns.NoCorefile)
	case !ofBroker && d.configMap != dns.DefaultCorefile:
		return errors.New("--coredns: use it with a broker's --config, whose remotes' names CoreDNS must resolve")
	}
	for _, e := range validation.IsDNS1123Subdomain(d.clusterDomain) {
		return fmt.Errorf("--cluster-domain %q: %s", d.clusterDomain, e)
	}
	return nil
}

// gather reads the configuration of CoreDNS in a broker's cluster; nil if there is nothing to check.
func (d *dnsFlags) gather(ctx context.Context, c *config.Broker, file string) *DNS {
	if d.configMap == dns.NoCorefile || !c.Features.Has(config.Services) {
		return nil
	}
	namespace, rest, _ := strings.Cut(d.configMap, "/")
	name, key, _ := strings.Cut(rest, "/")
	out := &DNS{
		Where: "ConfigMap " + namespace + "/" + name, Want: coredns.Blocks(c, d.clusterDomain),
		Print: "semaphorectl coredns --config " + file,
	}
	if d.clusterDomain != dns.DefaultClusterDomain {
		out.Print += " --cluster-domain " + d.clusterDomain
	}
	out.Corefile, out.Err = readCorefile(ctx, d.access, c.Kube, namespace, name, key)
	out.Wired, out.MarkErr = wiredBy(ctx, d.access, c)
	if errors.Is(out.Err, errNoCluster) {
		out.Unreachable, out.Err = "semaphorectl does not run in a pod, and neither --context nor --kubeconfig is given",
			nil
	}
	return out
}

// errNoCluster is the error if nothing says how to reach an apiserver.
var errNoCluster = errors.New("no cluster is configured here")

// wiredBy reports whether semaphorectl put blocks into the configuration of CoreDNS in a broker's cluster.
func wiredBy(ctx context.Context, access *fleet.Access, c *config.Broker) (bool, error) {
	cfg, err := fleet.ConfigOf(access, c.Kube)
	if err != nil {
		return false, err
	}
	client, err := read.New(cfg)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, read.Within)
	defer cancel()
	_, err = client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(c.MirrorNamespace).Get(ctx,
		naming.ConfigMapDNS, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// readCorefile returns one key of a ConfigMap, or all of them concatenated.
func readCorefile(ctx context.Context, access *fleet.Access, own config.Kube, namespace, name,
	key string) (string, error) {
	cfg, err := fleet.ConfigOf(access, own)
	if errors.Is(err, rest.ErrNotInCluster) {
		return "", errNoCluster
	}
	if err != nil {
		return "", err
	}
	client, err := read.New(cfg)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, read.Within)
	defer cancel()
	configMap, err := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace).Get(ctx,
		name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var found corev1.ConfigMap
	if err := read.Into(configMap, &found); err != nil {
		return "", err
	}
	if key != "" {
		text, ok := found.Data[key]
		if !ok {
			return "", fmt.Errorf("it has no key %s, only %s", key, strings.Join(slices.Sorted(maps.Keys(found.Data)), ", "))
		}
		imported, err := imported(ctx, client, namespace, name, text)
		if err != nil {
			return "", err
		}
		return text + imported, nil
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(found.Data)) {
		all = append(all, found.Data[key])
	}
	return strings.Join(all, "\n"), nil
}

// customOf ends the name of the ConfigMap from which distributions that ship a Corefile with an import take the files,
// such as K3s and AKS, for callers that may not read CoreDNS's Deployment, which names it.
const customOf = "-custom"

// imported returns the server blocks that a Corefile imports from files of another ConfigMap; empty for none.
func imported(ctx context.Context, client dynamic.Interface, namespace, name, corefile string) (string, error) {
	pattern, imports := coredns.Import(corefile)
	if !imports {
		return "", nil
	}
	custom := name + customOf
	deployment, err := client.Resource(read.DeploymentsGVR).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		if mounted := dns.MountedFrom(deployment, path.Dir(pattern)); mounted != "" {
			custom = mounted
		}
	}
	object, err := client.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(namespace).Get(ctx,
		custom, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("it imports %s: %w", pattern, err)
	}
	data, _, err := unstructured.NestedStringMap(object.Object, "data")
	if err != nil {
		return "", fmt.Errorf("ConfigMap %s/%s: %w", namespace, custom, err)
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if ok, err := path.Match(path.Base(pattern), key); err == nil && ok {
			out.WriteString("\n" + data[key])
		}
	}
	return out.String(), nil
}
