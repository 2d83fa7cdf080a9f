package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DevicePorts are the UDP ports of the nodes' devices.
type DevicePorts struct {
	// PortRange is the range from which the broker assigns a port to a RemoteCluster that names none: "FIRST-LAST".
	PortRange string `json:"portRange"`

	// First and Last are the parsed range.
	First, Last uint16 `json:"-"`
}

// defaultPortRange begins with defaultListenPort, and has a port for each of 256 remotes.
const defaultPortRange = "7775-8030"

// DefaultPorts returns the range without a configuration.
func DefaultPorts() (d DevicePorts) {
	d.complete(&problems{}, "")
	return d
}

func (d *DevicePorts) complete(p *problems, field string) {
	orDefault(&d.PortRange, defaultPortRange)
	first, last, _ := strings.Cut(d.PortRange, "-")
	from, err1 := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err1 != nil || err2 != nil || from == 0 || from > to {
		p.add(field+".portRange", "%q: use the first and the last UDP port, such as %q", d.PortRange, defaultPortRange)
		return
	}
	d.First, d.Last = uint16(from), uint16(to)
}

// WithRemotes returns a copy of the configuration that has remotes in place of its own ones, completed. The map lists
// the errors of each invalid remote, by name; it is empty if all are valid. Errors name the fields of a RemoteCluster.
func (c *Broker) WithRemotes(remotes []Remote) (*Broker, map[string][]string) {
	d := *c
	d.Remotes = slices.Clone(remotes)
	var p problems
	d.completeRemotes(&p)
	wrong := map[string][]string{}
	for _, err := range p {
		text := err.Error()
		last := len(remotes) - 1
		if m := remoteField.FindStringSubmatch(text); m != nil {
			last, _ = strconv.Atoi(m[1])
		}
		if last < 0 {
			continue
		}
		wrong[remotes[last].Name] = append(wrong[remotes[last].Name], d.inSpecs(text, last))
	}
	return &d, wrong
}

var (
	remoteField = regexp.MustCompile(`^remotes\[(\d+)\]`)
	anyField    = regexp.MustCompile(`remotes\[(\d+)\]\.`)
)

// inSpecs replaces the field names of the configuration file in text by those of RemoteClusters. at is the index of the
// remote that the text concerns.
func (c *Broker) inSpecs(text string, at int) string {
	text = anyField.ReplaceAllStringFunc(text, func(field string) string {
		i, _ := strconv.Atoi(anyField.FindStringSubmatch(field)[1])
		if i == at {
			return "spec."
		}
		return c.Remotes[i].Name + " spec."
	})
	return strings.Replace(text, "spec.name:", "metadata.name:", 1)
}

// Names returns the names of the remotes, sorted.
func (c *Broker) Names() []string {
	names := map[string]bool{}
	for _, r := range c.Remotes {
		names[r.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// FreePort returns the lowest port of the range that is not in taken; 0 if there is none.
func (d DevicePorts) FreePort(taken map[uint16]bool) uint16 {
	for port := int(d.First); port <= int(d.Last); port++ {
		if !taken[uint16(port)] {
			return uint16(port)
		}
	}
	return 0
}

// String returns a text such as "7775-7974".
func (d DevicePorts) String() string { return fmt.Sprintf("%d-%d", d.First, d.Last) }
