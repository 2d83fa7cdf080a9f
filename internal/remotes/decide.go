package remotes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

type Verdict struct {
	// InEffect is the object in effect under the name: the object itself, or an earlier state of it if the object is
	// not accepted.
	InEffect *Object
	// Reason and Message are those of the condition Accepted; it is true with finding.Accepted alone.
	Reason  finding.Code
	Message string
}

// Accepted reports whether the object is in effect as it is.
func (v Verdict) Accepted() bool { return v.Reason == finding.Accepted }

type Decision struct {
	// Broker is the configuration of the own cluster's broker with all remotes that are in effect and import something.
	Broker *config.Broker
	// InEffect has all objects in effect, by name. Their ListenPort and their SourceID are the ones to use.
	InEffect Objects
	// Verdicts has the verdict on each object, by name.
	Verdicts map[string]Verdict
}

// Bundles returns the root certificates of the objects in effect, PEM, by cluster.
func (d Decision) Bundles() map[string]string {
	bundles := map[string]string{}
	for name, o := range d.InEffect {
		if o.Spec.TrustBundle != "" {
			bundles[name] = o.Spec.TrustBundle
		}
	}
	return bundles
}

// Decide returns which objects are in effect; before are those that were. An object in effect precedes one that is not.
// Of those that are not, older ones come first. A change that is not accepted therefore affects nothing that works, and
// of two conflicting objects the newer one loses. ports are the ports that nodes publish for remotes.
func Decide(own *config.Broker, before, objects Objects, ports map[string]uint16) Decision {
	d := &decider{own: own, ports: ports, claimed: map[uint16]string{}, inEffect: Objects{},
		verdicts: map[string]Verdict{}, stored: map[string]int{}}
	all := objects.ByAge()
	for _, o := range slices.Backward(all) { // the older one has it
		d.claim(ports[o.Name], o.Name)
		d.claim(o.ListenPort, o.Name)
		if w := o.Spec.WireGuard; w != nil {
			d.claim(uint16(w.ListenPort), o.Name)
		}
	}
	// Objects in effect are judged like the others, because the own configuration may have changed.
	for _, o := range all {
		if was, ok := before[o.Name]; ok {
			if sameSpec(was.Spec, o.Spec) {
				o.ListenPort = cmp.Or(was.ListenPort, o.ListenPort)
				was = o
			}
			d.take(was)
		}
	}
	// Then the others, until none of them can be accepted: one may make room for another.
	pending := all
	for progress := true; progress; {
		progress = false
		pending = slices.DeleteFunc(slices.Clone(pending), func(o Object) bool {
			taken := d.take(o)
			progress = progress || taken
			return taken
		})
	}
	for _, o := range all {
		v := d.verdicts[o.Name]
		if is, ok := d.inEffect[o.Name]; ok {
			is.SourceID = cmp.Or(is.Spec.SourceID, before[o.Name].SourceID)
			d.inEffect[o.Name] = is
			v.InEffect = &is
		}
		d.verdicts[o.Name] = v
	}
	broker, _ := own.WithRemotes(d.remotes(d.inEffect))
	return Decision{Broker: broker, InEffect: d.inEffect, Verdicts: d.verdicts}
}

type decider struct {
	own   *config.Broker
	ports map[string]uint16
	// claimed has the ports that objects name or use, and that are not free for others.
	claimed  map[uint16]string
	inEffect Objects
	verdicts map[string]Verdict
	// stored has the size of each object in effect in the ConfigMap.
	stored map[string]int
}

// MaxEncrypted is the number of remotes with encryption: deploy/broker/node-writes.yaml allows three annotations of
// each node for each. MaxStored bounds the size of all objects in effect in bytes, which are one key of a ConfigMap: an
// apiserver accepts 1 MiB.
const MaxEncrypted, MaxStored = 256, 1_000_000

// room reports why an object does not fit beside so many others, and notes its size.
func (d *decider) room(o Object, others Objects) (problem string) {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	size, encrypted := len(text), 0
	for name, other := range others {
		size += d.stored[name]
		if imports(other.Spec) {
			encrypted++
		}
	}
	if imports(o.Spec) && d.own.Features.Has(config.Encryption) && encrypted >= MaxEncrypted {
		return fmt.Sprintf("%d RemoteClusters are in effect, as many as the annotations of a node have room for: delete "+
			"one that is not needed", encrypted)
	}
	if size > MaxStored {
		return fmt.Sprintf("the RemoteClusters in effect would have %d bytes with it, and %d fit into the ConfigMap in "+
			"which they are kept: make trustBundle or export shorter, or delete one that is not needed", size, MaxStored)
	}
	d.stored[o.Name] = len(text)
	return ""
}

func (d *decider) claim(port uint16, name string) {
	if port != 0 {
		d.claimed[port] = name
	}
}

