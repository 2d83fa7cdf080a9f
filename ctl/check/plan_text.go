package check

import (
	"fmt"
	"io"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

func (p Plan) Text() string {
	m := p.Mesh
	return show.Tabbed(func(t io.Writer) {
		fmt.Fprintf(t, "Each of %d clusters: %d nodes; exports %d Services of %d endpoints and %d set members; "+
			"%d changes a second.\nIn each RemoteCluster suffices spec.size: %s\n\n", m.Clusters, m.Nodes, m.Services,
			m.Endpoints, m.Members, m.Changes, p.Size)
		fmt.Fprintln(t, "PART\tREPLICAS\tMEMORY\tCORES\tRECEIVES\tSENDS")
		for _, part := range p.Parts {
			fmt.Fprintf(t, "%s\t%d\t%.0f MiB\t%.3f\t%.1f KiB/s\t%.1f KiB/s\n", part.Name, part.Replicas, part.Memory/mib,
				part.Cores, part.Receives/kib, part.Sends/kib)
		}
		fmt.Fprintln(t, "\nIN EACH CLUSTER\tCOUNT")
		for _, count := range p.Counts {
			fmt.Fprintf(t, "%s\t%d\n", count.Of, count.Count)
		}
		if len(p.Raise) == 0 {
			fmt.Fprintln(t, "\nNo limit has to be raised.")
			return
		}
		fmt.Fprintln(t, "\nLIMIT\tTO RAISE IT TO")
		for _, r := range p.Raise {
			if r.Impossible {
				r.What = "NOT POSSIBLE: " + r.What
			}
			fmt.Fprintf(t, "%s\t%s\n", r.Limit, r.What)
		}
	})
}
