package components

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// change is one to a module of others before it is compiled. The rest of the module stays as it is.
type change struct {
	module, file string
	with         string // the file of the tool that takes the file's place; "" and no old: the file is left out
	old, new     string // text that is in the file once, and what stands in its place
}

// changes are made to the components. The module cache is the user's and stays as it is.
var changes = []change{
	// Support of tests beside the code of programs: the compiler would need 29 s for client-go's fake clientset.
	{module: "k8s.io/apiserver", file: "pkg/admission/plugin/policy/generic/policy_test_context.go"},
	{module: kubernetesModule, file: "pkg/scheduler/backend/queue/testing.go"},

	// Calico's own libraries are those of Kubernetes 1.29. With these it compiles with the ones of the other
	// components: the compiler would need 144 s for its own.
	{module: calicoModule, file: "felix/bpf/proxy/proxy.go", with: "bpfproxy/proxy.go"},
	{module: calicoModule, file: "felix/bpf/proxy/endpoint.go"},
	{module: calicoModule, file: "felix/bpf/proxy/kube-proxy.go"},
	{module: calicoModule, file: "felix/bpf/proxy/options.go"},
	{module: calicoModule, file: "felix/bpf/proxy/rtcache.go"},
	{module: calicoModule, file: "felix/bpf/proxy/syncer.go"},
	{module: calicoModule, file: "felix/bpf/proxy/topology.go"},
	// A rule's mark and mask have other types in the netlink library.
	{module: calicoModule, file: "felix/routerule/rule_lib.go", old: "Mask = int(mask)", new: "Mask = &mask"},
	{module: calicoModule, file: "felix/routerule/rule_lib.go", old: "Mark = int(mark)", new: "Mark = mark"},
	{module: calicoModule, file: "felix/routerule/rule_lib.go", old: "(r.nlRule.Mask == p.nlRule.Mask)",
		new: "((r.nlRule.Mask == nil) == (p.nlRule.Mask == nil) && " +
			"(r.nlRule.Mask == nil || *r.nlRule.Mask == *p.nlRule.Mask))"},
	// The library reports a list of links that changed meanwhile, and Felix would end. Its own took the list.
	{module: calicoModule, file: "felix/ifacemonitor/iface_monitor.go", old: "links, err := m.netlinkStub.LinkList()",
		new: "links, err := m.netlinkStub.LinkList()\n\tif errors.Is(err, unix.EINTR) {\n\t\terr = nil\n\t}"},
	// kube-controllers compacts an etcd of its own. A testbed's Calico keeps its objects in the apiserver.
	{module: calicoModule, file: "kube-controllers/cmd/kube-controllers/main.go",
		old: "etcd3.StartCompactor(ctx, etcdClient, interval)",
		new: `log.Panic("built without compaction", etcdClient)`},
	{module: calicoModule, file: "kube-controllers/cmd/kube-controllers/main.go",
		old: `"k8s.io/apiserver/pkg/storage/etcd3"`},
}

// changed makes changes in copies of their modules in dir, and returns a copy of source/go.mod that has the copies in
// place of the modules. A copy consists of links but where something is changed.
func changed(ctx context.Context, source, dir string, changes []change) (modfile string, err error) {
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := copyTree(filepath.Join(source, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	modfile = filepath.Join(dir, "go.mod")
	modules, edit := map[string]string{}, []string{"mod", "edit"} // modules are directories in the module cache
	for _, c := range changes {
		copied := filepath.Join(dir, filepath.FromSlash(c.module))
		if modules[c.module] == "" {
			if modules[c.module], err = moduleDir(ctx, source, c.module); err != nil {
				return "", err
			}
			edit = append(edit, "-replace="+c.module+"="+copied)
		}
		if err := copyAlong(modules[c.module], copied, filepath.Dir(filepath.FromSlash(c.file))); err != nil {
			return "", fmt.Errorf("copy module %s: %w", c.module, err)
		}
		if err := c.make(source, filepath.Join(copied, filepath.FromSlash(c.file))); err != nil {
			return "", fmt.Errorf("change module %s: %w", c.module, err)
		}
	}
	cmd := goCommand(ctx, source, append(edit, modfile)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return modfile, nil
}

// make changes the file.
func (c change) make(source, file string) error {
	data, err := os.ReadFile(file)
	switch {
	case err != nil:
		return err
	case c.with != "":
		return copyTree(filepath.Join(source, filepath.FromSlash(c.with)), file)
	case c.old == "":
		return os.Remove(file)
	}
	if found := strings.Count(string(data), c.old); found != 1 {
		return fmt.Errorf("%s has %q %d times instead of once", c.file, c.old, found)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(data), c.old, c.new, 1)), 0o644)
}

// copyAlong makes the directories from the root of a copy to the one named rel. Each has copies of the files of the
// module's (a link could not be embedded in a program), and links to its directories.
func copyAlong(module, copied, rel string) error {
	if parent := filepath.Dir(rel); rel != "." {
		if err := copyAlong(module, copied, parent); err != nil {
			return err
		}
	}
	from, to := filepath.Join(module, rel), filepath.Join(copied, rel)
	if info, err := os.Lstat(to); err == nil && info.IsDir() {
		return nil // it is copied
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			err = os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()))
		} else {
			err = copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
