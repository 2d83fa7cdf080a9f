package check

import (
	"fmt"
	"io"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

func (p Plan) Text() string {
	m := p.Mesh
	var out strings.Builder
	fmt.Fprintf(&out, "Each of %d clusters: %d nodes; exports %d Services of %d endpoints and %d set members; "+
		"%d changes a second.\nIn each RemoteCluster suffices spec.size: %s\n", m.Clusters, m.Nodes, m.Services,
		m.Endpoints, m.Members, m.Changes, p.Size)
	out.WriteString("\n" + show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "PART\tREPLICAS\tMEMORY\tCORES\tRECEIVES\tSENDS")
		for _, part := range p.Parts {
			fmt.Fprintf(t, "%s\t%d\t%.0f MiB\t%.3f\t%.1f KiB/s\t%.1f KiB/s\n", part.Name, part.Replicas, part.Memory/mib,
				part.Cores, part.Receives/kib, part.Sends/kib)
		}
	}))
	out.WriteString("\n" + show.Tabbed(func(t io.Writer) {
		fmt.Fprintln(t, "IN EACH CLUSTER\tCOUNT")
		for _, count := range p.Counts {
			fmt.Fprintf(t, "%s\t%d\n", count.Of, count.Count)
		}
	}))
	out.WriteString("\n" + show.Tabbed(func(t io.Writer) {
		if len(p.Raise) == 0 {
			fmt.Fprintln(t, "No limit has to be raised.")
			return
		}
		fmt.Fprintln(t, "LIMIT\tTO RAISE IT TO")
		for _, r := range p.Raise {
			if r.Impossible {
				r.What = "NOT POSSIBLE: " + r.What
			}
			fmt.Fprintf(t, "%s\t%s\n", r.Limit, r.What)
		}
	}))
	return out.String()
}
