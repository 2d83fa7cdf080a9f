package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/volume"
)

// NoSubnets is the value of subnetsFile for no file.
const NoSubnets = "none"

// RemotesFile is the file beside the broker's that has the remotes if these are RemoteClusters. The exporter writes it.
const RemotesFile = "remotes.yaml"

// Subnets are what an agent reads from the broker's configuration file, which the operator wrote: an agent bounds what
// its broker may order, so the bounds must not come from the broker.
type Subnets struct {
	// Local are the pod, service and node subnets of the own cluster.
	Local []netip.Prefix
	// Remotes are the clusters to which there is encryption, by name.
	Remotes map[string]Remote
	// Unnamed is set if no file names remotes: neither the broker's nor the one beside it, which does not exist.
	Unnamed bool
}

// LoadSubnets reads the configuration file of a cluster's broker for its agents. It ignores unknown keys, which belong
// to a broker of another version.
func LoadSubnets(path, cluster string) (*Subnets, error) {
	data, err := volume.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("subnetsFile: %w", err)
	}
	beside := filepath.Join(filepath.Dir(path), RemotesFile)
	remotes, err := volume.ReadFile(beside)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("subnetsFile: %w", err)
	}
	s, err := parseSubnets(data, remotes, cluster)
	if err != nil {
		return nil, fmt.Errorf("subnetsFile %s: %w", path, err)
	}
	return s, nil
}

// subnetsFile is the part of the broker's file, or of the one with the remotes, that an agent reads. An invalid limit
// or label elsewhere must not leave a node without bounds.
type subnetsFile struct {
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

func (f *subnetsFile) read(data []byte) error {
	if err := checkOneDocument(data); err != nil {
		return err
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	if _, err := strictjson.UnmarshalStrict(text, f); err != nil {
		return explainType(err)
	}
	return nil
}

// ParseSubnets is LoadSubnets for a file's content, without a file beside it.
func ParseSubnets(data []byte, cluster string) (*Subnets, error) {
	return parseSubnets(data, nil, cluster)
}

// parseSubnets reads the broker's file and, if it names no remotes, the one beside it; nil for none.
func parseSubnets(data, remotes []byte, cluster string) (*Subnets, error) {
	var file subnetsFile
	if err := file.read(data); err != nil {
		return nil, err
	}
	unnamed := len(file.Remotes) == 0 && remotes == nil
	if len(file.Remotes) == 0 && remotes != nil {
		var beside subnetsFile
		if err := beside.read(remotes); err != nil {
			return nil, fmt.Errorf("%s: %w", RemotesFile, err)
		}
		file.Remotes = beside.Remotes
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
	s := &Subnets{Local: c.LocalPrefixes, Remotes: map[string]Remote{}, Unnamed: unnamed}
	if c.Features.Has(Encryption) {
		for _, r := range c.Remotes {
			s.Remotes[r.Name] = r
		}
	}
	return s, nil
}
