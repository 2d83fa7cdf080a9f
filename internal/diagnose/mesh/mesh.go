// Package mesh joins the statuses of the parts of several clusters: clusters, the links between them, and faults. It
// judges nothing that a part judges: it counts, compares versions, and names the parts that it could not ask. It draws
// the result, too.
//
// It is pure.
package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Facts struct {
	// Context is the context of the kubeconfig, and Server the apiserver's address in it; "" for unknown.
	Context, Server string
	Parts           []*semaphorev1.GetStatusResponse
	// Unreached is why parts that lead did not answer, by part ("broker", "exporter", or "" for the apiserver).
	Unreached map[string]string
	// Remotes are the RemoteClusters in the apiserver, which are read if the broker does not answer.
	Remotes []Remote
	// Notes are the facts of the apiserver about parts that did not answer, such as the state of their pods.
	Notes []string
}

type Remote struct {
	Name      string
	LastHeard time.Time
}

// Mesh is the joined state. Its JSON is stable: fields are added, and keep their meaning.
type Mesh struct {
	Verdict  string    `json:"verdict"`
	Well     bool      `json:"well"`
	Clusters []Cluster `json:"clusters"`
	Links    []Link    `json:"links"`
	Pairs    []Pair    `json:"silentPairs,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	// Traffic is that of Services with remote endpoints, the busiest first; none unless the agents count it.
	Traffic []Traffic `json:"traffic,omitempty"`
	// MoreTraffic is how many Services with traffic Traffic does not have: each broker reports its busiest.
	MoreTraffic int `json:"moreTraffic,omitempty"`
	// OwnNames are the Services whose own names lead to other clusters, and MoreOwnNames how many are not among them.
	OwnNames     []OwnName `json:"ownNames,omitempty"`
	MoreOwnNames int       `json:"moreOwnNames,omitempty"`
	Notes        []string  `json:"notes,omitempty"`
}

// Cluster is a cluster that was asked, or that another one knows.
type Cluster struct {
	Name    string `json:"name"`
	Context string `json:"context,omitempty"`
	Parts   []Part `json:"parts,omitempty"`
	// Nodes of the cluster and those with an agent, as its broker knows them.
	Nodes  int `json:"nodes"`
	Agents int `json:"agents"`
	// Asked is false for a cluster that only others know.
	Asked bool `json:"asked"`
	// MultiCluster is nil unless the cluster's broker has the Multi-Cluster Services API.
	MultiCluster *MultiCluster `json:"multiCluster,omitempty"`
}

// MultiCluster counts the exports of ServiceExports to a cluster's broker, and its imports for them.
type MultiCluster struct {
	// Exports are those of the own cluster. A Link has those of the other one.
	Exports   uint64 `json:"exports"`
	Imports   uint64 `json:"imports"`
	Conflicts uint64 `json:"conflicts"`
}

type Part struct {
	Part    string `json:"part"`
	Node    string `json:"node,omitempty"`
	Version string `json:"version,omitempty"`
	Leader  string `json:"leader,omitempty"`
	Up      string `json:"up,omitempty"`
	// State is "ok", "N errors, N warnings" or "does not answer".
	State string `json:"state"`
}

// Link is what one cluster imports from another.
type Link struct {
	At         string            `json:"at"`
	From       string            `json:"from"`
	State      string            `json:"state"` // fresh, stale, never, or unknown
	Age        string            `json:"age,omitempty"`
	Lag        string            `json:"lag,omitempty"`
	LagSeconds float64           `json:"lagSeconds,omitempty"`
	Objects    uint64            `json:"objects"`
	Refused    uint64            `json:"refused"`
	Retained   uint64            `json:"retained"`
	Kinds      map[string]uint64 `json:"kinds,omitempty"`
	Exports    uint64            `json:"exports,omitempty"`
	// Tunnels are the own nodes with a session, and those that report: 0 of 0 without encryption.
	Talking int `json:"talking"`
	Nodes   int `json:"nodes"`
	Silent  int `json:"silent"`
	// Handshake is the age of the newest one of any node.
	Handshake string `json:"handshake,omitempty"`
	// SentPerSecond and ReceivedPerSecond are bytes through the tunnels of all own nodes, as last reported.
	SentPerSecond     uint64 `json:"sentPerSecond,omitempty"`
	ReceivedPerSecond uint64 `json:"receivedPerSecond,omitempty"`
}

// Pair is two nodes without a session.
type Pair struct {
	At     string `json:"at"`
	Node   string `json:"node"`
	Remote string `json:"remote"`
	For    string `json:"for"`
	Reason string `json:"reason"`
}

// Traffic is what passes the tunnels from one cluster to the remote endpoints of a Service, and back.
type Traffic struct {
	At                string `json:"at"`
	Service           string `json:"service"` // NAMESPACE/NAME
	SentBytes         uint64 `json:"sentBytes"`
	ReceivedBytes     uint64 `json:"receivedBytes"`
	Connections       uint64 `json:"connections"`
	SentPerSecond     uint64 `json:"sentPerSecond"`
	ReceivedPerSecond uint64 `json:"receivedPerSecond"`
}

// OwnName is a Service of a cluster whose own name leads to others now.
type OwnName struct {
	At      string `json:"at"`
	Service string `json:"service"` // NAMESPACE/NAME
	// Use is "failover" or "all".
	Use      string   `json:"use"`
	Clusters []string `json:"clusters"`
	// Ready of All endpoints of its own cluster are ready, and Enough is what suffices.
	Ready  uint32 `json:"ready"`
	All    uint32 `json:"all"`
	Enough string `json:"enough"`
}

type Finding struct {
	At      string     `json:"at"`
	Part    string     `json:"part"`
	Code    string     `json:"code"`
	Level   string     `json:"level"`
	Cluster string     `json:"cluster,omitempty"`
	Meaning string     `json:"meaning"`
	Count   uint64     `json:"count"`
	First   []string   `json:"first,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Side    string     `json:"side"`
	Command string     `json:"command"`

	text string
}

