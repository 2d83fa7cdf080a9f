package agent

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// damage is one way in which something that an agent reads at its start is not as it was.
type damage struct {
	name string
	do   func()
	// ends means that the agent ends with an error: its own configuration cannot be used.
	ends bool
}

// wholly returns damages of a complete file.
func wholly(t *testing.T, path string) []damage {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	write := func(data string) func() { return func() { must(t, os.WriteFile(path, []byte(data), 0o600)) } }
	name := filepath.Base(path)
	return []damage{
		{name: name + " is missing", do: func() { must(t, os.Remove(path)) }},
		{name: name + " is empty", do: write("")},
		{name: name + " is cut", do: write(string(content[:len(content)/2]))},
		{name: name + " is cut at its last byte", do: write(string(content[:len(content)-1]))},
		{name: name + " is no text", do: write("\x00\xff\x00: [")},
		{name: name + " is a list", do: write("[1, 2]\n")},
		{name: name + " is a directory", do: func() {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o700))
		}},
	}
}

// values returns damages of a file that replace one value each, of a key or in a list, by each of three others; in make
// test by one of them, in turns.
func values(t *testing.T, path string) (all []damage) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	var file any
	must(t, yaml.Unmarshal(content, &file))
	places := 0
	var walk func(at string, value any, set func(any))
	walk = func(at string, value any, set func(any)) {
		places++
		for i, bad := range []any{nil, "x", []any{map[string]any{"a": 1}}} {
			if !tier.All() && i != places%3 {
				continue
			}
			all = append(all, damage{name: fmt.Sprintf("%s: %s is %v", filepath.Base(path), at, bad), do: func() {
				set(bad)
				text, err := yaml.Marshal(file)
				set(value)
				must(t, err)
				must(t, os.WriteFile(path, text, 0o600))
			}})
		}
		switch value := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				walk(at+"."+key, value[key], func(bad any) { value[key] = bad })
			}
		case []any:
			for i := range value {
				walk(fmt.Sprintf("%s[%d]", at, i), value[i], func(bad any) { value[i] = bad })
			}
		}
	}
	top := file.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(top)) {
		walk(key, top[key], func(bad any) { top[key] = bad })
	}
	return all
}

// sentTo sends 40 packets to pods of c2 and c3, and returns how many of them the router has seen. Another packet, which
// the router itself receives, shows that it has seen all.
func sentTo(t *testing.T, r *remote) (seen int) {
	t.Helper()
	var router *net.UDPConn
	must(t, r.Do(func() (err error) {
		router, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 9})
		return err
	}))
	defer router.Close()
	wire, err := capture.Start(r.Namespace, "eth0")
	must(t, err)
	send := func(to string) {
		if c, err := net.Dial("udp", to+":9"); err == nil {
			_, _ = c.Write([]byte("secret"))
			c.Close()
		}
	}
	for range 10 {
		for _, to := range []string{"10.2.1.1", "10.2.200.7", "10.3.1.1", "10.3.200.7"} {
			send(to)
		}
	}
	send("192.0.2.2")
	_, err = router.Read(make([]byte, 10))
	must(t, err)
	packets, err := wire.Stop()
	must(t, err)
	for _, p := range packets {
		if len(p.Data) >= 34 && binary.BigEndian.Uint16(p.Data[12:]) == unix.ETH_P_IP &&
			netip.MustParsePrefix("10.2.0.0/15").Contains(netip.AddrFrom4([4]byte(p.Data[30:34]))) {
			seen++
		}
	}
	return seen
}

// boots removes what a boot removes.
func boots() {
	for _, command := range []string{"ip link del wireguard.c2", "ip link del wireguard.c3",
		"nft delete table inet semaphore", "ip route flush table 7394"} {
		words := strings.Fields(command)
		_ = exec.Command(words[0], words[1:]...).Run() // there may be none
	}
}

// filesOf returns the content of all files in a directory, and write writes them again.
func filesOf(t *testing.T, dirs ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			files[path], err = os.ReadFile(path)
			return err
		}))
	}
	return files
}

func write(t *testing.T, files map[string][]byte) {
	t.Helper()
	for path, data := range files {
		must(t, os.RemoveAll(path))
		must(t, os.WriteFile(path, data, 0o600))
	}
}

// entry returns a remote of the file that the exporter writes.
func entry(name string, port int, subnets ...string) string {
	return fmt.Sprintf("- {name: %s, podSubnets: [%s], nodeSubnets: [192.0.2.2/32], encryption: strict, "+
		"wireguard: {listenPort: %d}}\n", name, strings.Join(subnets, ", "), port)
}

