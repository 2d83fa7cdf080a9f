package operator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The most rows of each table; the others are counted.
const (
	maxLinks    = 200
	maxPairs    = 50
	maxFindings = 50
	maxNodes    = 100
	maxServices = 200
	maxSets     = 200
	maxEvents   = 50
	// maxView bounds a state in bytes: beyond it, tables are halved until it fits.
	maxView = 512 << 10
)

type Sources struct {
	Status func() *semaphorev1.GetStatusResponse
	// Watched is called with each state that is made for a reader; nil for no call.
	Watched func()
	// Services are those with endpoints, and Sets are the policy sets; nil if the feature is off.
	Services func() []services.Described
	Sets     func() []*semaphorev1.PolicySet
	// Recent are the last events, oldest first.
	Recent func(n int) []*semaphorev1.Event
}

type View struct {
	At      time.Time  `json:"at"`
	Standby bool       `json:"standby,omitempty"`
	Leader  string     `json:"leader,omitempty"`
	Mesh    *mesh.Mesh `json:"mesh"`
	// LinkStates are the states in which the links are drawn, in their order.
	LinkStates []string  `json:"linkStates"`
	Nodes      []Node    `json:"nodes"`
	Services   []Service `json:"services"`
	Sets       []Set     `json:"sets"`
	Lag        []Series  `json:"lag"`
	Events     []Event   `json:"events"`
	// Every is the time until the next state in seconds: longer, if reading one takes longer.
	Every float64 `json:"every"`
	// More is how many rows of each table are not shown.
	More map[string]int `json:"more"`
	// Picture changes when the drawing changes.
	Picture string `json:"picture"`
}

// Node is a node of the own cluster. Those without an agent come first.
type Node struct {
	Name     string `json:"name"`
	Attached bool   `json:"attached"`
	Since    string `json:"since"`
	Devices  uint32 `json:"devices"`
	Behind   uint64 `json:"behind"`
}

// Service is a Service with endpoints of other clusters.
type Service struct {
	Namespace string                      `json:"namespace"`
	Name      string                      `json:"name"`
	Service   string                      `json:"service"`
	Global    bool                        `json:"global"`
	Imported  bool                        `json:"imported"`
	Conflict  string                      `json:"conflict,omitempty"`
	OwnName   string                      `json:"ownName,omitempty"`
	Clusters  []services.DescribedCluster `json:"clusters"`
}

type Set struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pods      int    `json:"pods"`
	Missing   int    `json:"missing"`
	Problem   string `json:"problem,omitempty"`
}

// Event is something that this broker observed or did.
type Event struct {
	At     time.Time `json:"at"`
	Source string    `json:"source"`
	Object string    `json:"object"`
	Action string    `json:"action"`
	Detail string    `json:"detail"`
}

func (s *Page) refresh(now time.Time) {
	if s.sources.Watched != nil {
		s.sources.Watched()
	}
	status := s.sources.Status()
	if now.Sub(s.detailsAt) >= details {
		s.read, s.moreRead = servicesOf(s.sources.Services)
		s.sets, s.moreSets = setsOf(s.sources.Sets)
		s.detailsAt = time.Now()
	}
	v, p := viewOf(status, now)
	v.Services, v.Sets = s.read, s.sets
	v.More["services"], v.More["sets"] = s.moreRead, s.moreSets
	v.Events = eventsOf(s.sources.Recent(maxEvents))
	s.mu.Lock()
	v.Lag, v.More["lag"] = s.lag.series()
	s.mu.Unlock()
	v.Every = max(least, share*time.Since(now)).Seconds()
	svg := []byte(p.SVG())
	sum := fnv.New64a()
	_, _ = sum.Write(svg) // cannot fail
	v.Picture = fmt.Sprintf("%x", sum.Sum64())
	data := v.encode(maxView)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = &state{view: data, svg: svg, at: time.Now()}
	close(s.changed)
	s.changed = make(chan struct{})
}