func Join(all []Facts) *Mesh {
	m := &Mesh{}
	contexts := map[string][]Facts{}
	for _, f := range all {
		m.cluster(f, contexts)
	}
	m.alike(contexts)
	m.skew(all)
	for _, l := range m.Links {
		for _, name := range []string{l.At, l.From} {
			if !slices.ContainsFunc(m.Clusters, func(c Cluster) bool { return c.Name == name }) {
				m.Clusters = append(m.Clusters, Cluster{Name: name})
			}
		}
	}
	for i := range m.Findings { // a remote is asked by the context that leads to it, where one was given
		f := &m.Findings[i]
		if of := contexts[f.Cluster]; len(of) > 0 && !several(of) && of[0].Context != "" {
			f.Command = strings.ReplaceAll(f.Command, "--context "+f.Cluster, "--context "+of[0].Context)
		}
	}
	rank := map[string]int{"error": 0, "warning": 1}
	slices.SortStableFunc(m.Findings, func(a, b Finding) int {
		return cmp.Or(rank[a.Level]-rank[b.Level], rankOf(a.Code)-rankOf(b.Code), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.At, b.At), cmp.Compare(a.Cluster, b.Cluster))
	})
	slices.SortStableFunc(m.Traffic, func(a, b Traffic) int {
		return cmp.Compare(b.SentPerSecond+b.ReceivedPerSecond, a.SentPerSecond+a.ReceivedPerSecond)
	})
	m.Verdict, m.Well = m.verdict(), len(m.Findings) == 0
	return m
}

// rankOf sorts faults between clusters before those in one.
func rankOf(code string) int {
	order := []finding.Code{finding.Unreached, finding.ClusterGone, finding.Stale, finding.NeverConnected,
		finding.KindStale, finding.SilentPairs, finding.NoLeader, finding.NotReady}
	if i := slices.Index(order, finding.Code(code)); i >= 0 {
		return i
	}
	return len(order)
}

func (m *Mesh) traffic(at string, s *semaphorev1.GetStatusResponse) {
	m.MoreTraffic += max(int(s.GetServiceTrafficTotal())-len(s.GetServiceTraffic()), 0)
	for _, t := range s.GetServiceTraffic() {
		m.Traffic = append(m.Traffic, Traffic{At: at, Service: finding.Clean(t.GetNamespace() + "/" + t.GetService()),
			SentBytes: t.GetSentBytes(), ReceivedBytes: t.GetReceivedBytes(), Connections: t.GetConnections(),
			SentPerSecond: t.GetSentPerSecond(), ReceivedPerSecond: t.GetReceivedPerSecond()})
	}
}

