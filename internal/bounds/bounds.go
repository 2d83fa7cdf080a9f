// Package bounds has the subnets that agents read of the own cluster and of the remotes, from files that bound what a
// broker may order: the operator's, and the exporter's list of what RemoteClusters say.
//
// It is pure: who reads a file passes how.
package bounds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// RemotesFile is the file, beside the broker's, that lists the remotes if they come from RemoteClusters. The exporter
// writes it to a ConfigMap of the name RemotesIn, which kubelets give to the agents.
const (
	RemotesFile = "remotes.yaml"
	RemotesIn   = "semaphore-remotes"
)

// Subnets are what an agent reads from the broker's configuration file. They bound the broker's orders, so they must
// come from the operator and not from the broker.
type Subnets struct {
	// Local are the pod, service and node subnets of the own cluster.
	Local []netip.Prefix
	// Remotes are the clusters with encryption, by name. No two of them conflict.
	Remotes map[string]config.Remote
	// Blocked are remotes that the file names in a form that cannot be used, and of which no earlier form is known. They
	// have the PodPrefixes that conflict with nothing: no packet to them is sent in the clear, and none into a tunnel.
	Blocked map[string]config.Remote
	// Unnamed is true if no file lists remotes.
	Unnamed bool
	// Known is false until all of it was readable once. It is then not known what to guard.
	Known bool
	// Problems are the unusable parts of the files, and their replacements.
	Problems []string
}

// LoadSubnets reads the configuration file of a cluster's broker for its agents. It ignores unknown keys, which belong
// to a broker of another version. It judges each element for itself: in place of one that cannot be used it takes the
// form that the element has in before, the last result; nil for none. read is volume.ReadFile.
func LoadSubnets(read func(path string) ([]byte, error), path, cluster string, before *Subnets) *Subnets {
	var own, beside subnetsText
	own.data, own.err = read(path)
	beside.data, beside.err = read(filepath.Join(filepath.Dir(path), RemotesFile))
	s := readSubnets(own, beside, cluster, before)
	for i, problem := range s.Problems {
		s.Problems[i] = fmt.Sprintf("subnetsFile %s: %s", path, problem)
	}
	return s
}

// RemotesText returns the content of a RemotesFile. It has what agents read of a remote.
func RemotesText(remotes []config.Remote) string {
	file := struct {
		Remotes []remoteEntry `json:"remotes"`
	}{[]remoteEntry{}}
	for _, r := range remotes {
		file.Remotes = append(file.Remotes, entryOf(r))
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		panic(err) // texts and numbers always have a YAML
	}
	return string(text)
}

// ReadRemotes returns the remotes of a RemotesText, without those that cannot be decoded.
func ReadRemotes(text []byte) (all []config.Remote) {
	r := &subnetsReader{before: &Subnets{}, out: &Subnets{}}
	list, _ := r.beside(subnetsText{data: text})
	for _, e := range list {
		if e.undecoded == nil {
			all = append(all, e.remote())
		}
	}
	return all
}

// JudgeRemotes returns those remotes that the agents of the own cluster can use beside each other, by the rules with
// which they read a RemotesFile. In place of a remote that they cannot use it returns its form in before, if there is
// one. wrong says so, a line each.
func JudgeRemotes(own *config.Broker, now, before []config.Remote) (use []config.Remote, wrong []string) {
	earlier, used := map[string]config.Remote{}, map[string]config.Remote{}
	if _, bad := own.WithRemotes(before); len(bad) == 0 {
		for _, r := range before {
			earlier[r.Name] = r
		}
	}
	var list []listed
	for _, r := range now {
		list = append(list, listed{remoteEntry: entryOf(r)})
		if was, had := earlier[r.Name]; had {
			used[r.Name] = was
		}
	}
	left, why := settle(own, list, used)
	for _, e := range left {
		wrong = append(wrong, fmt.Sprintf("agents do not get the RemoteCluster %s as it is: %v", e.Name, why[e.Name]))
	}
	for _, r := range now {
		switch was, had := earlier[r.Name]; {
		case !slices.ContainsFunc(left, func(e listed) bool { return e.Name == r.Name }):
			use = append(use, r)
		case had:
			use = append(use, was)
		}
	}
	return use, wrong
}

