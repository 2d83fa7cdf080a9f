package testbed

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// Directory has a directory for each testbed of the machine, for all users. List finds testbeds there, and Sweep can
// tell a running testbed from the remains of a dead one.
const Directory = "/tmp/semaphore-testbed"

// State is the description of a testbed for other processes.
type State struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
	// Owner is the PID of the process that created the testbed and removes it.
	Owner   int       `json:"owner"`
	Started time.Time `json:"started"`
	// Ready is the time at which Up finished, nil before.
	Ready   *time.Time `json:"ready,omitempty"`
	Fabric  string     `json:"fabric"`
	Kubectl string     `json:"kubectl"`
	// Kubeconfig has a context for each cluster, named after the cluster.
	Kubeconfig string         `json:"kubeconfig"`
	Clusters   []ClusterState `json:"clusters"`
}

// ClusterState is one cluster of a State.
type ClusterState struct {
	Name       string      `json:"name"`
	Server     string      `json:"server"`
	Kubeconfig string      `json:"kubeconfig"`
	Pods       string      `json:"podCIDR"`
	Services   string      `json:"serviceCIDR"`
	Logs       string      `json:"logs"`
	Nodes      []NodeState `json:"nodes"`
}

// NodeState is one node of a ClusterState.
type NodeState struct {
	Name string `json:"name"`
	IP   string `json:"ip"`
	// PID is a process in the node's namespaces that lives as long as the node has power.
	PID int `json:"pid"`
	// Daemons are the cgroup.procs files, as seen from inside the node, through which a process enters the node's control
	// group.
	Daemons []string `json:"daemons"`
}

// stateDir is the directory of one testbed. Its owner holds the lock.
type stateDir struct {
	id, path string
	lock     *os.File
}

// createStateDir creates the directory of a testbed and takes its lock. An empty id selects a random one.
func createStateDir(id string) (*stateDir, error) {
	all, err := lockAll()
	if err != nil {
		return nil, err
	}
	defer all.Close()
	for attempt := 0; ; attempt++ {
		chosen := id
		if chosen == "" {
			var random [2]byte
			_, _ = rand.Read(random[:])
			chosen = hex.EncodeToString(random[:])
		}
		d := &stateDir{id: chosen, path: filepath.Join(Directory, chosen)}
		err := os.Mkdir(d.path, 0o755)
		if errors.Is(err, fs.ErrExist) && id == "" && attempt < 100 {
			continue
		}
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("testbed %s is there already: take another ID, or remove it with `testbed down %s` or "+
				"`testbed clean`", chosen, chosen)
		}
		if err != nil {
			return nil, err
		}
		if d.lock, err = tryLock(filepath.Join(d.path, "lock")); err != nil {
			_ = os.RemoveAll(d.path)
			return nil, err
		}
		return d, nil
	}
}

// release unlocks the testbed. The directory may have been removed before.
func (d *stateDir) release() {
	if d.lock != nil {
		_ = d.lock.Close()
	}
}

// lockAll takes the lock that serializes the creation of testbeds and the search for remains. It creates Directory.
func lockAll() (*os.File, error) {
	if err := os.Mkdir(Directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// The parent directory is world-writable, so check the owner and the mode.
	var st unix.Stat_t
	if err := unix.Lstat(Directory, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: Directory, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("%s is not a directory that belongs to uid %d alone: remove it", Directory, os.Geteuid())
	}
	file, err := os.OpenFile(filepath.Join(Directory, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		// Others hold the lock only for milliseconds.
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, &fs.PathError{Op: "lock", Path: file.Name(), Err: err}
	}
	return file, nil
}

// errHeld means that the owner of a testbed is alive.
var errHeld = errors.New("its owner lives")

func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return file, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			_ = file.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		case attempt == 3:
			_ = file.Close()
			return nil, errHeld
		}
		time.Sleep(10 * time.Millisecond) // List takes the lock for an instant to test it
	}
}

func (d *stateDir) write(s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(d.path, "state.json")
	if err := os.WriteFile(file+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// List returns the testbeds whose owners are alive, ordered by ID. A testbed that is starting or stopping may have no
// clusters.
func List() ([]State, error) {
	ids, err := stateDirs()
	if err != nil {
		return nil, err
	}
	var states []State
	for _, id := range ids {
		s := State{ID: id, Dir: filepath.Join(Directory, id)}
		lock, err := os.Open(filepath.Join(s.Dir, "lock"))
		if err != nil {
			continue // the testbed is being removed
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		_ = lock.Close()
		if err == nil {
			continue // the owner is dead
		}
		if data, err := os.ReadFile(filepath.Join(s.Dir, "state.json")); err == nil {
			if err := json.Unmarshal(data, &s); err != nil {
				return nil, fmt.Errorf("state of testbed %s: %w", id, err)
			}
		}
		states = append(states, s)
	}
	return states, nil
}

// stateDirs returns the IDs of all testbeds with a directory.
func stateDirs() ([]string, error) {
	entries, err := os.ReadDir(Directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && idPattern.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// Find returns the running testbed with an ID, or the only running one if id is empty.
func Find(id string) (State, error) {
	states, err := List()
	if err != nil {
		return State{}, err
	}
	if id == "" && len(states) == 1 {
		return states[0], nil
	}
	var ids []string
	for _, s := range states {
		if s.ID == id {
			return s, nil
		}
		ids = append(ids, s.ID)
	}
	switch {
	case len(ids) == 0:
		return State{}, errors.New("no testbed is up: start one with `testbed up` or `make demo`")
	case id == "":
		return State{}, fmt.Errorf("%d testbeds are up: say which with -t, one of %v", len(ids), ids)
	}
	return State{}, fmt.Errorf("no testbed %s is up; there are %v", id, ids)
}
