package sim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// The simulation is as good as what it finds: each of these is a mistake that a person could make. The simulation must
// find it as a breach of its invariant, in a run in which the product makes that mistake and no other.
func TestPlantedMistakesAreFound(t *testing.T) {
	if os.Getenv("SEEDS") != "" {
		t.Skip("SEEDS asks for a run of many seeds")
	}
	root := testkit.Value(filepath.Abs("../.."))(t)
	mistakes := []mistake{
		{"the broker does not wait for the end mark of a snapshot", "I2", []edit{
			{"broker/apply/writes/retain.go", "return !g.confirmed || !g.Heard()", "return g.holds()"},
			{"broker/apply/writes/retain.go", "return g.complete() > 0", "return true"},
		}},
		{"the agent does not look which remotes an end mark names", "I2", []edit{
			{"agent/stream/desired.go",
				"for _, cluster := range m.GetClusters() {", "for cluster := range s.awaitingSync {"},
		}},
		{"a snapshot counts before it is whole", "I2", []edit{
			{"broker/replica/session.go", `			st.observed[key] = at
		}
	}
	return nil`, `			st.observed[key] = at
		}
	}
	part := *st
	part.objects, part.refused = maps.Clone(st.objects), maps.Clone(st.refused)
	s.replica.applySnapshot(s.replica.kind(st.kind), &part, now, result)
	return nil`},
		}},
		{"a stream that continues leaves out a deletion", "I1", []edit{
			{"exporter/publish/session.go", "		for _, e := range entries {\n			if change",
				"		for _, e := range entries {\n			if e.Deleted && s.resumed {\n				s.cursor = " +
					"e.Revision\n				taken++\n				continue\n			}\n			if change"},
		}},
		{"an address joins a set while another pod's still has it", "order", []edit{
			{"broker/policy/order.go", "return at.object != name && at.uid != o.uid",
				`return at.object != name && at.uid != o.uid && at.uid == "nobody"`},
		}},
		{"a set is called as those of another remote", "I1", []edit{
			{"broker/policy/plan.go", "func(other string) bool { return naming.InSetsOf(other, name) })",
				"func(string) bool { return false })"},
		}},
		{"which part of a set has an address is not looked up", "I2", []edit{
			{"broker/policy/parts.go", "	if part > 0 {\n		return part // a write that is under way can fail\n	}\n",
				"	if part >= 0 {\n		return 0\n	}\n"},
		}},
		{"an endpoint that changes is given a second place", "I1", []edit{
			{"broker/mirror/endpoints.go", "if s := h.sliceOf[k]; s != nil {",
				"if s := h.sliceOf[k]; s != nil && s.find(k.Address) < 0 {"},
		}},
		{"an address outside the remote's subnets is taken", "I4", []edit{
			{"broker/admission/admission.go", "case !containsAddr(t.remote.PodPrefixes, ip):", "case false:"},
		}},
		{"an acknowledgement waits for as long as more comes", "acks", []edit{
			{"broker/replica/acks.go", "(!waiting || now.Sub(a.sentAt) >= maxAckDelay)", "!waiting"},
		}},
		{"a deposed exporter takes over", "leader", []edit{
			{"broker/replica/session.go", "c != nil && h.GetTerm() != 0 && h.GetTerm() < c.hello.GetTerm()",
				"c != nil && h.GetTerm() > 1<<60"},
		}},
		{"a stream is heard that a newer one has taken over from", "leader", []edit{
			{"broker/replica/session.go", "if s.phase != greeting && !s.Current() {",
				"if s.phase != greeting && s.replica.current == nil {"},
		}},
		{"the end of a stream ends the one that has taken over from it", "leader", []edit{
			{"broker/replica/session.go", "	if s.replica.current == s {\n		s.replica.current = nil\n	}",
				"	s.replica.current = nil"},
		}},
		{"a hello goes back within an epoch", "I3", []edit{
			{"broker/replica/session.go", "held.received(h.GetEpoch()) > h.GetHeadRevision()",
				"held.received(h.GetEpoch()) > 1<<60"},
		}},
		{"a heartbeat is taken for the answer to an offer to go on", "protocol", []edit{
			{"broker/replica/session.go", "case s.phase == offered && m.GetSentRevision() >= s.resume:",
				"case s.phase == offered:"},
		}},
		{"the count of an end mark is not compared", "I1", []edit{
			{"broker/replica/session.go", "case m.GetObjects() != st.sent:", "case m.GetObjects() > 1<<60:"},
		}},
		{"the refusal of a deleted object stays", "I1", []edit{
			{"broker/replica/contents.go", "		delete(c.refused, key)\n", ""},
		}},
		{"the brake does not retain what a snapshot lacks", "brake", []edit{
			{"broker/replica/replica.go", "		case was || brakes:\n", "		case was || brakes && false:\n"},
		}},
		{"a new broker does not compare a first snapshot with what stands", "brake", []edit{
			{"broker/apply/writes/retain.go", "if !g.brake.Brakes(withdrawn, all) || again {",
				"if !g.brake.Brakes(withdrawn, all) || again || true {"},
		}},
		{"the peers of the broker before are not taken over", "peers", []edit{
			{"broker/replica/replica.go", "		changes = append(changes, Change{Key: key, New: taken})\n	}\n	return changes",
				"		k.remove(key)\n	}\n	return changes"},
		}},
		{"a first snapshot withdraws most of the peers", "peers", []edit{
			{"broker/replica/replica.go", "	brakes := r.brake.Brakes(most-s.exported(), most)\n",
				"	brakes := k.complete && r.brake.Brakes(most-s.exported(), most)\n"},
		}},
		{"a first snapshot takes the keys from most of the peers", "peers", []edit{
			{"broker/replica/replica.go", "		case isEmpty(h.object), received && !isEmpty(is.object):\n",
				"		case isEmpty(h.object), received && is.object != nil:\n"},
		}},
		{"another snapshot at once is believed", "peers", []edit{
			{"broker/replica/replica.go", "		case was && now.Sub(w.since) >= r.brake.Hold.Duration:\n",
				"		case was && now.Sub(w.since) >= 0:\n"},
		}},
		{"Unchanged covers what was changed after the first update", "I1", []edit{
			{"broker/peering/session.go", "			s.skip[cluster] = of\n",
				"			s.skip[cluster] = span{of.after, s.state.journal.Head(), of.digest}\n"},
		}},
		{"a batch that is cut counts as all that there was", "I1", []edit{
			{"broker/peering/session.go", "			case n < len(entries):\n", "			case n > len(entries):\n"},
		}},
		{"an exporter's batch that is cut counts as all that there was", "I1", []edit{
			{"exporter/publish/session.go", "if taken == len(entries) && taken < maxBatchObjects {", "if len(entries) > 0 {"},
		}},
	}
	mistakes = append(mistakes, forgetting...)
	overlay := plantAll(t, root, mistakes)
	tier.OnlyAll(t, "the simulation itself; that each mistake can be planted")
	program := buildPlanted(t, root, overlay)
	for _, c := range mistakes {
		t.Run(c.name, func(t *testing.T) {
			out := runPlanted(t, root, program, c)
			found := regexp.MustCompile(`seed (\d+), step \d+: ([A-Za-z0-9]+): .*`).FindAllStringSubmatch(out, -1)
			if len(found) == 0 {
				t.Fatalf("not found:\n%s", out)
			}
			for _, f := range found {
				if f[2] == c.invariant {
					t.Logf("%s", f[0])
					return
				}
			}
			t.Errorf("found as something else than %s: %q", c.invariant, found)
		})
	}
}

// runPlanted runs the simulation with one mistake, and returns what it says.
func runPlanted(t *testing.T, root, program string, c mistake) string {
	run, seeds := "^TestSeeds$", 12000
	if c.invariant == "memory" {
		run, seeds = "^TestASuccessionWithoutAChangeWritesNothing$", 500
	} else if c.invariant == "peers" {
		run = "^TestSuccession$" // what brokers keep for the next one is there alone
	}
	// It needs no clock, and tests beside it do.
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "5", program, "-test.timeout=0", "-test.run="+run)
	cmd.Dir = filepath.Join(root, "test/sim")
	cmd.Env = append(os.Environ(), fmt.Sprint("SEEDS=", seeds), "FROM=1", "UNTIL="+c.invariant, plantedMistake+"="+c.name)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("nothing is found in %d seeds:\n%s", seeds, out)
	}
	return string(out)
}
