package fleet

import (
	"fmt"
	"io"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

// Heading prints which of several clusters the following lines are about.
func Heading(w io.Writer, access *Access, p *Part) {
	if len(access.Contexts) > 1 {
		fmt.Fprintf(w, "%s: ", p.Context)
	}
}

// Again returns a command for the cluster of a part, to be pasted. Without flags that name a cluster it is the verb
// alone: a command in a pod asks the part there.
func Again(access *Access, p *Part, verb string) string {
	var contexts []string
	if len(access.Contexts) > 0 {
		contexts = []string{p.Context}
	}
	return Command(verb, contexts, access.Kubeconfig, access.Namespace)
}

func CommandFor(c *Cluster, verb string) string {
	return Command(verb, []string{c.Context}, c.Kubeconfig, c.Namespace)
}

// Command returns a command with the flags that select clusters, without flags that have their defaults.
func Command(verb string, contexts []string, kubeconfig, namespace string) string {
	out := "semaphorectl " + verb
	for _, c := range contexts {
		out += " --context " + c
	}
	if kubeconfig != "" {
		out += " --kubeconfig " + kubeconfig
	}
	if namespace != "" && namespace != DefaultNamespace {
		out += " -n " + namespace
	}
	return show.Printable(out)
}