func (m *Mesh) ownNames(at string, s *semaphorev1.GetStatusResponse) {
	m.MoreOwnNames += max(int(s.GetOwnNamesTotal())-len(s.GetOwnNames()), 0)
	for _, o := range s.GetOwnNames() {
		is := OwnName{At: at, Service: finding.Clean(o.GetNamespace() + "/" + o.GetService()),
			Use: finding.Clean(o.GetUse()), Ready: o.GetReady(), All: o.GetAll(), Enough: finding.Clean(o.GetEnough())}
		for _, cluster := range o.GetClusters() {
			is.Clusters = append(is.Clusters, finding.Clean(cluster))
		}
		m.OwnNames = append(m.OwnNames, is)
	}
}

func (m *Mesh) cluster(f Facts, contexts map[string][]Facts) {
	c := Cluster{Context: f.Context, Asked: true}
	for _, s := range f.Parts {
		c.Name = finding.Clean(s.GetCluster())
	}
	c.Name = cmp.Or(c.Name, finding.Clean(f.Context))
	contexts[c.Name] = append(contexts[c.Name], f)
	hears := false
	for _, s := range f.Parts {
		p := Part{Part: s.GetPart(), Node: finding.Clean(s.GetNode()), Version: finding.Clean(s.GetSoftwareVersion()),
			Leader: finding.Clean(s.GetLeader()), Up: finding.Since(s, s.GetStartedAt()), State: state(s.GetFindings())}
		if s.GetStandby() {
			p.State = "standby; " + p.State
		}
		c.Parts = append(c.Parts, p)
		for _, is := range s.GetFindings() {
			m.add(c.Name, s, is)
		}
		for _, pair := range s.GetSilentPairs() {
			m.Pairs = append(m.Pairs, Pair{At: c.Name, Node: finding.Clean(pair.GetNode()),
				Remote: finding.Clean(pair.GetCluster() + "/" + pair.GetRemoteNode()), For: finding.Since(s, pair.GetSince()),
				Reason: finding.Clean(pair.GetReason())})
		}
		switch {
		case s.GetPart() == "broker" && !s.GetStandby():
			hears = true
			c.Nodes, c.Agents = nodes(s)
			for _, l := range s.GetLinks() {
				m.Links = append(m.Links, link(s, l))
			}
			c.MultiCluster = multiCluster(s)
			m.traffic(c.Name, s)
			m.ownNames(c.Name, s)
		case s.GetPart() == "agent":
			m.agent(c.Name, s)
		}
	}
	for _, part := range []string{"", "broker", "exporter"} {
		why, unreached := f.Unreached[part]
		name := cmp.Or(part, "apiserver")
		who := name
		i := slices.IndexFunc(f.Parts, func(s *semaphorev1.GetStatusResponse) bool {
			return s.GetPart() == part && s.GetStandby()
		})
		switch {
		case !unreached, i >= 0 && f.Parts[i].GetLeader() == "": // the standby itself says that nobody leads
			continue
		case i >= 0:
			who = "leading " + part
		}
		c.Parts = append(c.Parts, Part{Part: name, State: "does not answer"})
		m.own(c.Name, f.Context, name, finding.New(finding.Unreached, "", 1, c.Name+": the "+who+" does not answer: "+why))
	}
	if !hears {
		for _, r := range f.Remotes {
			l := Link{At: c.Name, From: finding.Clean(r.Name), State: "unknown"}
			if !r.LastHeard.IsZero() {
				m.Notes = append(m.Notes, fmt.Sprintf("%s: its RemoteCluster %s was last written with last heard %s",
					c.Name, l.From, r.LastHeard.UTC().Format(time.RFC3339)))
			}
			if !slices.ContainsFunc(m.Links, func(is Link) bool { return is.At == l.At && is.From == l.From }) {
				m.Links = append(m.Links, l)
			}
		}
	}
	for _, note := range f.Notes {
		m.Notes = append(m.Notes, c.Name+": "+finding.Clean(note))
	}
	m.Clusters = append(m.Clusters, c)
}