// Judge returns the configuration with which RemoteClusters are judged: the own cluster's part of the broker's file,
// else of before, a Judge of earlier; nil for none. read is volume.ReadFile.
func Judge(c *config.Exporter, read func(path string) ([]byte, error), before *config.Broker) *config.Broker {
	is := &config.Broker{Cluster: c.Cluster, Features: c.Features, Encryption: config.Strict, WireGuard: c.WireGuard}
	known := &Subnets{}
	if before != nil {
		known.Local, known.Known = before.LocalPrefixes, true
		is.MCS, is.Encryption, is.LocalPrefixes = before.MCS, before.Encryption, before.LocalPrefixes
	}
	if c.SubnetsFile == config.NoSubnets {
		return is
	}
	var file subnetsText
	file.data, file.err = read(c.SubnetsFile)
	keys, err := file.keys()
	if err != nil { // agents and the broker report it
		return is
	}
	r := &subnetsReader{cluster: c.Cluster, before: known, out: &Subnets{}}
	r.settings(keys, true)
	r.local(keys, true)
	is.Encryption, is.LocalPrefixes = r.encryption, r.out.Local
	_ = config.DecodeKey(keys, "mcs", &is.MCS)
	return is
}

// subnetsText is the content of a file, or why it cannot be read.
type subnetsText struct {
	data []byte
	err  error
}

func (t subnetsText) keys() (map[string]json.RawMessage, error) {
	if t.err != nil {
		return nil, t.err
	}
	return config.Keys(t.data)
}

// remoteEntry is a remote in a file, as an agent reads it. It has only the fields that the agent needs: an invalid
// limit or label elsewhere must not leave a node without bounds.
type remoteEntry struct {
	Name          string            `json:"name"`
	ServicePrefix string            `json:"servicePrefix,omitempty"`
	PodSubnets    []string          `json:"podSubnets"`
	NodeSubnets   []string          `json:"nodeSubnets,omitempty"`
	Encryption    config.Strictness `json:"encryption,omitempty"`
	WireGuard     struct {
		ListenPort uint16 `json:"listenPort,omitempty"`
	} `json:"wireguard"`
}

func (e remoteEntry) remote() config.Remote {
	return config.Remote{Name: e.Name, ServicePrefix: e.ServicePrefix, PodSubnets: e.PodSubnets,
		NodeSubnets: e.NodeSubnets, Encryption: e.Encryption, WireGuard: config.WireGuard{ListenPort: e.WireGuard.ListenPort}}
}

func entryOf(r config.Remote) (e remoteEntry) {
	e.Name, e.ServicePrefix, e.PodSubnets, e.NodeSubnets = r.Name, r.ServicePrefix, r.PodSubnets, r.NodeSubnets
	e.Encryption, e.WireGuard.ListenPort = r.Encryption, r.WireGuard.ListenPort
	return e
}

// Text returns the subnets in the form of both files together, for ReadText of a later agent.
func (s *Subnets) Text() string {
	file := struct {
		Features     config.Features `json:"features"`
		LocalSubnets []string        `json:"localSubnets,omitempty"`
		Remotes      []remoteEntry   `json:"remotes,omitempty"`
	}{Features: config.Features{config.Encryption}}
	for _, p := range s.Local {
		file.LocalSubnets = append(file.LocalSubnets, p.String())
	}
	for _, name := range slices.Sorted(maps.Keys(s.Remotes)) {
		file.Remotes = append(file.Remotes, entryOf(s.Remotes[name]))
	}
	text, err := json.Marshal(file)
	if err != nil {
		panic(err) // texts and numbers always have a JSON
	}
	return string(text)
}

