package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type dnsFlags struct {
	configMap, clusterDomain string
}

func (d *dnsFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&d.configMap, "coredns", fleet.Corefile,
		"with a broker's --config or --context, NAMESPACE/NAME[/KEY] "+
			"of the ConfigMap with CoreDNS's configuration, all keys without one; none to not look")
	f.StringVar(&d.clusterDomain, "cluster-domain", dns.DefaultClusterDomain,
		"with a broker's --config or --context: the domain of this cluster's own services")
}

// use fails for wrong flags; ofBroker is set if the configuration of a broker may be checked.
func (d *dnsFlags) use(ofBroker bool) error {
	switch parts := strings.Split(d.configMap, "/"); {
	case d.configMap != dns.NoCorefile && (len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "")):
		return fmt.Errorf("--coredns %q: use NAMESPACE/NAME or NAMESPACE/NAME/KEY of a ConfigMap, such as %s, or %s",
			d.configMap, fleet.Corefile, dns.NoCorefile)
	case !ofBroker && d.configMap != fleet.Corefile:
		return errors.New("--coredns: use it with a broker's --config, whose remotes' names CoreDNS must resolve")
	}
	for _, e := range validation.IsDNS1123Subdomain(d.clusterDomain) {
		return fmt.Errorf("--cluster-domain %q: %s", d.clusterDomain, e)
	}
	return nil
}

// gather reads the configuration of CoreDNS in a broker's cluster; nil if there is nothing to check.
func (d *dnsFlags) gather(ctx context.Context, b *brokersCluster, file string) *DNS {
	if d.configMap == dns.NoCorefile || !b.Features.Has(config.Services) {
		return nil
	}
	parts := strings.Split(d.configMap, "/")
	out := &DNS{
		Where: "ConfigMap " + parts[0] + "/" + parts[1], Want: coredns.Blocks(b.Broker, d.clusterDomain),
		Print: "semaphorectl coredns --config " + file,
	}
	if d.clusterDomain != dns.DefaultClusterDomain {
		out.Print += " --cluster-domain " + d.clusterDomain
	}
	out.Err = b.read(ctx, func(ctx context.Context) (err error) {
		out.Corefile, err = b.Corefile(ctx, d.configMap)
		var mark, cache map[string]string
		mark, out.MarkErr = b.ConfigMap(ctx, b.MirrorNamespace, naming.ConfigMapDNS)
		cache, out.CacheErr = b.ConfigMap(ctx, fleet.System, fleet.NodeLocal)
		out.Wired, out.Cache = mark != nil, strings.Join(slices.Sorted(maps.Values(cache)), "\n")
		return err
	})
	return out
}
