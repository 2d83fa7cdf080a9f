package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// rawPeer returns a peer in the form of the WireGuard library.
func rawPeer(i, key int) wgtypes.PeerConfig {
	return wgtypes.PeerConfig{
		PublicKey: publicKey(key), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 51820}, ReplaceAllowedIPs: true,
		AllowedIPs: []net.IPNet{{IP: net.IPv4(10, byte(2+i>>8), byte(i), 0), Mask: net.CIDRMask(24, 32)}},
	}
}

// rawPeers returns n peers with keys from first on.
func rawPeers(n, first int) (raw []wgtypes.PeerConfig) {
	for i := range n {
		raw = append(raw, rawPeer(i, first+i))
	}
	return raw
}

// process starts a program as an agent until the benchmark ends, and returns its process ID.
func process(b *testing.B, cfg *config.Agent, program func(file string) (args, env []string)) (pid string) {
	b.Helper()
	file := filepath.Join(b.TempDir(), "config.yaml")
	must(b, os.WriteFile(file, configOf(cfg), 0o600))
	args, env := program(file)
	cmd := exec.CommandContext(b.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	must(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

// settled starts an agent as deployed, in a process of its own, and waits until the effects of its start are over.
func settled(b *testing.B, broker *broker, cfg *config.Agent, peers int) (pid string) {
	b.Helper()
	pid = process(b, cfg, func(file string) (args, env []string) {
		return []string{"/proc/self/exe"}, []string{asAgent + "=" + file, deployed}
	})
	broker.say(others(peers)...)
	for begin := time.Now(); !broker.done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			b.Fatal("not all is programmed within a minute")
		}
	}
	time.Sleep(5 * time.Second)
	return pid
}

// maxResident is the largest resident size, in MiB, of an agent with 5,000 peers in its deployment (deploy/agent), a
// minute after it has them all. 16 MiB of it are the program's own pages.
const maxResident = 40

// mostOfRead is the largest ratio of the CPU time of an idle agent for each check of a device, with everything else
// that an idle agent does, to the CPU time of reading the device with the library alone.
const mostOfRead = 2.5

// BenchmarkPolling measures the CPU use of an agent while nothing changes, in percent of one CPU. The agent polls its
// devices, because WireGuard reports no change of a peer. percent-agent is its own process, kernel time included;
// percent-wireguard-go is the process of the userspace device, which answers. CPU-ms/look is the agent's CPU time for
// each check, beside that of reading with the library alone.
func BenchmarkPolling(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		for _, n := range []int{1000, 5000} {
			b.Run(fmt.Sprint(n), func(b *testing.B) { polling(b, n) })
		}
	})
}

func polling(b *testing.B, peers int) {
	broker, cfg := newBroker(b, "c2")
	removeAtEnd(b, device)
	agent := settled(b, broker, cfg, peers)
	looks := func() float64 { return number(b, "semaphore_agent_device_check_duration_seconds_count") }
	h := newHost(b)
	for b.Loop() {
		carried := childrenOf(b, agent)
		looked := looks()
		hadAgent, hadCarried, began := processorTime(b, agent), processorTime(b, carried...), time.Now()
		time.Sleep(20 * time.Second)
		took := time.Since(began)
		used, usedCarried := processorTime(b, agent)-hadAgent, processorTime(b, carried...)-hadCarried
		looked = looks() - looked
		const reads = 40
		hadSelf := processorTime(b, "self")
		for range reads {
			deviceOn(b, h, device)
		}
		read := processorTime(b, "self") - hadSelf
		percent := func(d time.Duration) float64 { return 100 * d.Seconds() / took.Seconds() }
		figure.Report(b, "percent-agent", percent(used))
		figure.Report(b, "percent-wireguard-go", percent(usedCarried))
		figure.Report(b, "CPU-ms/look", 1000*used.Seconds()/looked).
			Floor(1000 * read.Seconds() / reads).AtMostTimesFloor(mostOfRead)
	}
	figure.WithoutTime(b)
}

// processorTime returns the CPU time of processes, from proc(5).
func processorTime(b *testing.B, pids ...string) (sum time.Duration) {
	b.Helper()
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
		must(b, err)
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, f := range fields[11:13] { // utime and stime, in ticks of 10 ms
			ticks, err := strconv.Atoi(f)
			must(b, err)
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// deployed is the garbage collector's setting in deploy/agent/daemonset.yaml.
const deployed = "GOGC=50"

// BenchmarkMemory measures the resident size of the agent's process with 5,000 peers, after they were set, changed,
// checked and scraped: with the runtime's default setting, and with that of deploy/agent. The userspace device is a
// separate process, and not counted.
func BenchmarkMemory(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		program := filepath.Join(b.TempDir(), "semaphore-agent")
		build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o",
			program, "../cmd/semaphore-agent")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", build, err, out)
		}
		for _, collect := range []string{"GOGC=100", deployed} {
			b.Run(collect, func(b *testing.B) { memory(b, program, collect) })
		}
	})
}

