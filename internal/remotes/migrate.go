package remotes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// This file converts configuration of the three original tools to RemoteClusters: the files of semaphore-wireguard and
// semaphore-service-mirror, and the flags of semaphore-policy. Inputs are texts; outputs are objects, and sentences on
// the gaps of the texts. Parts of several texts about one cluster are joined in one object.

// The defaults of semaphore-wireguard (both ends of a tunnel need the same).
const (
	originalPort      = 51820
	originalMTU       = 1420
	originalKeepalive = "25s"
)

type Migration struct {
	remotes map[string]*v1alpha1.RemoteCluster
	// notes are sentences for the operator; see Objects.
	notes []string
	// wantsNodes are the remotes with encryption, which need node subnets.
	wantsNodes map[string]bool
}

func NewMigration() *Migration {
	return &Migration{remotes: map[string]*v1alpha1.RemoteCluster{}, wantsNodes: map[string]bool{}}
}

func (m *Migration) remote(name string) *v1alpha1.RemoteCluster {
	r, ok := m.remotes[name]
	if !ok {
		r = &v1alpha1.RemoteCluster{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		}
		m.remotes[name] = r
	}
	return r
}

// Add adds a file of any kind, and returns its kind: name is its name in sentences. It fails for a file that is no
// YAML.
func (m *Migration) Add(name string, data []byte) (kind string, err error) {
	var file struct {
		Local        map[string]any `json:"local"`
		LocalCluster map[string]any `json:"localCluster"`
		Tunnels      []struct {
			Name      string `json:"name"`
			PodSubnet string `json:"podSubnet"`
			MTU       int32  `json:"wgDeviceMTU"`
			Port      int32  `json:"wgListenPort"`
		} `json:"remotes"`
		Mirrored []struct {
			Name   string `json:"name"`
			Prefix string `json:"servicePrefix"`
		} `json:"remoteClusters"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case file.LocalCluster != nil || file.Mirrored != nil:
		for _, r := range file.Mirrored {
			spec := &m.remote(r.Name).Spec
			if r.Prefix != "" && r.Prefix != r.Name {
				spec.ServicePrefix = r.Prefix
			}
		}
		return "semaphore-service-mirror", nil
	case file.Local != nil:
		for _, r := range file.Tunnels {
			spec := &m.remote(r.Name).Spec
			if r.PodSubnet != "" {
				spec.PodSubnets = []v1alpha1.Subnet{v1alpha1.Subnet(r.PodSubnet)}
			}
			// The original answers no probes.
			spec.WireGuard = &v1alpha1.WireGuard{ListenPort: cmp.Or(r.Port, originalPort), MTU: cmp.Or(r.MTU, originalMTU),
				ProbePort: new(int32(0)), PersistentKeepalive: originalKeepalive}
			m.wantsNodes[r.Name] = true
			m.notes = append(m.notes, r.Name+": wireguard has the port, the MTU and the keepalive of semaphore-wireguard, and "+
				"no probes: keep them while the other end runs it")
		}
		return "semaphore-wireguard", nil
	}
	return "", fmt.Errorf("%s: it is no file of semaphore-wireguard (local, remotes) or semaphore-service-mirror "+
		"(localCluster, remoteClusters)", name)
}

// AddPolicyFlags adds the flags of semaphore-policy, in the form of its command line. It fails if they lack
// -target-cluster-name.
func (m *Migration) AddPolicyFlags(line string) error {
	args := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '=' || r == '\n' })
	for i, arg := range args {
		if strings.TrimLeft(arg, "-") == "target-cluster-name" && i+1 < len(args) {
			m.remote(args[i+1])
			return nil
		}
	}
	return fmt.Errorf("%q has no -target-cluster-name, by which semaphore-policy names the remote cluster", line)
}

// SetBundle sets the root certificates of a remote, if there is such a remote.
func (m *Migration) SetBundle(name, text string) {
	if r, ok := m.remotes[name]; ok {
		r.Spec.TrustBundle = text
	}
}

// SetNodeSubnets sets the subnets of a remote's nodes. It fails for a remote that no file has.
func (m *Migration) SetNodeSubnets(name string, all []string) error {
	r, ok := m.remotes[name]
	if !ok {
		return fmt.Errorf("%q is none of the remotes of the files: %s", name,
			strings.Join(slices.Sorted(maps.Keys(m.remotes)), ", "))
	}
	r.Spec.NodeSubnets = As[v1alpha1.Subnet](all)
	return nil
}

// Objects returns the RemoteClusters, sorted by name; notes are remarks on them for the operator, missing are the
// required fields that no file has.
func (m *Migration) Objects() (objects []*v1alpha1.RemoteCluster, notes, missing []string) {
	notes = slices.Clone(m.notes)
	for _, name := range slices.Sorted(maps.Keys(m.remotes)) {
		r := m.remotes[name]
		objects = append(objects, r)
		if err := config.ClusterName(name); err != nil {
			missing = append(missing, fmt.Sprintf("metadata.name: %v; the name is the same in all clusters", err))
		}
		if len(r.Spec.PodSubnets) == 0 {
			missing = append(missing, name+": spec.podSubnets: the subnets of its pods")
		}
		if m.wantsNodes[name] && len(r.Spec.NodeSubnets) == 0 {
			missing = append(missing, name+": spec.nodeSubnets: the subnets of its nodes' InternalIPs (--node-subnets)")
		}
		notes = append(notes, name+": no file has spec.broker.address: add it when a broker runs there, to export to it")
		if r.Spec.TrustBundle == "" {
			missing = append(missing, name+": spec.trustBundle: its root certificates (--bundles)")
		}
	}
	return objects, notes, missing
}
