// Command semaphorectl asks the parts of semaphore what they know and do, and makes keys
// and DNS blocks for operators.
package main

import (
	"github.com/kube-semaphore/semaphore/internal/ctl"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func main() { program.Main(ctl.Command()) }