// viewOf returns what follows from a status alone, and its drawing. The tables beside the drawing have the links and
// findings.
func viewOf(status *semaphorev1.GetStatusResponse, now time.Time) (*View, *mesh.Picture) {
	m := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{status}}})
	v := &View{At: now.UTC(), Standby: status.GetStandby(), Leader: finding.Clean(status.GetLeader()), Mesh: m,
		More: map[string]int{}, LinkStates: []string{}}
	p := mesh.PictureOf(m)
	p.Links, p.Findings, p.Traffic = mesh.Section{}, mesh.Section{}, mesh.Section{}

	stateOf := mesh.StateOf(m)
	slices.SortStableFunc(m.Links, func(a, b mesh.Link) int { return cmp.Compare(stateOf(b), stateOf(a)) })
	v.More["links"], v.More["pairs"] = cutTo(&m.Links, maxLinks), cutTo(&m.Pairs, maxPairs)
	v.More["traffic"] = m.MoreTraffic
	m.OwnNames, m.MoreOwnNames = nil, 0 // the table of Services has them
	v.More["findings"] = cutTo(&m.Findings, maxFindings)
	cutTo(&m.Clusters, maxLinks+1)
	cutTo(&m.Notes, maxFindings)
	for _, l := range m.Links {
		v.LinkStates = append(v.LinkStates, stateOf(l).String())
	}
	nodes := slices.DeleteFunc(slices.Clone(status.GetNodes()),
		func(n *semaphorev1.NodeStatus) bool { return n.GetWithoutEncryption() != "" })
	slices.SortStableFunc(nodes, func(a, b *semaphorev1.NodeStatus) int {
		switch {
		case a.GetAttached() == b.GetAttached():
			return cmp.Compare(a.GetNode(), b.GetNode())
		case a.GetAttached():
			return 1
		}
		return -1
	})
	v.More["nodes"] = cutTo(&nodes, maxNodes)
	for _, n := range nodes {
		is := Node{Name: finding.Clean(n.GetNode()), Attached: n.GetAttached(), Devices: n.GetDevices(),
			Behind: n.GetBehind()}
		if n.GetSince() != nil {
			is.Since = status.GetNow().AsTime().Sub(n.GetSince().AsTime()).Round(time.Second).String()
		}
		v.Nodes = append(v.Nodes, is)
	}
	return v, p
}

func (v *View) encode(most int) []byte {
	for {
		data, err := json.Marshal(v)
		if err != nil {
			// None of its types can fail.
			return []byte(`{"mesh":{"verdict":"the dashboard cannot encode its state"}}`)
		}
		if len(data) <= most || !v.halve() {
			return data
		}
	}
}

// halve shortens each table, and returns false if none can be shortened.
func (v *View) halve() bool {
	removed := half(&v.Mesh.Clusters) + half(&v.Mesh.Notes)
	for table, more := range map[string]int{"services": half(&v.Services), "sets": half(&v.Sets),
		"events": half(&v.Events), "nodes": half(&v.Nodes), "links": half(&v.Mesh.Links),
		"findings": half(&v.Mesh.Findings), "pairs": half(&v.Mesh.Pairs), "lag": half(&v.Lag),
		"traffic": half(&v.Mesh.Traffic)} {
		v.More[table] += more
		removed += more
	}
	v.LinkStates = v.LinkStates[:len(v.Mesh.Links)]
	return removed > 0
}

func half[T any](list *[]T) int { return cutTo(list, len(*list)/2) }

// cutTo keeps the first elements of a list, and returns how many it removed.
func cutTo[T any](list *[]T, most int) int {
	more := max(0, len(*list)-most)
	*list = (*list)[:len(*list)-more]
	return more
}

// leads returns to how many other clusters the own name of a Service leads.
func leads(d services.Described) int {
	if d.Own == nil {
		return 0
	}
	return len(d.Own.Clusters)
}

func servicesOf(source func() []services.Described) (out []Service, more int) {
	if source == nil {
		return nil, 0
	}
	all := source()
	slices.SortStableFunc(all, func(a, b services.Described) int { return cmp.Compare(leads(b), leads(a)) })
	more = cutTo(&all, maxServices)
	for _, d := range all {
		is := Service{Namespace: finding.Clean(d.Namespace), Name: finding.Clean(d.Name), Service: finding.Clean(d.Service),
			Global: d.Global, Imported: d.Imported, Conflict: finding.Clean(d.Conflict)}
		if d.Own != nil {
			is.OwnName = finding.Clean(d.Own.String())
		}
		for _, c := range d.Clusters[:min(len(d.Clusters), maxServices)] {
			c.Cluster = finding.Clean(c.Cluster)
			is.Clusters = append(is.Clusters, c)
		}
		out = append(out, is)
	}
	return out, more
}

func setsOf(source func() []*semaphorev1.PolicySet) (out []Set, more int) {
	if source == nil {
		return nil, 0
	}
	all := source()
	more = cutTo(&all, maxSets)
	for _, s := range all {
		out = append(out, Set{Cluster: finding.Clean(s.GetCluster()), Namespace: finding.Clean(s.GetNamespace()),
			Name: finding.Clean(s.GetName()), Pods: len(s.GetPods()), Missing: len(s.GetMissing()),
			Problem: finding.Clean(s.GetProblem())})
	}
	return out, more
}

func eventsOf(all []*semaphorev1.Event) (out []Event) {
	for _, e := range slices.Backward(all) {
		out = append(out, Event{At: e.GetTime().AsTime(), Source: finding.Clean(e.GetSource()),
			Object: finding.Clean(e.GetObject()), Action: finding.Clean(e.GetAction()), Detail: finding.Clean(e.GetDetail())})
	}
	return out
}
