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

// RemotesFile is the file, beside the broker's, that lists the remotes if they come from RemoteClusters. The exporter
// writes it.
const RemotesFile = "remotes.yaml"

// Subnets are what an agent reads from the broker's configuration file. They bound what the broker may order, so they
// must come from the operator and not from the broker.
type Subnets struct {
	// Local are the pod, service and node subnets of the own cluster.
	Local []netip.Prefix
	// Remotes are the clusters with encryption, by name.
	Remotes map[string]Remote
	// Unnamed is true if no file lists remotes: the broker's has none, and there is no file beside it.
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

// subnetsFile is the part that an agent reads of the broker's file, or of the file with the remotes. It has only what
// the agent needs: an invalid limit or label elsewhere must not leave a node without bounds.
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

// ParseSubnets is LoadSubnets for the content of a file, with no file of remotes beside it.
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