// ReadText returns the subnets of a Text; nil for none.
func ReadText(text, cluster string) *Subnets {
	if text == "" {
		return nil
	}
	own, beside := subnetsText{data: []byte(text)}, subnetsText{err: fs.ErrNotExist}
	if keys, _ := own.keys(); keys["remotes"] != nil {
		beside = own
	}
	s := readSubnets(own, beside, cluster, nil)
	if !s.Known {
		return nil
	}
	return s
}

func readSubnets(own, beside subnetsText, cluster string, before *Subnets) *Subnets {
	if before == nil {
		before = &Subnets{}
	}
	r := &subnetsReader{cluster: cluster, before: before,
		out: &Subnets{Remotes: map[string]config.Remote{}, Blocked: map[string]config.Remote{}}}
	r.read(own, beside)
	return r.out
}

// named reports whether a file listed remotes.
func (s *Subnets) named() bool { return s.Known && !s.Unnamed }

// subnetsReader reads files, which may be unusable in parts.
type subnetsReader struct {
	cluster string
	before  *Subnets
	out     *Subnets
	// features and encryption are those of the broker's file; undecided means that the latter cannot be used.
	features   config.Features
	encryption config.Strictness
	undecided  bool
}

// problem adds a line about an element, with its replacement.
func (r *subnetsReader) problem(err error) {
	instead := "the earlier form remains in use"
	if !r.before.Known {
		instead = "no earlier form is known"
	}
	r.line("%v; %s", err, instead)
}

func (r *subnetsReader) line(format string, args ...any) {
	r.out.Problems = append(r.out.Problems, fmt.Sprintf(format, args...))
}

func (r *subnetsReader) read(own, beside subnetsText) {
	out, before := r.out, r.before
	keys, err := own.keys()
	if err != nil {
		r.problem(err)
	}
	r.settings(keys, err == nil)
	r.local(keys, err == nil)
	var list []listed
	unread := false
	if errors.Is(beside.err, fs.ErrNotExist) {
		// A lost ConfigMap is no operator's order.
		if out.Unnamed = err == nil && !before.named(); !out.Unnamed {
			unread = true
			r.problem(fmt.Errorf("the file %s beside it is missing", RemotesFile))
		}
	} else {
		list, unread = r.beside(beside)
	}
	out.Known = before.Known || len(out.Local) > 0 && !unread
	switch {
	case !r.features.Has(config.Encryption):
	case unread:
		maps.Copy(out.Remotes, before.Remotes)
		out.Unnamed = before.Known && before.Unnamed
	default:
		r.judge(list)
	}
}

// settings reads what applies to all remotes. A value that cannot be used is replaced by the one that protects most.
func (r *subnetsReader) settings(keys map[string]json.RawMessage, readable bool) {
	var wrong []error
	if err := config.DecodeKey(keys, "features", &r.features); err != nil {
		wrong, r.features = append(wrong, err), nil
	}
	if bad := r.features.Complete("features"); len(bad) > 0 {
		wrong, r.features = append(wrong, bad...), nil
		_ = r.features.Complete("features")
	}
	had := len(wrong)
	r.encryption = config.Strict
	if err := config.DecodeKey(keys, "encryption", &r.encryption); err != nil {
		wrong = append(wrong, err)
	} else if err := r.encryption.Check("encryption"); err != nil {
		wrong = append(wrong, err)
	}
	if r.undecided = len(wrong) > had || !readable; r.undecided {
		r.encryption = config.Strict
	}
	for _, err := range wrong {
		r.problem(err)
	}
}

