package config

import (
	"errors"
	"fmt"
	"net/netip"

	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/volume"
)

// NoSubnets is what subnetsFile says for no file.
const NoSubnets = "none"

// Subnets are what an agent takes from the broker's configuration file, which the operator wrote, and not from the broker: an agent
// bounds what its broker may have it do, so the bounds must not come from the broker.
type Subnets struct {
	// Local are the pod, service and node subnets of the own cluster.
	Local []netip.Prefix
	// Remotes are the clusters to which there is encryption, by name.
	Remotes map[string]Remote
}

// LoadSubnets reads the configuration file of the broker of cluster for its agents. Keys that this program does not know are for a broker of
// another version.
func LoadSubnets(path, cluster string) (*Subnets, error) {
	data, err := volume.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("subnetsFile: %w", err)
	}
	s, err := ParseSubnets(data, cluster)
	if err != nil {
		return nil, fmt.Errorf("subnetsFile %s: %w", path, err)
	}
	return s, nil
}

// ParseSubnets is LoadSubnets of a file's content.
func ParseSubnets(data []byte, cluster string) (*Subnets, error) {
	if err := checkOneDocument(data); err != nil {
		return nil, err
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	// Not all of Broker: what is wrong with a limit or a label is no reason for a node to be without bounds.
	var file struct {
		Features     Features   `json:"features"`
		Encryption   Strictness `json:"encryption"`
		LocalSubnets []string   `json:"localSubnets"`
		Remotes      []struct {
			Name          string     `json:"name"`
			ServicePrefix string     `json:"servicePrefix"`
			PodSubnets    []string   `json:"podSubnets"`
			NodeSubnets   []string   `json:"nodeSubnets"`
			Encryption    Strictness `json:"encryption"`
			WireGuard     struct {
				ListenPort uint16 `json:"listenPort"`
			} `json:"wireguard"`
		} `json:"remotes"`
	}
	if _, err := strictjson.UnmarshalStrict(text, &file); err != nil {
		return nil, explainType(err)
	}
	c := Broker{Cluster: cluster, Features: file.Features, Encryption: file.Encryption, LocalSubnets: file.LocalSubnets}
	c.setDefaults()
	for _, r := range file.Remotes {
		c.Remotes = append(c.Remotes, Remote{
			Name: r.Name, ServicePrefix: r.ServicePrefix, PodSubnets: r.PodSubnets, NodeSubnets: r.NodeSubnets,
			Encryption: r.Encryption, WireGuard: WireGuard{ListenPort: r.WireGuard.ListenPort},
		})
	}
	var p problems
	c.complete(&p)
	if err := errors.Join(p...); err != nil {
		return nil, err
	}
	s := &Subnets{Local: c.LocalPrefixes, Remotes: map[string]Remote{}}
	if c.Features.Has(Encryption) {
		for _, r := range c.Remotes {
			s.Remotes[r.Name] = r
		}
	}
	return s, nil
}
