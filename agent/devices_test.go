package agent

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// BenchmarkDevices measures an agent, as deployed, on a node with a device for each of many remotes: 99 with 5,000
// peers in all, and 254 with 25,000. The floor is the same by the library alone, on as many devices. `make scale` runs
// it.
func BenchmarkDevices(b *testing.B) {
	if os.Getenv("SCALE") == "" {
		b.Skip("make scale runs it")
	}
	nodetest.Bench(b, func(b *testing.B) {
		for _, n := range []struct{ devices, peers int }{{99, 5000}, {254, 25_000}} {
			b.Run(fmt.Sprintf("%d-with-%d", n.devices, n.peers), func(b *testing.B) { manyDevices(b, n.devices, n.peers) })
		}
	})
}

// peerAmong returns a peer of one of many remotes, with a key of a version.
func peerAmong(i, devices, version int) *semaphorev1.PeeringChange {
	d, n := i%devices, i/devices
	return peerOf(fmt.Sprint("r", d), fmt.Sprintf("n%05d", i), publicKey(i+version<<16), "192.0.2.9:51820",
		fmt.Sprintf("10.%d.%d.0/24", 1+d, n))
}

// rawAmong returns the peers of one of many remotes in the form of the library.
func rawAmong(d, devices, peers int) (raw []wgtypes.PeerConfig) {
	for i := d; i < peers; i += devices {
		raw = append(raw, wgtypes.PeerConfig{PublicKey: publicKey(i), ReplaceAllowedIPs: true,
			Endpoint:   &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 51820},
			AllowedIPs: []net.IPNet{{IP: net.IPv4(10, byte(1+d), byte(i/devices), 0), Mask: net.CIDRMask(24, 32)}}})
	}
	return raw
}

// bare makes the devices by the library, and returns how long that and a changed peer took, and what their processes
// have of their own.
func bare(b *testing.B, h *kernel.Host, devices, peers int) (start, change time.Duration, mebibytes float64) {
	b.Helper()
	began := time.Now()
	for d := range devices {
		name := fmt.Sprint("wireguard.f", d)
		must(b, h.Create(b.Context(), name, "", 1420))
		must(b, h.Configure(name, wgtypes.Config{Peers: rawAmong(d, devices, peers)}))
	}
	start = time.Since(began)
	mebibytes = memoryOf(b, ofItsOwn, children(b)...)
	var times []time.Duration
	for i := range 20 {
		began := time.Now()
		must(b, h.Configure("wireguard.f0", wgtypes.Config{Peers: []wgtypes.PeerConfig{
			{PublicKey: publicKey(1<<23 + i + 1)}, {PublicKey: publicKey(1<<23 + i), Remove: true}}}))
		times = append(times, time.Since(began))
	}
	for d := range devices {
		must(b, h.Delete(fmt.Sprint("wireguard.f", d)))
	}
	change, _ = figure.Quantiles(times)
	return start, change, mebibytes
}

// ofItsOwn is the memory that a process shares with no other.
const ofItsOwn = "RssAnon"

// memoryOf returns the memory of processes of a kind of proc_pid_status(5), in MiB.
func memoryOf(b *testing.B, kind string, pids ...string) (sum float64) {
	b.Helper()
	for _, pid := range pids {
		usage, err := os.ReadFile("/proc/" + pid + "/status")
		must(b, err)
		for line := range strings.Lines(string(usage)) {
			var kib float64
			if _, err := fmt.Sscanf(line, kind+": %f kB", &kib); err == nil {
				sum += kib / 1024
			}
		}
	}
	return sum
}

func manyDevices(b *testing.B, devices, peers int) {
	var clusters, names []string
	var all []*semaphorev1.PeeringChange
	for d := range devices {
		clusters = append(clusters, fmt.Sprint("r", d))
		names = append(names, naming.Device(clusters[d]))
		device := deviceOf(clusters[d], uint32(10_000+d), fmt.Sprintf("10.%d.0.0/16", 1+d))
		device.GetDevice().PersistentKeepalive = nil // no node exists that would answer keepalives
		all = append(all, device)
	}
	for i := range peers {
		all = append(all, peerAmong(i, devices, 0))
	}
	h := newHost(b)
	rawStart, rawChange, rawMemory := bare(b, h, devices, peers)
	broker, cfg := newBroker(b, clusters...)
	removeAtEnd(b, names...)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	done := func(what string) {
		for began := time.Now(); !broker.done(); time.Sleep(time.Millisecond) {
			if time.Since(began) > 10*time.Minute {
				b.Fatal("not within ten minutes: " + what)
			}
		}
	}
	pid := process(b, cfg, func(file string) (args, env []string) {
		return []string{"/proc/self/exe"}, []string{asAgent + "=" + file, deployed}
	})
	for broker.hello(0) == nil {
		time.Sleep(10 * time.Millisecond)
	}
	began := time.Now()
	for some := range slices.Chunk(all, 2000) { // a message has at most 1 MiB
		broker.say(some...)
		done("all devices are there")
	}
	figure.Report(b, "start-s", time.Since(began).Seconds()).Floor(rawStart.Seconds()).AtMostTimesFloor(3)
	for range b.N {
		had, hadCarried, began := processorTime(b, pid), processorTime(b, childrenOf(b, pid)...), time.Now()
		time.Sleep(20 * time.Second)
		percent := func(d time.Duration) float64 { return 100 * d.Seconds() / time.Since(began).Seconds() }
		figure.Report(b, "idle-percent-agent", percent(processorTime(b, pid)-had)).AtMost(20)
		figure.Report(b, "idle-percent-wireguard-go", percent(processorTime(b, childrenOf(b, pid)...)-hadCarried))
		figure.Report(b, "MiB-of-the-agent", memoryOf(b, ofItsOwn, pid))
		figure.Report(b, "MiB-of-wireguard-go", memoryOf(b, ofItsOwn, childrenOf(b, pid)...)).Floor(rawMemory).
			AtMostTimesFloor(1.5)
		var changes, heals []time.Duration
		for i := range 20 {
			began := time.Now()
			broker.say(peerAmong(7, devices, 1+i))
			done("a change")
			changes = append(changes, time.Since(began))
		}
		slices.Sort(changes)
		figure.Report(b, "change-p50-ms", milliseconds(changes[10])).Floor(milliseconds(rawChange))
		for i := range 5 {
			key := publicKey(i * devices) // a peer of the first device
			must(b, h.Configure(names[0], wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: key, Remove: true}}}))
			began := time.Now()
			for has := false; !has; {
				if time.Since(began) > time.Minute {
					b.Fatal("a peer that somebody removed is not back within a minute")
				}
				for _, p := range deviceOn(b, h, names[0]).Peers {
					has = has || p.PublicKey == key
				}
			}
			heals = append(heals, time.Since(began))
		}
		slices.Sort(heals)
		figure.Report(b, "heal-s", heals[2].Seconds()).AtMost(30)
	}
	figure.WithoutTime(b)
}