func memory(b *testing.B, program string, env ...string) {
	broker, cfg := newBroker(b, "c2")
	removeAtEnd(b, device)
	pid := process(b, cfg, func(file string) (args, more []string) { return []string{program, "--config", file}, env })
	broker.say(others(5000)...)
	for b.Loop() {
		eventually(b, "the agent has come", func() bool { return broker.hello(0) != nil })
	}
	for !broker.done() {
		time.Sleep(10 * time.Millisecond)
	}
	for i := range 200 {
		broker.say(other(i, 30_000+i))
	}
	eventually(b, "all is programmed", broker.done)
	for range 4 { // a minute of what Prometheus does
		_, _ = fetch("metrics")
		time.Sleep(15 * time.Second)
	}
	resident := figure.Report(b, "MiB-resident", memoryOf(b, "VmRSS", pid))
	if env[0] == deployed {
		resident.AtMost(maxResident)
	}
	figure.Report(b, "MiB-of-its-own", memoryOf(b, ofItsOwn, pid))
	figure.WithoutTime(b)
}

// mostChangeCost is the largest ratio of the CPU time of a peer's change, in the agent and again in wireguard-go, to
// that of the bare library call in wireguard-go.
const mostChangeCost = 2

// BenchmarkChangeCost measures the CPU time for one changed key of a peer, at a hundred changes a second on a device
// with 700 peers: in the agent's process, as deployed, and in wireguard-go, beside the cost of bare library calls in
// wireguard-go. It is an upper bound for what a tunnel that needs all CPUs can lose by the changes, which
// BenchmarkThroughput measures with more noise.
func BenchmarkChangeCost(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		const peers, while, perSecond = 700, 10 * time.Second, 100
		broker, cfg := newBroker(b, "c2")
		removeAtEnd(b, device, "wireguard.c9")
		h := newHost(b)
		must(b, h.Create(b.Context(), "wireguard.c9", "", 1420))
		must(b, h.Configure("wireguard.c9", wgtypes.Config{Peers: rawPeers(peers, 0)}))
		bareDevice := children(b)
		agent := settled(b, broker, cfg, peers)
		// cost returns the CPU time of processes for each call of change, above their CPU time without calls.
		cost := func(change func(), of ...[]string) (perChange []float64) {
			had := func() (all []time.Duration) {
				for _, pids := range of {
					all = append(all, processorTime(b, pids...))
				}
				return all
			}
			before := had()
			time.Sleep(while)
			idle := had()
			tick := time.NewTicker(time.Second / perSecond)
			defer tick.Stop()
			changes := 0
			for begin := time.Now(); time.Since(begin) < while; <-tick.C {
				change()
				changes++
			}
			after := had()
			for i := range of {
				perChange = append(perChange, float64((after[i]-idle[i]-(idle[i]-before[i])).Microseconds())/float64(changes))
			}
			return perChange
		}
		key, rawKey := 30_000, 40_000
		for b.Loop() {
			through := cost(func() { key++; broker.say(other(key%peers, key)) }, []string{agent}, childrenOf(b, agent))
			eventually(b, "all is programmed", broker.done)
			bare := cost(func() {
				rawKey++
				must(b, h.Configure("wireguard.c9", wgtypes.Config{Peers: []wgtypes.PeerConfig{
					rawPeer(7, rawKey+1), {PublicKey: publicKey(rawKey), Remove: true},
				}}))
			}, bareDevice)
			figure.Report(b, "agent-CPU-µs/change", through[0]).Floor(bare[0]).AtMostTimesFloor(mostChangeCost)
			figure.Report(b, "wireguard-go-CPU-µs/change", through[1]).Floor(bare[0]).AtMostTimesFloor(mostChangeCost)
		}
		figure.WithoutTime(b)
	})
}

// leastOfUndisturbed is the smallest share of its packets that a tunnel still carries while peers change, if it leaves
// half of the CPUs to others. A tunnel that needs all of them loses the CPU time of the changes, which depends on the
// machine: BenchmarkChangeCost bounds that.
const leastOfUndisturbed = 0.99

// returned returns how many packets a second come back while 64 are under way.
func returned(c *net.UDPConn, while time.Duration) float64 {
	buffer := make([]byte, 1200)
	back, underWay := 0, 0
	for begin := time.Now(); time.Since(begin) < while; {
		for ; underWay < 64; underWay++ {
			_, _ = c.Write(buffer)
		}
		_ = c.SetReadDeadline(time.Now().Add(nodetest.Patience(10 * time.Millisecond)))
		if _, err := c.Read(buffer); err == nil {
			back++
			underWay--
		} else {
			underWay = 0 // packets that have not come back by now are lost, or as good as lost
		}
	}
	for { // packets in flight do not belong to the next turn
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := c.Read(buffer); err != nil {
			return float64(back) / while.Seconds()
		}
	}
}

