package verify

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// LoadPort is where the server takes part in measurements.
const LoadPort = 8081

// Measurement is one that a pod makes of its path to another.
type Measurement struct {
	Name Name
	// Streams carry the load, and with Latency the load beside it; 0 is none.
	Streams int
	// Rate limits the load beside Latency in bytes per second; 0 is no limit.
	Rate  float64
	While time.Duration
}

const (
	Bandwidth Name = "bandwidth"
	Latency   Name = "latency"
	Requests  Name = "requests"
)

// Measured is the result of a measurement; the fields of the others are 0.
type Measured struct {
	Streams           int     `json:"streams"`
	BytesPerSecond    float64 `json:"bytesPerSecond,omitempty"`
	RequestsPerSecond float64 `json:"requestsPerSecond,omitempty"`
	// P50 and P99 are the median and the 99th percentile of the time there and back, in seconds.
	P50   float64 `json:"p50,omitempty"`
	P99   float64 `json:"p99,omitempty"`
	Error string  `json:"error,omitempty"`
}

func Measure(ctx context.Context, path Path, m Measurement) Measured {
	var err error
	out := Measured{Streams: m.Streams}
	switch m.Name {
	case Bandwidth:
		out.BytesPerSecond, err = path.Bandwidth(ctx, m.Streams, m.While, m.Rate)
	case Requests:
		out.RequestsPerSecond, err = path.Requests(ctx, m.Streams, m.While)
	case Latency:
		var times []time.Duration
		var g errgroup.Group
		g.Go(func() (err error) {
			times, err = path.Latency(ctx, m.While)
			return err
		})
		if m.Streams > 0 {
			g.Go(func() (err error) {
				out.BytesPerSecond, err = path.Bandwidth(ctx, m.Streams, m.While, m.Rate)
				return err
			})
		}
		if err = g.Wait(); err == nil {
			slices.Sort(times)
			out.P50, out.P99 = times[len(times)/2].Seconds(), times[(len(times)*99+99)/100-1].Seconds()
		}
	default:
		err = fmt.Errorf("%q is no measurement", m.Name)
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// measurements are those of --bench, in the order in which each pair of clusters makes them.
var measurements = []Measurement{
	{Name: Bandwidth, Streams: 1, While: measureFor}, {Name: Bandwidth, Streams: 16, While: measureFor},
	{Name: Latency, While: measureFor}, {Name: Latency, Streams: 1, While: measureFor},
	{Name: Requests, Streams: 16, While: measureFor},
}

const measureFor = 2 * time.Second

// measure measures each way whose pods reach each other, and in each cluster the path between its own pods, which no
// tunnel carries. One follows the other.
func (v *verifier) measure(ctx context.Context, ways []*way) (out []Check, err error) {
	var paths []*way
	for _, c := range v.clusters {
		paths = append(paths, &way{from: c, to: c})
	}
	for _, w := range ways {
		if w.checks[PodIP].Result == Passed {
			paths = append(paths, w)
		}
	}
	var nodes []string
	for _, c := range v.clusters {
		for _, name := range []string{verifyClient, verifyServer} {
			nodes = append(nodes, c.name+"/"+c.pods[name].Node)
		}
	}
	slices.Sort(nodes)
	v.progress.say("measuring for %s: all that %s and the links between them carry; "+
		"other traffic there is slower meanwhile",
		time.Duration(len(paths)*len(measurements))*measureFor, strings.Join(slices.Compact(nodes), ", "))
	for _, w := range paths {
		checks, err := v.measurePath(ctx, w)
		if err != nil {
			return nil, err
		}
		out = append(out, checks...)
	}
	return out, nil
}

func (v *verifier) measurePath(ctx context.Context, w *way) (out []Check, err error) {
	client, server := w.from.pods[verifyClient], w.to.pods[verifyServer]
	ip, _ := sharedIP(client, server)
	made := map[Name][]Measured{}
	took := map[Name]float64{}
	for _, m := range measurements {
		one, err := w.from.measure(ctx, v.namespace, netip.AddrPortFrom(ip, LoadPort), m)
		if err != nil {
			return nil, fmt.Errorf("%w; semaphorectl and the image of the pods must be of the same version (--image)", err)
		}
		made[m.Name], took[m.Name] = append(made[m.Name], one), took[m.Name]+m.While.Seconds()
		if one.Error != "" {
			break
		}
	}
	for _, name := range []Name{Bandwidth, Latency, Requests} {
		c := Check{From: w.from.name, To: w.to.name, Name: name, Seconds: took[name]}
		c = JudgeMeasured(c, client, server, made[name])
		v.progress.say("%s → %s: %s %s", c.From, c.To, c.Name, c.Result)
		out = append(out, c)
	}
	return out, nil
}

// JudgeMeasured returns the check with its measured values. Nothing is measured after a measurement that failed.
func JudgeMeasured(c Check, client, server Pod, all []Measured) Check {
	if len(all) == 0 {
		return c.Skip("a measurement before it failed")
	}
	path, said := fmt.Sprintf("%s to %s", client.Node, server.Node), []string(nil)
	if c.From == c.To {
		path += ", without a tunnel"
	}
	for _, m := range all {
		switch {
		case m.Error != "":
			return c.failed(finding.PodUnreachable, fmt.Sprintf("policies and firewalls in %s: they must pass TCP port %d, "+
				"beside %d; --image: the same version in all clusters", c.To, LoadPort, Port), "%s: %s", path, m.Error)
		case c.Name == Bandwidth:
			said = append(said, fmt.Sprintf("%.2f Gbit/s with %s", 8*m.BytesPerSecond/1e9,
				show.Number(uint64(m.Streams), "stream", "streams")))
		case c.Name == Requests:
			said = append(said, fmt.Sprintf("%.0f a second, each on a new connection, from %d clients", m.RequestsPerSecond,
				m.Streams))
		case m.Streams == 0:
			said = append(said, fmt.Sprintf("idle p50 %.2f, p99 %.2f ms", 1000*m.P50, 1000*m.P99))
		default:
			said = append(said, fmt.Sprintf("beside %.2f Gbit/s p50 %.2f, p99 %.2f ms", 8*m.BytesPerSecond/1e9, 1000*m.P50,
				1000*m.P99))
		}
	}
	c.Measured = all
	return c.passed("%s: %s", path, strings.Join(said, "; "))
}
