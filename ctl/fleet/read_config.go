package fleet

import (
	"cmp"
	"context"
	"fmt"
	"path"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

const PodConfig = "/etc/semaphore/config.yaml"

// PartConfig is the relevant part of an exporter's or a broker's configuration.
type PartConfig struct {
	Features        config.Features `json:"features"`
	MirrorNamespace string          `json:"mirrorNamespace"`
	LabelDomains    []string        `json:"labelDomains"`
	MirrorSelector  string          `json:"mirrorSelector"`
	GlobalSelector  string          `json:"globalSelector"`
	MCS             struct {
		Enabled bool `json:"enabled"`
	} `json:"mcs"`
	Kube struct {
		RemoteAPIURL string `json:"remoteAPIURL"`
	} `json:"kube"`
}

// ConfigOf returns the configuration of a part by its Deployment, whatever tool installed it; empty without one. It
// fails if the configuration cannot be read.
func (c *Cluster) ConfigOf(ctx context.Context, deployment string) (p PartConfig, err error) {
	name, err := c.Objects.Mounted(ctx, c.Namespace, deployment, PodConfig)
	if err != nil || name == "" {
		return p, err
	}
	return c.PartConfig(ctx, name)
}

// PartConfig reads the configuration of a part from a ConfigMap. It is empty where it cannot be read.
func (c *Cluster) PartConfig(ctx context.Context, configMap string) (p PartConfig, err error) {
	data, err := c.Objects.ConfigMap(ctx, c.Namespace, configMap)
	if err == nil {
		err = yaml.Unmarshal([]byte(data[path.Base(PodConfig)]), &p)
	}
	if err != nil {
		return PartConfig{}, fmt.Errorf("%s: ConfigMap %s/%s: %w", c.Context, c.Namespace, configMap, err)
	}
	p.MirrorNamespace = cmp.Or(p.MirrorNamespace, DefaultNamespace)
	return p, nil
}

func (p *PartConfig) Has(f config.Feature) bool { return len(p.Features) == 0 || p.Features.Has(f) }

func (p *PartConfig) Domains() []string {
	if len(p.LabelDomains) > 0 {
		return p.LabelDomains
	}
	return []string{naming.DefaultLabelDomain}
}
