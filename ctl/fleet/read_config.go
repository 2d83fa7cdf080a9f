package fleet

import (
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
}

func (p *PartConfig) Has(f config.Feature) bool { return len(p.Features) == 0 || p.Features.Has(f) }

func (p *PartConfig) Domains() []string {
	if len(p.LabelDomains) > 0 {
		return p.LabelDomains
	}
	return []string{naming.DefaultLabelDomain}
}
