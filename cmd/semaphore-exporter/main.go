// Command semaphore-exporter sends a cluster's exports to the brokers of other clusters.
package main

import (
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func main() {
	program.Main(program.Command(program.Part[config.Exporter]{
		Name:  "semaphore-exporter",
		Short: "streams a cluster's exports to the brokers of other clusters",
		Load:  config.Load[config.Exporter],
		Run:   exporter.Run,
	}))
}
