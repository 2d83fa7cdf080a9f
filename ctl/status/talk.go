package status

import (
	"fmt"
	"io"
	"slices"

	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// writeTalk prints sessions: for a broker the nodes and each pair of nodes without a session, for an agent its peers,
// and where the MTUs of its devices come from.
func writeTalk(w io.Writer, s *semaphorev1.GetStatusResponse) {
	show.Section(w, "TUNNELS TO\tNODES\tTALKING\tSOME SILENT\tNEWEST HANDSHAKE", s.GetTunnels(), 0,
		func(t *semaphorev1.TunnelsStatus) string {
			return fmt.Sprintf("%s\t%d\t%d\t%d\t%s", t.GetCluster(), t.GetNodes(), t.GetNodesTalking(), t.GetNodesSilent(),
				show.Ago(s, t.GetLastHandshake()))
		})
	permissive := slices.DeleteFunc(slices.Clone(s.GetTunnels()),
		func(t *semaphorev1.TunnelsStatus) bool { return !t.GetPermissive() })
	// Packets in the clear, with the number of nodes that counted them; then the nodes that do not send everything
	// through the tunnel.
	show.Section(w, "PERMISSIVE TO\tCLEAR OUT\tCLEAR IN\tNODES\tLAST\tNODES WAITING", permissive, 0,
		func(t *semaphorev1.TunnelsStatus) string {
			return fmt.Sprintf("%s\t%d\t%d\t%d\t%s\t%d", t.GetCluster(), t.GetClearOut(), t.GetClearIn(), t.GetNodesClear(),
				show.Ago(s, t.GetLastClear()), t.GetNodesWaiting())
		})
	silent := func(p *semaphorev1.SilentPair) string {
		return fmt.Sprintf("%s/%s\t%s\t%s", p.GetCluster(), p.GetRemoteNode(), show.Since(s, p.GetSince()), p.GetReason())
	}
	show.Section(w, "SILENT PAIRS, as the nodes of "+s.GetCluster()+
		" see them; how the others do, their own brokers know\nNODE\tDOES NOT HEAR\tFOR\tREASON", s.GetSilentPairs(),
		int(s.GetSilentPairsTotal()), func(p *semaphorev1.SilentPair) string { return p.GetNode() + "\t" + silent(p) })
	measured := slices.DeleteFunc(slices.Clone(s.GetDevices()),
		func(d *semaphorev1.DeviceStatus) bool { return d.GetPaths() == nil })
	var peers []*semaphorev1.SilentPair
	show.Section(w, "DEVICE\tTALKING\tSILENT\tIDLE\tPATHS MEASURED\tWITHOUT ANSWER\tMTU\tWHY", measured, 0,
		func(d *semaphorev1.DeviceStatus) string {
			p := d.GetPaths()
			peers = append(peers, p.GetSilentPeers()...)
			return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s", d.GetInterface(), p.GetTalking(), p.GetSilent(),
				p.GetIdle(), p.GetMeasured(), p.GetUnanswered(), d.GetMtu(), p.GetMtuReason())
		})
	show.Section(w, "SILENT PEER\tFOR\tREASON", peers, 0, silent)
}