func (r *subnetsReader) local(keys map[string]json.RawMessage, readable bool) {
	var list []json.RawMessage
	var wrong []error
	add := func(field, format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if err := config.DecodeKey(keys, "localSubnets", &list); err != nil {
		wrong = append(wrong, err)
	} else if readable && len(list) == 0 {
		add("localSubnets", "none: name the pod, service and node subnets of this cluster")
	}
	for i, raw := range list {
		field := fmt.Sprintf("localSubnets[%d]", i)
		var text string
		if _, err := strictjson.UnmarshalStrict(raw, &text); err != nil {
			add(field, "%s is no text", raw)
			continue
		}
		prefixes, bad := config.ParsePrefixes(field, []string{text})
		wrong = append(wrong, bad...)
		for _, prefix := range prefixes {
			if name := r.stands(prefix); name != "" && !slices.Contains(r.before.Local, prefix) {
				add(field, "%s overlaps podSubnets of the remote %s, which are in use", prefix, name)
				continue
			}
			r.out.Local = append(r.out.Local, prefix)
		}
	}
	for _, err := range wrong {
		r.problem(err)
	}
	if len(wrong) == 0 && readable {
		return
	}
	for _, was := range r.before.Local {
		if !slices.Contains(r.out.Local, was) {
			r.out.Local = append(r.out.Local, was)
		}
	}
}

// stands returns the remote that has an address of a prefix in its earlier form; empty for none.
func (r *subnetsReader) stands(prefix netip.Prefix) string {
	for _, name := range slices.Sorted(maps.Keys(r.before.Remotes)) {
		if overlapsAny(prefix, r.before.Remotes[name].PodPrefixes) {
			return name
		}
	}
	return ""
}

func overlapsAny(prefix netip.Prefix, others []netip.Prefix) bool {
	return slices.ContainsFunc(others, prefix.Overlaps)
}

// listed is an element of a list of remotes, and why it could not be decoded, if so.
type listed struct {
	remoteEntry
	undecoded error
}

// beside reads the list of the file beside the broker's.
func (r *subnetsReader) beside(t subnetsText) (all []listed, unread bool) {
	keys, err := t.keys()
	if err == nil && keys["remotes"] == nil {
		err = errors.New("remotes: none: the file has no such key")
	}
	if err != nil {
		r.problem(fmt.Errorf("%s: %w", RemotesFile, err))
		return nil, true
	}
	return r.list(keys["remotes"])
}

// list decodes a list of remotes, one by one. It omits those without a name.
func (r *subnetsReader) list(raw json.RawMessage) (all []listed, unread bool) {
	var list []json.RawMessage
	if _, err := strictjson.UnmarshalStrict(raw, &list); err != nil {
		r.problem(fmt.Errorf("%s: remotes: no list", RemotesFile))
		return nil, true
	}
	seen := map[string]bool{}
	for i, raw := range list {
		e := decodeEntry(raw)
		err := config.ClusterName(e.Name)
		if err == nil && seen[e.Name] {
			err = fmt.Errorf("%q is listed twice, and the first one is used", e.Name)
		}
		if err != nil {
			r.line("%s: remotes[%d].name: %v; nothing of the element is used", RemotesFile, i, err)
			continue
		}
		seen[e.Name] = true
		all = append(all, e)
	}
	return all, len(all) == 0 && len(list) > 0
}

// decodeEntry decodes an element, or as much of it as can be.
func decodeEntry(raw json.RawMessage) (e listed) {
	if _, err := strictjson.UnmarshalStrict(raw, &e.remoteEntry); err == nil {
		return e
	} else {
		e = listed{undecoded: config.ExplainType(err)}
	}
	keys := map[string]json.RawMessage{}
	if json.Unmarshal(raw, &keys) != nil {
		return e
	}
	_ = config.DecodeKey(keys, "name", &e.Name)
	_ = config.DecodeKey(keys, "encryption", &e.Encryption)
	for key, to := range map[string]*[]string{"podSubnets": &e.PodSubnets, "nodeSubnets": &e.NodeSubnets} {
		var list []json.RawMessage
		if config.DecodeKey(keys, key, &list) != nil {
			continue
		}
		for _, raw := range list {
			var text string
			if json.Unmarshal(raw, &text) == nil {
				*to = append(*to, text)
			}
		}
	}
	return e
}

// judge decides which remotes are used: all as they are, if they fit. Else who has something that works keeps it:
// remotes in their earlier form come first, then each one that conflicts with none of them, until no more do, as one
// may make room for another.
func (r *subnetsReader) judge(list []listed) {
	own := &config.Broker{Cluster: r.cluster, Features: r.features, Encryption: r.encryption, LocalPrefixes: r.out.Local}
	used := r.out.Remotes
	for i := range list {
		e := &list[i]
		was, had := r.before.Remotes[e.Name]
		if !had {
			continue
		}
		used[e.Name] = was
		if e.Encryption == "" && r.undecided {
			e.Encryption = was.Encryption
		}
	}
	pending, wrong := settle(own, list, used)
	if len(r.out.Local) == 0 { // no source says which addresses are no remote's
		clear(used)
		pending = list
	}
	for _, e := range pending {
		if _, had := used[e.Name]; had {
			r.line("remote %s: %v; its earlier form remains in use", e.Name, wrong[e.Name])
			continue
		}
		if err := wrong[e.Name]; err != nil {
			r.line("remote %s: %v; no earlier form is known: it has no tunnel, and packets to its pods are dropped", e.Name, err)
		}
		r.block(e)
	}
}

// settle takes all remotes of the list if they fit, and else adds to those that are used each other one that fits
// beside them. It returns those that do not, and why.
func settle(own *config.Broker, list []listed, used map[string]config.Remote) (left []listed, wrong map[string]error) {
	var all []config.Remote
	for _, e := range list {
		if e.undecoded == nil {
			all = append(all, e.remote())
		}
	}
	if with, bad := own.WithRemotes(all); len(all) == len(list) && len(bad) == 0 {
		for _, r := range with.Remotes {
			used[r.Name] = r
		}
		return nil, nil
	}
	wrong, left = map[string]error{}, list
	for progress := true; progress; {
		progress = false
		left = slices.DeleteFunc(slices.Clone(left), func(e listed) bool {
			is, err := fits(own, e, used)
			if wrong[e.Name] = err; err != nil {
				return false
			}
			used[e.Name], progress = is, true
			return true
		})
	}
	return left, wrong
}

// fits returns a remote, completed, or why it cannot be used beside others.
func fits(own *config.Broker, e listed, used map[string]config.Remote) (config.Remote, error) {
	if e.undecoded != nil {
		return config.Remote{}, e.undecoded
	}
	var all []config.Remote
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if name != e.Name {
			all = append(all, entryOf(used[name]).remote())
		}
	}
	with, wrong := own.WithRemotes(append(all, e.remote()))
	for _, name := range append([]string{e.Name}, slices.Sorted(maps.Keys(wrong))...) {
		if len(wrong[name]) == 0 {
			continue
		}
		line := strings.ReplaceAll(wrong[name][0], "spec.", "")
		if name != e.Name {
			line = "beside it, " + name + " " + line
		}
		return config.Remote{}, errors.New(line)
	}
	return with.Remotes[len(all)], nil
}

// block guards what can only be the remote's.
func (r *subnetsReader) block(e listed) {
	nodes, _ := config.ParsePrefixes("", e.NodeSubnets)
	others := append(nodes, r.out.Local...)
	for _, other := range r.out.Remotes {
		others = append(append(others, other.PodPrefixes...), other.NodePrefixes...)
	}
	is := config.Remote{Name: e.Name, Encryption: cmp.Or(e.Encryption, r.encryption)}
	pods, _ := config.ParsePrefixes("", e.PodSubnets)
	for _, p := range pods {
		if !overlapsAny(p, others) {
			is.PodSubnets, is.PodPrefixes = append(is.PodSubnets, p.String()), append(is.PodPrefixes, p)
		}
	}
	r.out.Blocked[e.Name] = is
}
