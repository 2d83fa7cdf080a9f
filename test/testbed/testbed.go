package testbed

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

//go:embed manifests/*.yaml
var manifests embed.FS

func manifest(name string) string {
	data, err := manifests.ReadFile("manifests/" + name)
	if err != nil {
		panic(err) // it is compiled in
	}
	return string(data)
}

// Testbed is a running set of clusters.
type Testbed struct {
	// ID is unique among the testbeds of the machine.
	ID string

	options    Options
	state      *stateDir
	log        *slog.Logger
	logFile    *os.File
	paths      components.Paths
	cgroups    *cgroup.Hierarchies
	fabric     *netns.Namespace
	imagesMade gate
	clusters   []*Cluster
	times      times

	life    context.Context // parent of all background contexts; Down cancels it through end
	end     context.CancelFunc
	running sync.WaitGroup // goroutines that run until life ends
	fail    context.CancelCauseFunc
	settled atomic.Bool // Up has finished, or Down has begun: the exit of a component no longer fails Up

	failuresMu sync.Mutex
	failures   []error // errors of background goroutines; Down returns them

	down    sync.Once
	downErr error
}

// Up creates a testbed and returns when everything in it is ready: apiservers, nodes with kube-proxy and Felix in sync,
// BGP sessions between nodes, and CoreDNS. It removes everything again on failure, and when ctx ends during Up or
// later. Down waits for that removal.
func Up(ctx context.Context, options Options) (_ *Testbed, err error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("testbed: options: %w", err)
	}
	cgroups, err := checkMachine(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("testbed: %w", err)
	}
	if swept, err := Sweep(); err != nil {
		return nil, fmt.Errorf("testbed: removing what killed testbeds left: %w", err)
	} else if len(swept) > 0 {
		fmt.Fprintf(options.Progress, "testbed: removed what was left of %s, killed before\n", strings.Join(swept, ", "))
	}
	upCtx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	tb := &Testbed{
		options: options, life: life, end: end, fail: fail, times: times{began: time.Now()}, cgroups: cgroups,
		imagesMade: newGate(),
	}
	if tb.state, err = createStateDir(options.ID); err != nil {
		end()
		return nil, fmt.Errorf("testbed: %w", err)
	}
	tb.ID = tb.state.id
	if err := tb.up(upCtx); err != nil {
		// The first failure cancels upCtx, and later errors only follow from it.
		if cause := context.Cause(upCtx); cause != nil {
			err = cause
		}
		return nil, errors.Join(fmt.Errorf("testbed %s: %w", tb.ID, err), tb.Down())
	}
	context.AfterFunc(ctx, func() { _ = tb.Down() })
	return tb, nil
}

// groupWeight is the CPU weight of a testbed's pods together, relative to a single process, on a busy machine. kubelets
// and other daemons compete as single processes.
const groupWeight = 10