// take puts an object into effect if it fits beside the others, and reports whether it does.
func (d *decider) take(o Object) bool {
	was, had := d.inEffect[o.Name]
	if had && sameSpec(was.Spec, o.Spec) {
		d.verdicts[o.Name] = accepted
		return true
	}
	others := maps.Clone(d.inEffect)
	delete(others, o.Name)
	o.ListenPort = cmp.Or(was.ListenPort, o.ListenPort)
	reason, message := d.judge(&o, others)
	if reason == finding.Accepted {
		if problem := d.room(o, others); problem != "" {
			reason, message = finding.TooManyRemotes, problem
		}
	}
	if reason != finding.Accepted {
		if had {
			message += "; the spec of generation " + fmt.Sprint(was.Generation) + " stays in effect"
		}
		d.verdicts[o.Name] = Verdict{Reason: reason, Message: message}
		return false
	}
	d.inEffect[o.Name] = o
	d.verdicts[o.Name] = accepted
	return true
}

var accepted = Verdict{Reason: finding.Accepted, Message: "the spec is in effect"}

// judge reports whether an object fits beside others, and assigns it a port.
func (d *decider) judge(o *Object, others Objects) (reason finding.Code, message string) {
	if o.Name == d.own.Cluster {
		return finding.OwnCluster, fmt.Sprintf("metadata.name: %q is this cluster itself: delete the object", o.Name)
	}
	_, remoteErr := remoteOf(o.Name, &o.Spec)
	_, rulesErr := ExportRules(&o.Spec)
	if err := cmp.Or(remoteErr, rulesErr, checkBundle(o.Spec.TrustBundle)); err != nil {
		return finding.InvalidSpec, err.Error()
	}
	if !imports(o.Spec) {
		o.ListenPort = 0
		return finding.Accepted, ""
	}
	if reason, message := d.port(o, others); reason != "" {
		return reason, message
	}
	_, wrong := d.own.WithRemotes(append(d.remotes(others), d.remotes(Objects{o.Name: *o})...))
	texts := wrong[o.Name]
	for _, other := range slices.Sorted(maps.Keys(wrong)) { // faults of others do not count against this one
		if other != o.Name {
			for _, text := range wrong[other] {
				texts = append(texts, "beside it, "+other+" "+text)
			}
		}
	}
	if len(texts) > 0 {
		return reasonOf(texts[0]), strings.Join(texts, "; ")
	}
	return finding.Accepted, ""
}

func imports(spec v1alpha1.RemoteClusterSpec) bool { return len(spec.PodSubnets) > 0 }

// port assigns an object the port of its spec, else its present one, else the one that nodes publish for it, else a
// free one.
func (d *decider) port(o *Object, others Objects) (reason finding.Code, message string) {
	taken := map[uint16]bool{}
	for _, other := range others {
		if other.ListenPort != 0 {
			taken[other.ListenPort] = true
		}
	}
	if w := o.Spec.WireGuard; w != nil && w.ListenPort != 0 {
		o.ListenPort = uint16(w.ListenPort)
		return "", "" // a conflict with another's is found with the rest
	}
	if o.ListenPort != 0 && !taken[o.ListenPort] {
		return "", ""
	}
	if port := d.ports[o.Name]; port != 0 && !taken[port] {
		o.ListenPort = port
		return "", ""
	}
	for port, name := range d.claimed {
		taken[port] = taken[port] || name != o.Name
	}
	if o.ListenPort = d.own.WireGuard.FreePort(taken); o.ListenPort == 0 {
		return finding.NoFreePort, fmt.Sprintf("no UDP port is free: widen wireguard.portRange (%s) of the broker's "+
			"configuration", d.own.WireGuard)
	}
	return "", ""
}

// remotes returns the objects that import something, in the form of a broker's configuration, oldest first.
func (d *decider) remotes(of Objects) []config.Remote {
	var all []config.Remote
	for _, o := range of.ByAge() {
		if !imports(o.Spec) {
			continue
		}
		r, _ := remoteOf(o.Name, &o.Spec) // the configuration in effect was judged
		r.WireGuard.ListenPort = o.ListenPort
		all = append(all, r)
	}
	return all
}

// reasonOf returns the reason for the field that a text begins with.
func reasonOf(text string) finding.Code {
	switch field, _, _ := strings.Cut(text, ":"); {
	case strings.Contains(field, "spec.podSubnets"), strings.Contains(field, "spec.nodeSubnets"):
		return finding.SubnetsOverlap
	case strings.Contains(field, "spec.servicePrefix"):
		return finding.PrefixConflict
	case strings.Contains(field, "spec.wireguard.listenPort"):
		return finding.PortConflict
	}
	return finding.InvalidSpec
}
