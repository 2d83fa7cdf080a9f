package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/volume"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// stateVersion is of the format: a line "semaphore-agent state VERSION CLUSTER SHA256", then one AgentState message.
// The checksum covers the cluster's name, a line break and the message.
const stateVersion = 1

// maxStateSize is larger than any state, in bytes: 5,000 peers have 0.6 MiB.
const maxStateSize = 256 << 20

// StateFile are the contents of the state file: the last complete state that a broker sent. The file has a version, the
// cluster's name and a checksum. One that is damaged, or of another cluster or version, is ignored.
type StateFile struct {
	// Networks are the desired networks, by remote cluster.
	Networks map[string]*plan.Desired
	// Guard are the remotes whose pod subnets are guarded, complete or not, sorted by name.
	Guard []*semaphorev1.GuardedRemote
	// Subnets is the last usable form of the node's subnets file; empty for none. See bounds.ReadText.
	Subnets string
	// Calls are the remotes that this node calls.
	Calls []string
	// Confirmed is when a broker last confirmed the state, on this node's clock. It is the file's modification time, so
	// that an unchanged state is not written again.
	Confirmed time.Time
}

// Guarded returns the remotes to guard: Guard, or those of Networks for a file of an agent that stored no such list.
func (c *StateFile) Guarded() []*semaphorev1.GuardedRemote {
	out := slices.Clone(c.Guard)
	for _, cluster := range slices.Sorted(maps.Keys(c.Networks)) {
		if d := c.Networks[cluster].Device; !slices.ContainsFunc(out,
			func(r *semaphorev1.GuardedRemote) bool { return r.GetCluster() == cluster }) {
			out = append(out, &semaphorev1.GuardedRemote{Cluster: cluster, PodSubnets: d.GetPodSubnets(),
				Permissive: d.GetPermissive()})
		}
	}
	return out
}

// LoadState reads the state file of an agent of cluster; "" for the file's own. The error is fs.ErrNotExist if there is
// no file; any other error states why the file cannot be used. If only the networks cannot be used, LoadState returns
// the rest, too: they must not cost the guard.
func LoadState(path, cluster string) (*StateFile, error) {
	data, info, err := read(path)
	var body []byte
	if err == nil {
		body, err = open(data, cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	c, err := decode(body)
	if c != nil {
		c.Confirmed = info.ModTime()
	}
	if err != nil {
		return c, fmt.Errorf("state file %s: %w", path, err)
	}
	return c, nil
}

func read(path string) ([]byte, fs.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("not a regular file")
	case info.Mode().Perm()&0o022 != 0:
		// Who can write the file could make this node send a remote's traffic to another endpoint.
		return nil, nil, fmt.Errorf("other users can write it (mode %#o)", info.Mode().Perm())
	case info.Size() > maxStateSize:
		return nil, nil, fmt.Errorf("it has %d bytes, which is more than any state", info.Size())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxStateSize))
	return data, info, err
}

// open checks the first line and returns the rest.
func open(data []byte, cluster string) ([]byte, error) {
	head, body, _ := bytes.Cut(data, []byte("\n"))
	var v int
	var of, sum string
	n, _ := fmt.Sscanf(string(head[:min(len(head), 200)]), "semaphore-agent state %d %s %s", &v, &of, &sum)
	if cluster == "" {
		cluster = of
	}
	switch {
	case n == 0:
		return nil, errors.New("its first line is not that of a state file")
	case v != stateVersion:
		return nil, fmt.Errorf("it has version %d, and this agent reads version %d", v, stateVersion)
	case n < 3:
		return nil, errors.New("its first line is damaged")
	case of != cluster:
		return nil, fmt.Errorf("it belongs to cluster %q", of)
	}
	if sum != checksum(cluster, body) {
		return nil, errors.New("it is damaged: its checksum does not match")
	}
	return body, nil
}

func checksum(cluster string, body []byte) string {
	h := sha256.New()
	fmt.Fprintln(h, cluster)
	h.Write(body)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// decode decodes a state whose checksum is correct. An agent wrote it, so an invalid entry is a bug, and all networks
// are ignored.
func decode(body []byte) (*StateFile, error) {
	var all semaphorev1.AgentState
	if err := proto.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	networks, err := networksOf(&all)
	return &StateFile{Networks: networks, Guard: all.GetGuard(), Subnets: all.GetSubnets(), Calls: all.GetCalls()}, err
}

func networksOf(all *semaphorev1.AgentState) (map[string]*plan.Desired, error) {
	networks := map[string]*plan.Desired{}
	for i, m := range all.GetChanges() {
		c := changeOf(m)
		switch n := networks[c.cluster]; {
		case c.device != nil:
			networks[c.cluster] = &plan.Desired{Device: c.device, Peers: map[string]*semaphorev1.Peer{}}
		case c.peer == nil:
			return nil, fmt.Errorf("entry %d is neither a device nor a peer", i)
		case n == nil:
			return nil, fmt.Errorf("entry %d is a peer of cluster %q, which has no device", i, c.cluster)
		default:
			n.Peers[c.node] = c.peer
		}
	}
	return networks, nil
}

// encode encodes a file. The same state always has the same bytes.
func encode(cluster string, c StateFile) ([]byte, error) {
	all := semaphorev1.AgentState{Guard: c.Guard, Subnets: c.Subnets, Calls: c.Calls}
	for _, remote := range slices.Sorted(maps.Keys(c.Networks)) {
		n := c.Networks[remote]
		all.Changes = append(all.Changes,
			&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Device{Device: n.Device}})
		for _, node := range slices.Sorted(maps.Keys(n.Peers)) {
			all.Changes = append(all.Changes,
				&semaphorev1.PeeringChange{Change: &semaphorev1.PeeringChange_Peer{Peer: n.Peers[node]}})
		}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(&all)
	if err != nil {
		return nil, err
	}
	head := fmt.Appendf(nil, "semaphore-agent state %d %s %s\n", stateVersion, cluster, checksum(cluster, body))
	return append(head, body...), nil
}

// beside is the temporary file that replaces path. There is one writer, so one name is enough, and remains of a crash
// are overwritten.
func beside(path string) string { return path + ".new" }

// replace writes a file atomically, also at a power cut, and sets its modification time.
func replace(path string, data []byte, modified time.Time) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// A link that exists there must not be followed, nor a file's mode kept.
	if err := os.Remove(beside(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(beside(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, os.Chtimes(beside(path), modified, modified))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(beside(path))) // room for the next file
	}
	return volume.Rename(beside(path), path)
}

// RemoveState removes the state file, and a partly written one, and returns their names. It fails for a file that it
// cannot remove; one that does not exist is no error.
func RemoveState(path string) (removed []string, err error) {
	for _, file := range []string{path, beside(path)} {
		switch rm := os.Remove(file); {
		case rm == nil:
			removed = append(removed, file)
		case !errors.Is(rm, fs.ErrNotExist):
			err = errors.Join(err, rm)
		}
	}
	return removed, err
}