// agent adds what an agent knows about links, if its broker did not answer.
func (m *Mesh) agent(at string, s *semaphorev1.GetStatusResponse) {
	for _, d := range s.GetDevices() {
		i := slices.IndexFunc(m.Links, func(l Link) bool { return l.At == at && l.From == d.GetCluster() })
		if i >= 0 && m.Links[i].State != "unknown" {
			continue
		}
		if i < 0 {
			i = len(m.Links)
			m.Links = append(m.Links, Link{At: at, From: finding.Clean(d.GetCluster()), State: "unknown"})
		}
		l := &m.Links[i]
		if l.Nodes++; d.GetPaths().GetTalking() > 0 {
			l.Talking++
		}
		if d.GetPaths().GetSilent() > 0 {
			l.Silent++
		}
	}
}

func link(s *semaphorev1.GetStatusResponse, l *semaphorev1.LinkStatus) Link {
	out := Link{At: finding.Clean(s.GetCluster()), From: finding.Clean(l.GetCluster()), State: "fresh",
		Age: finding.Since(s, l.GetLastHeard()), Kinds: map[string]uint64{}, Exports: exportsOf(s, l.GetCluster())}
	switch {
	case l.GetLastHeard() == nil:
		out.State = "never"
	case finding.Age(s, l.GetLastHeard()) > finding.StaleAfter:
		out.State = "stale"
	}
	var lag time.Duration
	measured := false
	for _, k := range l.GetKinds() {
		out.Kinds[semaphorev1.KindName(k.GetKind())] = k.GetObjects()
		out.Objects += k.GetObjects()
		out.Refused += k.GetRefused()
		out.Retained += k.GetRetained()
		if d := k.GetMedianPropagation(); d != nil {
			lag, measured = max(lag, d.AsDuration()), true
		}
	}
	if measured {
		out.Lag, out.LagSeconds = finding.Short(lag), lag.Seconds()
	}
	for _, t := range s.GetTunnels() {
		if t.GetCluster() == l.GetCluster() {
			out.Talking, out.Nodes, out.Silent = int(t.GetNodesTalking()), int(t.GetNodes()), int(t.GetNodesSilent())
			out.SentPerSecond, out.ReceivedPerSecond = t.GetSentPerSecond(), t.GetReceivedPerSecond()
			if t.GetLastHandshake() != nil {
				out.Handshake = finding.Since(s, t.GetLastHandshake())
			}
		}
	}
	return out
}

// nodes returns on how many nodes of a broker's cluster an agent is expected, and how many have one.
func nodes(s *semaphorev1.GetStatusResponse) (all, attached int) {
	for _, n := range s.GetNodes() {
		if n.GetWithoutEncryption() != "" {
			continue
		}
		if all++; n.GetAttached() {
			attached++
		}
	}
	return all, attached
}

func multiCluster(s *semaphorev1.GetStatusResponse) *MultiCluster {
	if s.GetMultiCluster() == nil {
		return nil
	}
	return &MultiCluster{Exports: exportsOf(s, s.GetCluster()), Imports: s.GetMultiCluster().GetImports(),
		Conflicts: s.GetMultiCluster().GetConflicts()}
}

// exportsOf returns how many Services of a cluster ServiceExports export to a broker.
func exportsOf(s *semaphorev1.GetStatusResponse, cluster string) uint64 {
	for _, e := range s.GetMultiCluster().GetExports() {
		if e.GetCluster() == cluster {
			return e.GetServices()
		}
	}
	return 0
}

