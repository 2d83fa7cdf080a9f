package status

import (
	"fmt"
	"io"

	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// writeTalk prints sessions: for a broker the nodes and each pair of nodes without a session, for an agent its peers,
// and where the MTUs of its devices come from.
func writeTalk(w io.Writer, s *semaphorev1.GetStatusResponse) {
	if len(s.GetTunnels()) > 0 {
		fmt.Fprintln(w, "\nTUNNELS TO\tNODES\tTALKING\tSOME SILENT\tNEWEST HANDSHAKE")
		for _, t := range s.GetTunnels() {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", t.GetCluster(), t.GetNodes(), t.GetNodesTalking(), t.GetNodesSilent(),
				show.Ago(s, t.GetLastHandshake()))
		}
	}
	first := true
	for _, t := range s.GetTunnels() {
		if !t.GetPermissive() {
			continue
		}
		if first {
			// Packets in the clear, with the number of nodes that counted them; then the nodes that do not send
			// everything through the tunnel.
			fmt.Fprintln(w, "\nPERMISSIVE TO\tCLEAR OUT\tCLEAR IN\tNODES\tLAST\tNODES WAITING")
			first = false
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%d\n", t.GetCluster(), t.GetClearOut(), t.GetClearIn(), t.GetNodesClear(),
			show.Ago(s, t.GetLastClear()), t.GetNodesWaiting())
	}
	pairs, total := s.GetSilentPairs(), s.GetSilentPairsTotal()
	if len(pairs) > 0 {
		fmt.Fprintf(w, "\nSILENT PAIRS, as the nodes of %s see them; how the others do, their own brokers know\n",
			s.GetCluster())
		fmt.Fprintln(w, "NODE\tDOES NOT HEAR\tFOR\tREASON")
	}
	for _, p := range pairs {
		fmt.Fprintf(w, "%s\t%s/%s\t%s\t%s\n", p.GetNode(), p.GetCluster(), p.GetRemoteNode(), show.Since(s, p.GetSince()),
			p.GetReason())
	}
	if more := int64(total) - int64(len(pairs)); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	writePaths(w, s.GetDevices(), s)
}

func writePaths(w io.Writer, devices []*semaphorev1.DeviceStatus, s *semaphorev1.GetStatusResponse) {
	var silent []*semaphorev1.SilentPair
	first := true
	for _, d := range devices {
		p := d.GetPaths()
		if p == nil {
			continue
		}
		if first {
			fmt.Fprintln(w, "\nDEVICE\tTALKING\tSILENT\tIDLE\tPATHS MEASURED\tWITHOUT ANSWER\tMTU\tWHY")
			first = false
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", d.GetInterface(), p.GetTalking(), p.GetSilent(), p.GetIdle(),
			p.GetMeasured(), p.GetUnanswered(), d.GetMtu(), p.GetMtuReason())
		silent = append(silent, p.GetSilentPeers()...)
	}
	if len(silent) > 0 {
		fmt.Fprintln(w, "\nSILENT PEER\tFOR\tREASON")
	}
	for _, p := range silent {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\n", p.GetCluster(), p.GetRemoteNode(), show.Since(s, p.GetSince()), p.GetReason())
	}
}