// TestDamagedInputs: a node boots without a broker, and its agent starts, while one of the things that it reads is
// damaged. No packet to a remote leaves in the clear from when the agent answers, and the agent runs on. If its own
// configuration cannot be used it ends, but not before the guard is set.
func TestDamagedInputs(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2", "c3")
		r := newRemote(t)
		ip(t, "route add default via 192.0.2.2")
		dir := t.TempDir()
		own, beside, own2 := filepath.Join(dir, "broker.yaml"), filepath.Join(dir, bounds.RemotesFile),
			filepath.Join(dir, "config.yaml")
		const good = "features: [encryption]\nencryption: strict\nlocalSubnets: [10.1.0.0/16, 10.101.0.0/16]\n"
		put := func(path, text string) { must(t, os.WriteFile(path, []byte(text), 0o600)) }
		put(own, good)
		put(beside, "remotes:\n"+entry("c2", 51820, "10.2.0.0/16")+entry("c3", 51821, "10.3.0.0/16"))
		cfg.SubnetsFile = own
		text := strings.Replace(string(configOf(cfg)), "subnetsFile: none\nlocalSubnets: [172.16.0.0/12]\nallowedSubnets: "+
			"[10.0.0.0/8]\n", "subnetsFile: "+own+"\n", 1)
		put(own2, text)
		removeAtEnd(t, "wireguard.c2", "wireguard.c3")
		said := filepath.Join(t.TempDir(), "log") // of the agent that was started last
		start := func() *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			log := testkit.Value(os.Create(said))(t)
			defer log.Close()
			cmd.Stderr = log
			cmd.Args = cmd.Args[:1]
			cmd.Env = append(os.Environ(), asAgent+"="+own2)
			must(t, cmd.Start())
			return cmd
		}
		// end kills an agent. A process that it has just forked has its ports until it executes another program.
		end := func(agent *exec.Cmd, wait func() error) {
			must(t, agent.Process.Kill())
			_ = wait()
			eventually(t, "its ports are free", func() bool {
				web, err := net.Listen("tcp", cfg.Listen.HTTP)
				if err == nil {
					web.Close()
				}
				probes, errProbes := net.ListenPacket("udp", cfg.Listen.Probe)
				if errProbes == nil {
					probes.Close()
				}
				return err == nil && errProbes == nil
			})
		}
		first := start()
		b.program(t, deviceOf("c2", 51820, "10.2.0.0/16"), peerOf("c2", "n1", publicKey(1), "192.0.2.2:51820", "10.2.1.0/24"),
			deviceOf("c3", 51821, "10.3.0.0/16"))
		eventually(t, "the agent has saved it", func() bool {
			data, err := os.ReadFile(cfg.StateFile)
			return err == nil && strings.Contains(string(data), "192.0.2.2:51820") &&
				strings.Contains(string(data), `"10.3.0.0/16"`)
		})
		end(first, first.Wait)
		b.stop()
		saved := filesOf(t, dir, cfg.WGKeyPath, filepath.Dir(cfg.Broker.TokenFile))
		if boots(); sentTo(t, r) != 40 {
			t.Fatal("after a boot not all packets are seen: this test would see nothing")
		}

		remotes := func(name, text string) damage {
			return damage{name: name, do: func() { put(beside, "remotes:\n"+text) }}
		}
		c2, c3 := entry("c2", 51820, "10.2.0.0/16"), entry("c3", 51821, "10.3.0.0/16")
		all := []damage{
			{name: "nothing is damaged", do: func() {}},
			remotes("c2 overlaps the own cluster", entry("c2", 51820, "10.1.0.0/24")+c3),
			remotes("c2 also overlaps the own cluster", entry("c2", 51820, "10.2.0.0/16", "10.1.0.0/24")+c3),
			remotes("c2 overlaps c3", entry("c2", 51820, "10.2.0.0/16", "10.3.7.0/24")+c3),
			remotes("c3 overlaps c2", c2+entry("c3", 51821, "10.2.7.0/24")),
			remotes("two have one port", c2+entry("c3", 51820, "10.3.0.0/16")),
			remotes("two have one name", c2+entry("c2", 51821, "10.3.0.0/16")),
			remotes("another with the subnets of both comes first", entry("c4", 51822, "10.2.0.0/16", "10.3.0.0/16")+c2+c3),
			{name: "localSubnets overlap all", do: func() { put(own, "localSubnets: [10.0.0.0/8]\n") }},
			{name: "a key twice", do: func() { put(own, good+"localSubnets: [10.1.0.0/16]\n") }},
			{name: "two documents", do: func() { put(beside, "remotes: []\n---\nremotes: []\n") }},
			{name: "others can write the state file", do: func() { must(t, os.Chmod(cfg.StateFile, 0o666)) }},
		}
		for _, path := range []string{own, beside} {
			all = append(append(all, wholly(t, path)...), values(t, path)...)
		}
		for _, path := range []string{cfg.StateFile, filepath.Join(cfg.WGKeyPath, "wireguard.c2.key"), cfg.Broker.TokenFile,
			cfg.Broker.BundleFile} {
			all = append(all, wholly(t, path)...)
		}
		all = append(all, damage{name: "config.yaml has an unknown key", ends: true,
			do: func() { put(own2, text+"noSuchKey: 1\n") }},
			damage{name: "config.yaml has an invalid value", ends: true,
				do: func() { put(own2, text+"peerMetricsFrom: [x]\n") }})
		starts := 0
		for _, d := range all {
			write(t, saved)
			boots()
			d.do()
			agent := start()
			ended := make(chan error, 1)
			go func() { ended <- agent.Wait() }()
			var err error
			over := false
			eventually(t, d.name+": the agent answers or ends", func() bool {
				select {
				case err = <-ended:
					over = true
				default:
				}
				code, _ := fetch("healthz")
				return over || code == 200
			})
			if over != d.ends {
				t.Errorf("%s: the agent has ended: %t, with %v", d.name, over, err)
				t.Logf("%s", testkit.Value(os.ReadFile(said))(t))
			}
			if leaked := sentTo(t, r); leaked != 0 {
				t.Errorf("%s: %d of 40 packets have left in the clear", d.name, leaked)
			}
			if !over {
				end(agent, func() error { return <-ended })
			}
			starts++
		}
		t.Logf("%d starts", starts)
	})
}
