// Command semaphorectl shows the state of semaphore's parts, controls them, and makes keys and DNS blocks for
// operators. Under the name kubectl-semaphore it is a plugin of kubectl.
package main

import (
	"os"

	"github.com/kube-semaphore/semaphore/ctl"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func main() { program.Main(ctl.CommandAs(os.Args[0], os.Args[1:])) }
