package fleet

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// DefaultNamespace is where the manifests put the parts.
const DefaultNamespace = "semaphore"

// Access says which clusters a command is about and how to reach their apiservers, by the flags that kubectl has for
// it.
type Access struct {
	// Contexts of the kubeconfig; none for its current one.
	Contexts []string
	All      bool
	// Kubeconfig is a file; empty for those that kubectl takes.
	Kubeconfig string
	Namespace  string
}

func (a *Access) Flags(f *pflag.FlagSet) {
	f.StringSliceVar(&a.Contexts, "context", nil,
		"context of the kubeconfig; for several clusters C1,C2, or repeated (default: the current one)")
	f.BoolVar(&a.All, "all-contexts", false, "all contexts of the kubeconfig")
	f.StringVar(&a.Kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: as kubectl)")
	f.StringVarP(&a.Namespace, "namespace", "n", DefaultNamespace, "namespace of the parts")
}

// Resolve names the contexts of --all-contexts. It is called before a verb runs. It fails if contexts are named, too,
// or the kubeconfig has none.
func (a *Access) Resolve() error {
	if !a.All {
		return nil
	}
	if len(a.Contexts) > 0 {
		return errors.New("--all-contexts: without --context")
	}
	names, err := a.Names()
	if err != nil {
		return fmt.Errorf("--all-contexts: %w", err)
	}
	if len(names) == 0 {
		return errors.New("--all-contexts: the kubeconfig has no context")
	}
	a.Contexts = names
	return nil
}

// Given reports whether the flags name a cluster. Without one, a command in a part's container asks that part.
func (a *Access) Given() bool { return len(a.Contexts) > 0 || a.Kubeconfig != "" }

type Cluster struct {
	// Context is its name in the kubeconfig, for messages; "in-cluster" if a pod's own ServiceAccount is used.
	Context string
	// Kubeconfig is the file that Access named, if it did.
	Kubeconfig string
	Namespace  string
	Config     *rest.Config
	// Objects are those that the caller may read.
	Objects *Objects
	// orders is set for a command that changes something.
	orders bool
}

// NewCluster returns the cluster of a client's configuration. It fails if no client can be made of it.
func NewCluster(context, namespace string, cfg *rest.Config) (*Cluster, error) {
	objects, err := New(context, cfg)
	return &Cluster{Context: context, Namespace: namespace, Config: cfg, Objects: objects}, err
}

// In returns the same cluster with another namespace in place of that of the parts.
func (c *Cluster) In(namespace string) *Cluster {
	other := *c
	other.Namespace = namespace
	return &other
}

// Clusters returns the clusters of the flags, at least one. It fails for a context that is named twice, or that the
// kubeconfig does not have.
func (a *Access) Clusters() ([]*Cluster, error) {
	contexts := a.Contexts
	if len(contexts) == 0 {
		contexts = []string{""}
	}
	for i, name := range contexts {
		if slices.Contains(contexts[:i], name) {
			return nil, fmt.Errorf("--context %s: given twice", name)
		}
	}
	var out []*Cluster
	for _, name := range contexts {
		c, err := a.One(name)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Cluster returns the one cluster of the flags, for commands that are about one. It fails if they name several.
func (a *Access) Cluster() (*Cluster, error) {
	if err := a.OneCluster(); err != nil {
		return nil, err
	}
	all, err := a.Clusters()
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Names returns the contexts of the kubeconfig, for shell completion. It fails if that cannot be read.
func (a *Access) Names() ([]string, error) {
	raw, err := a.loader("").RawConfig()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(raw.Contexts)), nil
}

func (a *Access) loader(context string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: context})
}

// One returns the cluster of one context, in place of those of the flags. It fails if the kubeconfig has no such
// context; it does not ask the apiserver.
func (a *Access) One(context string) (*Cluster, error) {
	loader := a.loader(context)
	cfg, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("how to reach the apiserver (--kubeconfig, --context): %w", err)
	}
	if context == "" {
		raw, err := loader.RawConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		if context = raw.CurrentContext; context == "" {
			context = "in-cluster"
		}
	}
	// enough for the few requests of a person who waits
	cfg.QPS, cfg.UserAgent = -1, "semaphorectl/"+program.Version
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return prompt{next, AnswerWithin} })
	c, err := NewCluster(context, a.Namespace, cfg)
	if err != nil {
		return nil, err
	}
	c.Kubeconfig = a.Kubeconfig
	return c, nil
}
