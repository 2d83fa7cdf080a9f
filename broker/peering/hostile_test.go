package peering

import (
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHostileText: what an agent reports becomes bounded lines of printable, valid text.
func TestHostileText(t *testing.T) {
	testkit.OneLine(t, maxProblem, func(text string) string {
		r := testkit.Value((&Session{}).checkReport(&semaphorev1.AgentReport{Problems: []string{text}}))(t)
		return r.Problems[0]
	})
	testkit.OneLine(t, len("device : x")+maxName, func(text string) string {
		r := testkit.Value((&Session{configured: map[string]bool{"c2": true}}).checkReport(&semaphorev1.AgentReport{
			Devices: []*semaphorev1.DeviceReport{{Cluster: "c2", Interface: text, Problem: "x"}}}))(t)
		if len(text) > maxName {
			return "refused"
		}
		return r.Problems[0]
	})
	silent := func(text string) *semaphorev1.SilentPeer {
		stats, _ := handshakeStatsOf(&semaphorev1.DeviceReport{Peers: 1, PeersSilent: 1,
			Silent: []*semaphorev1.SilentPeer{{Node: text, Reason: text}}})
		return stats.peers[0]
	}
	testkit.OneLine(t, maxNodeName, func(text string) string { return silent(text).Node })
	testkit.OneLine(t, maxReason, func(text string) string { return silent(text).Reason })
}