// BenchmarkThroughput measures what a tunnel carries, there and back, while a hundred peers a second get a new key, and
// while none does. The two alternate in turns, so that other load on the machine affects both alike. saturated- is the
// largest throughput, as the median of the turns of each; a third kind of turn makes the same changes with bare library
// calls. half- is half of that throughput: the share of all sent packets that came back.
func BenchmarkThroughput(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		broker, _, _, _ := connect(b)
		h := newHost(b)
		const peers, raw = 700, 100 // of the agent, and of the bare calls
		broker.program(b, others(peers)...)
		c := toPod(b, "10.2.1.1")
		defer c.Close()
		turn := func() float64 { return returned(c, 300*time.Millisecond) }
		// half returns the number of packets sent in a turn, at a rate, and how many of them came back. The first byte
		// of a packet identifies the turn.
		turns := byte(0)
		half := func(perSecond float64) (sent, back float64) {
			const while = 300 * time.Millisecond
			buffer, received := make([]byte, 1200), make(chan float64)
			turns++
			buffer[0] = turns
			_ = c.SetReadDeadline(time.Now().Add(while + 200*time.Millisecond))
			go func() {
				n, buffer := 0.0, make([]byte, 1200)
				for {
					if _, err := c.Read(buffer); err != nil {
						received <- n
						return
					}
					if buffer[0] == turns {
						n++
					}
				}
			}()
			for begin := time.Now(); time.Since(begin) < while; time.Sleep(time.Millisecond) {
				for ; sent < perSecond*time.Since(begin).Seconds(); sent++ {
					_, _ = c.Write(buffer)
				}
			}
			return sent, <-received
		}
		// while calls do, with a hundred changes a second meanwhile.
		while := func(change, do func()) {
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
						change()
					}
				}
			}()
			do()
			close(stop)
			<-stopped
		}
		key, changes := 20_000, 0
		byAgent := func() {
			key++
			changes++
			broker.say(other(key%peers, key))
		}
		// The device of the bare calls has a link of its own, and the agent does not check it.
		removeAtEnd(b, "wireguard.c9")
		must(b, h.Create(b.Context(), "wireguard.c9", "", 1420))
		must(b, h.Configure("wireguard.c9", wgtypes.Config{Peers: rawPeers(raw, 10_000)}))
		rawKeys := 40_000
		bare := func() {
			rawKeys++
			must(b, h.Configure("wireguard.c9", wgtypes.Config{Peers: []wgtypes.PeerConfig{
				rawPeer(7, rawKeys+1), {PublicKey: publicKey(rawKeys), Remove: true},
			}}))
		}
		updates := func() float64 { return number(b, `semaphore_agent_apply_duration_seconds_count{what="peers"}`) }
		before := updates()
		var alone, changed, bareChanged []float64
		var sent, back, sentChanged, backChanged float64
		median := func(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
		for range 20 { // the number of turns does not depend on the benchmark's time
			alone = append(alone, turn())
			while(byAgent, func() { changed = append(changed, turn()) })
			eventually(b, "all is programmed", broker.done)
			while(bare, func() { bareChanged = append(bareChanged, turn()) })
			s, n := half(median(alone) / 2)
			sent, back = sent+s, back+n
			while(byAgent, func() { s, n = half(median(alone) / 2) })
			sentChanged, backChanged = sentChanged+s, backChanged+n
			eventually(b, "all is programmed", broker.done)
		}
		if got := len(deviceOn(b, h, device).Peers); got != peers+1 {
			b.Errorf("%d peers, want %d", got, peers+1)
		}
		figure.Report(b, "half-share", backChanged/sentChanged).Floor(back / sent).AtLeastTimesFloor(leastOfUndisturbed)
		figure.Report(b, "saturated-packets/s", median(changed)).Floor(median(alone))
		figure.Report(b, "saturated-bare-packets/s", median(bareChanged)).Floor(median(alone))
		// Changes that arrive while the device is being set go with the next update; too few updates would be no
		// disturbance.
		figure.Report(b, "updates/change", (updates()-before)/float64(changes)).AtLeast(0.5)
		figure.WithoutTime(b)
	})
}

// children returns the processes that this one has started.
func children(b *testing.B) []string { return childrenOf(b, "self") }

func childrenOf(b *testing.B, pid string) []string {
	var all []string
	lists, err := filepath.Glob("/proc/" + pid + "/task/*/children")
	must(b, err)
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if !errors.Is(err, fs.ErrNotExist) { // a thread has ended
			must(b, err)
		}
		all = append(all, strings.Fields(string(data))...)
	}
	return all
}

// configOf returns the configuration file with the fields that newBroker sets.
func configOf(cfg *config.Agent) []byte {
	return fmt.Appendf(nil, "cluster: %s\nbroker: {address: %q, bundleFile: %q, tokenFile: %q}\nwgKeyPath: %q\nbackend: "+
		"%q\nsubnetsFile: none\nlocalSubnets: [172.16.0.0/12]\nallowedSubnets: [10.0.0.0/8]\nlisten: {http: %q, "+
		"debugSocket: %q}\n",
		cfg.Cluster, cfg.Broker.Address, cfg.Broker.BundleFile, cfg.Broker.TokenFile, cfg.WGKeyPath, cfg.Backend,
		cfg.Listen.HTTP, cfg.Listen.DebugSocket)
}
