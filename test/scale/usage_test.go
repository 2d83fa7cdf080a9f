package scale

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// program is a part that runs as a process.
type program struct {
	*testkit.Process
	b              *testing.B
	http, profiles string
	// run starts it, again after Kill.
	run func()
}

// usage is what a process uses.
type usage struct {
	heap, resident                 float64 // MiB; the heap after a collection
	goroutines, series, descriptor float64
	cpu                            time.Duration
}

// usage reads what the process uses, after a collection of garbage.
func (p *program) usage() (u usage, err error) {
	profile, err := testkit.Get(p.b.Context(), "http://"+p.profiles+"/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return u, err
	}
	u.heap = field(profile, "# HeapAlloc =") / (1 << 20)
	metrics, err := p.scrape()
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, "#") {
			u.series++
		}
	}
	u.goroutines = field(metrics, "go_goroutines")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return u, err
	}
	u.resident = field(string(status), "VmRSS:") / 1024
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	if err != nil {
		return u, err
	}
	u.descriptor = float64(len(open))
	u.cpu, err = p.cpu()
	return u, err
}

// cpu returns the processor time of the process.
func (p *program) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// scrape returns the metrics of the process.
func (p *program) scrape() (string, error) {
	return testkit.Get(p.b.Context(), "http://"+p.http+"/metrics")
}

// metric returns the sum of the series of a metric that have a text in common.
func (p *program) metric(name, with string) float64 {
	p.b.Helper()
	return testkit.Scraped(p.b, testkit.Value(p.scrape())(p.b), name, with)
}

// field returns the number after a name at the beginning of a line, 0 if there is none.
func field(text, name string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if fields := strings.Fields(rest); len(fields) > 0 {
				v, _ := strconv.ParseFloat(fields[0], 64)
				return v
			}
		}
	}
	return 0
}

// publicKey returns 32 bytes as a canonical Curve25519 key (RFC 7748, section 5), with the highest bit clear.
func publicKey(of string, i int) []byte {
	key := sha256.Sum256(fmt.Append(nil, of, " ", i))
	key[31] &= 0x7f
	return key[:]
}