func state(all []*semaphorev1.Finding) string {
	errs, warnings := 0, 0
	for _, f := range all {
		if f.GetLevel() == semaphorev1.Level_LEVEL_WARNING {
			warnings++
		} else {
			errs++
		}
	}
	var words []string
	if errs > 0 {
		words = append(words, plural(errs, "error"))
	}
	if warnings > 0 {
		words = append(words, plural(warnings, "warning"))
	}
	return cmp.Or(strings.Join(words, ", "), "ok")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (m *Mesh) own(at, context, part string, f finding.Finding) {
	message := finding.Messages([]finding.Finding{f})[0]
	message.Command = strings.ReplaceAll(message.GetCommand(), "CONTEXT", context)
	m.add(at, &semaphorev1.GetStatusResponse{Part: part}, message)
}

func (m *Mesh) add(at string, s *semaphorev1.GetStatusResponse, f *semaphorev1.Finding) {
	part := s.GetPart()
	if s.GetNode() != "" {
		part += " on " + s.GetNode()
	}
	is := Finding{At: at, Part: finding.Clean(part), Code: finding.Clean(f.GetCode()),
		Level: semaphorev1.LevelName(f.GetLevel()), Cluster: finding.Clean(f.GetCluster()),
		Meaning: finding.Clean(f.GetMeaning()), Count: f.GetCount(),
		Side: semaphorev1.SideName(f.GetSide()), Command: finding.Clean(f.GetCommand()), text: finding.Text(f)}
	for _, line := range f.GetFirst()[:min(len(f.GetFirst()), finding.Shown)] {
		is.First = append(is.First, finding.Clean(line))
	}
	if f.GetSince().IsValid() {
		is.Since = new(f.GetSince().AsTime())
	}
	m.Findings = append(m.Findings, is)
}

// alike finds names that clusters of several contexts have. A cluster gives its own name: one that was restored from a
// backup beside the original gives the same, and so may one that is hostile. A statement about the name is then about
// any of them, and no command leads to one of them by it.
func (m *Mesh) alike(contexts map[string][]Facts) {
	for _, name := range slices.Sorted(maps.Keys(contexts)) {
		of := slices.DeleteFunc(slices.Clone(contexts[name]), func(f Facts) bool { return len(f.Parts) == 0 })
		if len(of) == 0 || !several(of) {
			continue
		}
		var names []string
		for _, f := range of {
			names = append(names, f.Context)
		}
		m.own("mesh", "", "semaphorectl", finding.New(finding.ClusterNameTaken, name, len(of), fmt.Sprintf(
			"the contexts %s lead to clusters that all say they are %s: ask them one at a time",
			strings.Join(names, ", "), name)))
	}
}

// several reports whether contexts lead to more than one cluster: those of several users have the same apiserver.
func several(of []Facts) bool {
	return slices.ContainsFunc(of[1:], func(f Facts) bool { return f.Server == "" || f.Server != of[0].Server })
}

func (m *Mesh) skew(all []Facts) {
	of := map[string][]string{}
	for _, f := range all {
		for _, s := range f.Parts {
			version := finding.Clean(s.GetSoftwareVersion())
			of[version] = append(of[version], finding.Clean(s.GetPart()+" of "+s.GetCluster()))
		}
	}
	if len(of) < 2 {
		return
	}
	var lines []string
	for version, parts := range of {
		slices.Sort(parts)
		parts = slices.Compact(parts)
		lines = append(lines, fmt.Sprintf("%s: %s", version, strings.Join(parts, ", ")))
	}
	slices.Sort(lines)
	m.own("mesh", "", "versions", finding.New(finding.VersionSkew, "", len(lines), lines...))
}

func (m *Mesh) verdict() string {
	fresh, remotes, asked := 0, 0, 0
	for _, c := range m.Clusters {
		if c.Asked {
			asked++
		}
	}
	for _, l := range m.Links {
		if l.At == l.From {
			continue // the cluster's own exporter, for global services
		}
		remotes++
		if l.State == "fresh" {
			fresh++
		}
	}
	counted := fmt.Sprintf("%d of %d remotes fresh", fresh, remotes)
	if len(m.Findings) == 0 {
		return fmt.Sprintf("all is well: %s, %s", plural(asked, "cluster"), counted)
	}
	const most = 3
	said := map[string]bool{}
	words, more := []string{counted}, 0
	for _, f := range m.Findings {
		text := f.text
		if asked > 1 && f.At != "mesh" && f.Code != string(finding.Unreached) {
			text = f.At + ": " + text
		}
		switch {
		case said[text]:
		case len(words) > most:
			more++
		default:
			words = append(words, text)
		}
		said[text] = true
	}
	if more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "; ")
}