func (tb *Testbed) up(ctx context.Context) error {
	if err := tb.openLog(); err != nil {
		return err
	}
	if err := os.Mkdir(tb.emptyDir(), 0o755); err != nil {
		return err
	}
	if err := tb.writeState(); err != nil {
		return err
	}
	builder := &components.Builder{Repository: tb.options.Repository, Progress: tb.options.Progress}
	var err error
	if tb.paths, err = builder.Ensure(ctx); err != nil {
		return err
	}
	tb.times.began = time.Now() // the time of builds does not count
	group := cgroupName(tb.ID)
	if err := errors.Join(tb.cgroups.Create(group), tb.cgroups.Weigh(group, groupWeight)); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := tb.makeImages(gctx, builder); err != nil {
			return err
		}
		tb.imagesMade.open()
		return nil
	})
	if tb.fabric, err = createFabric(tb.ID, tb.options.dual()); err != nil {
		return errors.Join(err, g.Wait())
	}
	for i, spec := range tb.options.Clusters {
		tb.clusters = append(tb.clusters, newCluster(tb, spec, i+1))
	}
	for _, c := range tb.clusters {
		g.Go(func() error { return c.up(gctx) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	tb.settled.Store(true)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := tb.writeKubeconfig(); err != nil {
		return err
	}
	if err := tb.writeState(); err != nil {
		return err
	}
	fmt.Fprintf(tb.options.Progress, "testbed %s is up after %.1f s\n", tb.ID, time.Since(tb.times.began).Seconds())
	tb.times.print(tb.options.Progress)
	return nil
}

// Down removes the testbed: processes, mounts, namespaces and files. It is safe to call it repeatedly and concurrently.
// Each call returns the errors of the removal when everything is gone.
func (tb *Testbed) Down() error {
	tb.down.Do(func() {
		tb.settled.Store(true) // from here on, components exit because they are stopped
		var nodes []*Node
		for _, c := range tb.clusters {
			nodes = append(nodes, c.Nodes...)
		}
		errs := []error{powerOffAll(nodes)}
		tb.end()
		tb.running.Wait()
		tb.failuresMu.Lock()
		errs = append(errs, tb.failures...)
		tb.failuresMu.Unlock()
		if tb.logFile != nil {
			errs = append(errs, tb.logFile.Close())
		}
		// lockAll keeps Sweep away while the directory with the testbed's lock is removed.
		all, err := lockAll()
		errs = append(errs, err, tb.state.remove())
		if err == nil {
			_ = all.Close()
		}
		tb.state.release()
		if err := errors.Join(errs...); err != nil {
			tb.downErr = fmt.Errorf("testbed %s: taking it down: %w", tb.ID, err)
		}
	})
	return tb.downErr
}

// Dir returns the testbed's directory. Down removes it with all files in it.
func (tb *Testbed) Dir() string { return tb.state.path }

// Clusters returns the clusters in the order of the options.
func (tb *Testbed) Clusters() []*Cluster { return tb.clusters }

// Cluster returns the cluster with a name, or nil.
func (tb *Testbed) Cluster(name string) *Cluster {
	for _, c := range tb.clusters {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Fabric returns the namespace of the bridge between all nodes. Traffic between nodes can be captured there.
func (tb *Testbed) Fabric() *netns.Namespace { return tb.fabric }

// namespace returns the name of a network namespace of the testbed.
func (tb *Testbed) namespace(cluster, what string) string {
	return namespacePrefix(tb.ID) + cluster + "-" + what
}

// emptyDir returns the directory on which each process mounts its own root filesystem, in its own mount namespace.
func (tb *Testbed) emptyDir() string { return filepath.Join(tb.state.path, "root") }

func (tb *Testbed) openLog() error {
	dir := filepath.Join(tb.state.path, "logs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	tb.log = tb.options.Log
	if tb.log != nil {
		return nil
	}
	var err error
	tb.logFile, err = os.OpenFile(filepath.Join(dir, "testbed.log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err == nil {
		tb.log = slog.New(slog.NewTextHandler(tb.logFile, nil))
	}
	return err
}

// writeState writes the State file for other processes.
func (tb *Testbed) writeState() error {
	s := State{
		ID: tb.ID, Dir: tb.state.path, Owner: os.Getpid(), Started: tb.times.began, Kubectl: tb.paths.Kubectl,
		Kubeconfig: tb.Kubeconfig(),
		Clusters:   []ClusterState{},
	}
	if tb.settled.Load() {
		now := time.Now()
		s.Ready = &now
	}
	if tb.fabric != nil {
		s.Fabric = tb.fabric.Name()
	}
	for _, c := range tb.clusters {
		s.Clusters = append(s.Clusters, c.describe())
	}
	return tb.state.write(s)
}

// background runs f until the testbed goes down. Down returns its error.
func (tb *Testbed) background(f func(context.Context) error) {
	tb.running.Go(func() {
		if err := f(tb.life); err != nil {
			tb.failuresMu.Lock()
			defer tb.failuresMu.Unlock()
			tb.failures = append(tb.failures, err)
		}
	})
}
