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

// Directory holds a directory for each testbed of the machine, of any user, so that each can be found and none is taken
// for the remains of a dead one.
const Directory = "/tmp/semaphore-testbed"

// State is what other processes can know of a testbed.
type State struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
	// Owner is the process that made the testbed and will remove it.
	Owner   int       `json:"owner"`
	Started time.Time `json:"started"`
	// Ready is when Up was done, nil before.
	Ready   *time.Time `json:"ready,omitempty"`
	Fabric  string     `json:"fabric"`
	Kubectl string     `json:"kubectl"`
	// Kubeconfig has a context for each cluster, by its name.
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
	// PID is a process that lives in the node's namespaces as long as the node has power.
	PID int `json:"pid"`
	// Daemons are files of control groups that a process of the node enters, as seen from inside.
	Daemons []string `json:"daemons"`
}

// stateDir is the directory of one testbed, with the lock that its owner holds.
type stateDir struct {
	id, path string
	lock     *os.File
}

// createStateDir makes the directory of a new testbed and takes its lock. A random ID is chosen when id is empty.
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

// release gives up the lock. The directory may be gone by then.
func (d *stateDir) release() {
	if d.lock != nil {
		_ = d.lock.Close()
	}
}

// lockAll takes the lock under which testbeds come into being and remains are looked for. It makes Directory.
func lockAll() (*os.File, error) {
	if err := os.Mkdir(Directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// The place is in a directory that everybody may write to.
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
		// Held by others for milliseconds.
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

// errHeld says that the owner of a testbed lives.
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
		time.Sleep(10 * time.Millisecond) // List holds it for an instant to see whether it is free
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

// List gives the testbeds whose owners live, in the order of their IDs. One that is just coming up or going down may be
// without clusters.
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
			continue // it is going down
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		_ = lock.Close()
		if err == nil {
			continue // nobody holds it
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

// stateDirs are the IDs of all testbeds that have a directory.
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

// Find gives the running testbed with an ID, or the only one that runs when id is empty.
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
