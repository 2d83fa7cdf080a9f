// Judge decides whether a pod reaches another in another cluster, and if not, at which link of the path it fails; the
// policies of both clusters are two of the links.
//
// It is pure. In: facts from the apiservers, brokers and agents of both clusters. Out: a chain of links with a verdict
// and evidence each. A link that fails only because another one fails is not broken but follows from that one, so that
// the first broken link is the cause. An unknown fact is named and never guessed.

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type LinkVerdict string

const (
	// OK is a link that works, as far as its evidence shows.
	OK LinkVerdict = "ok"
	// Broken is a link that does not.
	Broken LinkVerdict = "broken"
	// Unknown is a link that was not examined, or whose state follows from a broken one.
	Unknown LinkVerdict = "unknown"
	// None is a link that this path does not have.
	None LinkVerdict = "none"
)

type Link struct {
	Code  finding.Code `json:"code"`
	Title string       `json:"title"`
	// Where is the cluster, or the cluster and node, that the evidence is from.
	Where    string      `json:"where,omitempty"`
	Verdict  LinkVerdict `json:"verdict"`
	Evidence []string    `json:"evidence,omitempty"`
	// Fault is the evidence that the link is broken; empty for one that is not.
	Fault string `json:"fault,omitempty"`
	// Fix is an operator's step for a broken link, with the cluster.
	Fix string `json:"fix,omitempty"`
	// Depends is set if policies decide that are not known, or by what was not given: the path may be closed.
	Depends bool `json:"depends,omitempty"`
}

type Chain struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Links []Link `json:"links"`
	// NotRead are the objects that could not be read, a sentence each.
	NotRead []string `json:"not_read,omitempty"`
}

// Broken returns the first broken link; nil for none.
func (c *Chain) Broken() *Link { return c.first(func(l Link) bool { return l.Verdict == Broken }) }

// Depends returns the first link that Link.Depends is set of; nil for none.
func (c *Chain) Depends() *Link { return c.first(func(l Link) bool { return l.Depends }) }

func (c *Chain) first(is func(Link) bool) *Link {
	i := slices.IndexFunc(c.Links, is)
	if i < 0 {
		return nil
	}
	return &c.Links[i]
}

func (c *Chain) Count(v LinkVerdict) (n int) {
	for _, l := range c.Links {
		if l.Verdict == v {
			n++
		}
	}
	return n
}

type judge struct {
	*Facts
	chain *Chain
}

// Judge judges the path from the source to the target.
func Judge(f Facts) *Chain {
	j := &judge{Facts: &f, chain: &Chain{From: f.Source.String(), To: f.Target.String()}}
	if f.Name != nil {
		j.chain.To = f.Name.Text
		if f.Target.IP.IsValid() {
			j.chain.To += " → " + f.Target.String()
		}
	}
	for _, link := range []struct {
		code         finding.Code
		title, where string
		judge        func(Link) Link
	}{
		{finding.PathName, "name", f.Target.Cluster, j.name},
		{finding.PathDNS, "DNS block", f.Source.Cluster, j.dns},
		{finding.PathMirror, "mirror Service", f.Source.Cluster, j.mirror},
		{finding.PathSlices, "slices, preference and drain", f.Source.Cluster, j.slices},
		{finding.PathKubeProxy, "kube-proxy", at(f.Source), j.proxy},
		{finding.PathRoute, "route and rule", at(f.Source), j.there(j.route)},
		{finding.PathDevice, "device", at(f.Source), j.there(j.device)},
		{finding.PathPeer, "peer and allowed IPs", at(f.Source), j.there(j.peer)},
		{finding.PathHandshake, "handshake", at(f.Source), j.there(j.handshake)},
		{finding.PathMTU, "path MTU", at(f.Source), j.there(j.mtu)},
		{finding.PathFarNode, "far node", at(f.Target), j.between("pod to look at", j.farNode)},
		{finding.PathPool, "Calico's pools", f.Source.Cluster, j.between("address to look at", j.pool)},
		{finding.PathSet, "set", f.Target.Cluster, j.between("pod to look at", j.set)},
		{finding.PathPolicyOut, "policies of the client's side", f.Source.Cluster,
			func(l Link) Link { return j.policy(l, f.Source, f.Egress, "egress") }},
		{finding.PathPolicyIn, "policies of the pod's side", f.Target.Cluster,
			func(l Link) Link { return j.policy(l, f.Target, f.Ingress, "ingress") }},
	} {
		l := link.judge(Link{Code: link.code, Title: link.title, Where: link.where, Verdict: OK})
		for _, why := range f.NotRead[l.Code] {
			if l.Verdict != None {
				j.chain.NotRead = append(j.chain.NotRead, l.Title+": "+why)
			}
		}
		j.chain.Links = append(j.chain.Links, l)
	}
	if declared := f.Target.Ports; f.Port != "" && len(declared) > 0 && !slices.Contains(declared, f.Port) {
		j.chain.NotRead = append(j.chain.NotRead, fmt.Sprintf("the application: no container of %s declares port %s, "+
			"but %s; if nothing listens there, correct the targetPort of the Service", f.Target, f.Port,
			strings.Join(declared, ", ")))
	}
	return j.chain
}

func (j *judge) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := max(j.Now.Sub(t), 0)
	if d < 10*time.Second {
		return d.Round(100*time.Millisecond).String() + " ago"
	}
	return d.Round(time.Second).String() + " ago"
}

// lasting is for how long something has been so.
func (j *judge) lasting(since time.Time) string {
	if since.IsZero() {
		return "all of its time"
	}
	return strings.TrimSuffix(j.ago(since), " ago")
}

func (l Link) add(format string, args ...any) Link {
	l.Evidence = append(l.Evidence, fmt.Sprintf(format, args...))
	return l
}

func (l Link) broken(fix, format string, args ...any) Link {
	fault := fmt.Sprintf(format, args...)
	if l.Verdict != Broken { // the first cause is the one to fix
		l.Verdict, l.Fault, l.Fix = Broken, fault, fix
	}
	l.Evidence = append(l.Evidence, fault)
	return l
}

func (l Link) unknown(format string, args ...any) Link {
	if l.Verdict == OK {
		l.Verdict = Unknown
	}
	return l.add(format, args...)
}

func (l Link) none(format string, args ...any) Link {
	l.Verdict = None
	return l.add(format, args...)
}

// is reports whether an earlier link is broken.
func (j *judge) is(code finding.Code) bool {
	return slices.ContainsFunc(j.chain.Links, func(l Link) bool { return l.Code == code && l.Verdict == Broken })
}

// noTarget reports that there is no address by which to judge the rest of the chain.
func (j *judge) noTarget() bool { return !j.Target.IP.IsValid() }

// between judges a link that is there only between two clusters, and that needs the target's what.
func (j *judge) between(what string, judge func(Link) Link) func(Link) Link {
	return func(l Link) Link {
		switch {
		case j.noTarget():
			return l.unknown("there is no %s, which follows from the above", what)
		case j.Source.Cluster != "" && j.Source.Cluster == j.Target.Cluster:
			return l.none("both pods are in %s, and no tunnel is between them", j.Source.Cluster)
		}
		return judge(l)
	}
}

// there judges a link that the answer of the source's agent decides.
func (j *judge) there(judge func(Link, *Way) Link) func(Link) Link {
	return j.between("address to look up", func(l Link) Link {
		if j.There == nil {
			return l.unknown(notExamined)
		}
		return judge(l, j.There)
	})
}

const notExamined = "not examined"

func (j *judge) name(l Link) Link {
	n := j.Name
	if j.Source.Problem != "" {
		l.Where = j.Source.Cluster
		return l.broken("start the pod, or name another one", "%s: %s", j.Source, j.Source.Problem)
	}
	if n == nil {
		if j.Target.Problem != "" {
			return l.broken("start the pod, or name another one", "%s: %s", j.Target, j.Target.Problem)
		}
		return l.none("a pod or an address was asked for")
	}
	if n.Own != nil {
		return j.ownName(l)
	}
	l.Where = n.Remote
	if !n.Known {
		return l.broken("use the name of a remote, or global: semaphorectl status lists them",
			"%s: cluster %q is no remote of %s", n.Text, n.Remote, j.Source.Cluster)
	}
	if n.Remote == clusterSetName {
		return j.imported(l)
	}
	s := n.Source
	switch {
	case s == nil:
		return l.unknown("%s is Service %s/%s of %s; whether %s exports it was not looked at", n.Text, n.Namespace,
			n.Service, n.Remote, n.Remote)
	case !s.Exists:
		return l.broken(fmt.Sprintf("in %s: create the Service, or use its right name and namespace", n.Remote),
			"%s has no Service %s/%s", n.Remote, n.Namespace, n.Service)
	case !s.Selected:
		return l.broken(fmt.Sprintf("in %s: kubectl -n %s label service %s mirror.semaphore.uw.io/mirror-service=true",
			n.Remote, n.Namespace, n.Service), "Service %s/%s of %s has no label that offers it as a mirror",
			n.Namespace, n.Service, n.Remote)
	case s.Refused != "":
		return l.broken(fmt.Sprintf("in %s: kubectl -n %s describe service %s", n.Remote, n.Namespace, n.Service),
			"%s does not export Service %s/%s: %s", n.Remote, n.Namespace, n.Service, s.Refused)
	}
	return l.add("%s exports Service %s/%s", n.Remote, n.Namespace, n.Service)
}

// imported judges a name in clusterset.local.
func (j *judge) imported(l Link) Link {
	n, i := j.Name, j.Name.Import
	l.Where = j.Source.Cluster
	if i == nil {
		return l.unknown("whether ServiceImport %s/%s exists was not looked at", n.Namespace, n.Service)
	}
	problems := func(l Link) Link {
		for _, e := range i.Exports {
			for _, p := range e.Problems {
				l = l.add("the ServiceExport in %s: %s", e.Cluster, p)
			}
		}
		return l
	}
	switch {
	case i.Exists && i.NotReady != "":
		return problems(l.broken("kubectl -n "+n.Namespace+" describe serviceimport "+n.Service,
			"ServiceImport %s/%s is not ready: %s", n.Namespace, n.Service, i.NotReady))
	case i.Exists:
		return problems(l.add("ServiceImport %s/%s, exported by %s", n.Namespace, n.Service, strings.Join(i.Clusters,
			", ")))
	case i.NoNamespace:
		return problems(l.broken("kubectl create namespace "+n.Namespace+" in "+j.Source.Cluster,
			"there is no ServiceImport %s/%s: its namespace does not exist", n.Namespace, n.Service))
	case len(i.Exports) == 0:
		return l.broken("create a ServiceExport "+n.Service+" in namespace "+n.Namespace+
			" of the cluster that has the Service; if kubectl does not know that type, turn the API on as docs/mcs.md has it",
			"there is no ServiceImport %s/%s, and no ServiceExport in the clusters that were asked", n.Namespace, n.Service)
	}
	return problems(l.broken("semaphorectl status of the broker of "+j.Source.Cluster+" says why under PROBLEMS",
		"there is no ServiceImport %s/%s, and %s exports it", n.Namespace, n.Service, i.Exports[0].Cluster))
}

func (j *judge) dns(l Link) Link {
	d := j.DNS
	switch {
	case j.Name == nil:
		return l.none("no name was asked for")
	case j.Name.Own != nil:
		return l.none("the name is of the cluster's own domain")
	case d == nil:
		return l.unknown(notExamined)
	case d.Unreadable != "":
		l = l.unknown("%s: %s", d.Where, d.Unreadable)
	case d.Missing:
		return l.broken(prints(j.Name.Remote)+"; add it to the Corefile",
			"%s has no server block %s", d.Where, d.Zone)
	case d.Differs != "":
		return l.broken(prints(j.Name.Remote)+"; put it in its place",
			"the server block %s of %s lacks the line %q", d.Zone, d.Where, d.Differs)
	default:
		l = l.add("%s has the server block %s", d.Where, d.Zone)
	}
	switch {
	case d.Servers < 0:
		return l.add("how many DNS servers are ready was not looked at")
	case d.Ready == 0:
		return l.broken("start CoreDNS: kubectl -n kube-system get pods -l k8s-app=kube-dns",
			"none of %d DNS servers is ready", d.Servers)
	}
	return l.add("%d of %d DNS servers are ready", d.Ready, d.Servers)
}

func (j *judge) mirror(l Link) Link {
	if j.Name != nil && j.Name.Own != nil {
		l.Title = "Service"
	}
	m := j.Mirror
	switch {
	case j.Name == nil:
		return l.none("no Service was asked for")
	case m == nil:
		return l.unknown(notExamined)
	case !m.Exists && j.is(finding.PathName):
		return l.unknown("there is no Service %s/%s, which follows", m.Namespace, m.Name)
	case !m.Exists:
		l = l.broken("semaphorectl status of the broker of "+j.Source.Cluster+" says why under PROBLEMS",
			"there is no Service %s/%s", m.Namespace, m.Name)
	case !m.Owned:
		l = l.broken(fmt.Sprintf("kubectl -n %s delete service %s, and the broker creates its own", m.Namespace, m.Name),
			"Service %s/%s, created %s, is not the broker's", m.Namespace, m.Name, j.ago(m.Created))
	case m.Port != "" && !slices.Contains(m.Ports, m.Port):
		l = l.broken("ask for one of its ports, or add the port to the Service in "+j.Name.Remote,
			"Service %s/%s has no port %s, only %s", m.Namespace, m.Name, m.Port, strings.Join(m.Ports, ", "))
	default:
		ip := "headless"
		if !m.Headless {
			ip = m.ClusterIP
		}
		l = l.add("Service %s/%s, %s, ports %s, created %s", m.Namespace, m.Name, ip, strings.Join(m.Ports, ", "),
			j.ago(m.Created))
	}
	if m.Problem != "" {
		l = l.add("the broker says: %s", m.Problem)
	}
	if m.Write != "" {
		l = l.add("the broker's write is %s", m.Write)
	}
	return l
}

func (j *judge) slices(l Link) Link {
	s := j.Slices
	switch {
	case j.Name == nil:
		return l.none("no Service was asked for")
	case j.is(finding.PathName) || j.is(finding.PathMirror):
		return l.unknown("follows from the above")
	case j.Name.Own != nil:
		return j.ownSlices(l)
	case s == nil:
		return l.unknown(notExamined)
	}
	if s.Ready == 0 {
		remote := j.Name.Remote
		switch source := j.Name.Source; {
		case len(s.Drains) > 0:
			l = l.broken("semaphorectl undrain "+s.Drains[0], "none of %d endpoints is in use: %s is drained", s.Total,
				strings.Join(s.Drains, ", "))
		case len(s.Gone) > 0:
			l = l.broken("bring "+strings.Join(s.Gone, ", ")+" back; semaphorectl status says since when it is gone",
				"none of %d endpoints is in use: the broker takes %s for gone", s.Total, strings.Join(s.Gone, ", "))
		case len(s.NoTunnel) > 0 && (source == nil || source.Ready > 0):
			l = l.broken("in "+remote+": see that each of these nodes has an agent; semaphorectl status shows the causes",
				"none of %d endpoints is in use: %s", s.Total, strings.Join(s.NoTunnel, "; "))
		case source != nil && source.Ready == 0:
			l = l.broken(fmt.Sprintf("in %s: make a pod behind Service %s/%s ready", remote, j.Name.Namespace,
				j.Name.Service),
				"none of %d endpoints is ready, and none is in %s either", s.Total, remote)
		case s.Away && !Several(j.Name.Remote):
			l = l.broken("semaphorectl status of the broker of "+j.Source.Cluster+" says why "+remote+" is not connected",
				"none of %d endpoints is ready, and %s is not connected", s.Total, remote)
		default:
			l = l.broken("semaphorectl trace service/"+j.Name.Namespace+"/"+j.Name.Service+" shows the hop that delays them",
				"none of %d endpoints is ready", s.Total)
		}
	} else {
		l = l.add("%d of %d endpoints are in use; the chain below is that of %s", s.Ready, s.Total, s.Chosen)
		for _, d := range s.Drains {
			l = l.add("%s is drained", d)
		}
		for _, line := range s.NoTunnel {
			l = l.add("%s", line)
		}
	}
	if Several(j.Name.Remote) {
		return l
	}
	switch {
	case s.LastHeard.IsZero():
		return l.add("the broker of %s does not say when it heard of %s", j.Source.Cluster, j.Name.Remote)
	case s.Away:
		return l.add("%s is not connected; its endpoints are of %s", j.Name.Remote, j.ago(s.LastHeard))
	}
	return l.add("%s confirmed its endpoints %s", j.Name.Remote, j.ago(s.LastHeard))
}

// globalName is the cluster of global services in names, and clusterSetName that of imported ones.
const globalName, clusterSetName = "global", "clusterset.local"

// Several reports whether a Service, by its remote, represents those of several clusters.
func Several(remote string) bool { return remote == globalName || remote == clusterSetName }

// prints returns the command that prints the server block of a name.
func prints(remote string) string {
	if remote != clusterSetName {
		remote = "cluster." + remote
	}
	return "semaphorectl coredns prints the block of " + remote
}

func (j *judge) proxy(l Link) Link {
	p := j.Proxy
	switch {
	case j.Name == nil:
		return l.none("no Service was asked for")
	case j.Mirror != nil && j.Mirror.Headless:
		return l.none("the Service is headless: its names are those of the pods")
	case p == nil:
		return l.unknown(notExamined)
	case !p.GetAnswered():
		return l.broken("start kube-proxy on "+j.Source.Node+", or see its log",
			"its health port does not answer: %s", p.GetProblem())
	case !p.GetHealthy():
		return l.broken("see the log of kube-proxy on "+j.Source.Node, "%s; its rules are of %s", p.GetProblem(),
			j.ago(finding.TimeOf(p.GetLastUpdated())))
	}
	return l.add("healthy; its rules are of %s", j.ago(finding.TimeOf(p.GetLastUpdated())))
}

func at(p Pod) string {
	if p.Node == "" {
		return p.Cluster
	}
	return p.Cluster + "/" + p.Node
}

// deviceFault returns the fault of the device of a way; empty for none.
func deviceFault(w *Way) string {
	switch {
	case w.Cluster == "":
		return ""
	case !w.DeviceExists && w.DeviceProblem != "":
		return w.Interface + ": " + w.DeviceProblem
	case !w.DeviceExists:
		return w.Interface + " does not exist"
	case !w.DeviceUp:
		return strings.TrimSuffix(w.Interface+" is down: "+w.DeviceProblem, ": ")
	}
	return ""
}

func routeFault(w *Way, to Pod) string {
	switch {
	case w.Cluster == "":
		return fmt.Sprintf("%s is in the subnets of no remote that the node has a device to", to.IP)
	case w.GetRoute().GetError() != "":
		return w.GetRoute().GetError()
	case w.GetRoute().GetLink() != w.Interface:
		rule := ""
		if !w.GetRoute().GetRuled() {
			rule = "; the rule to the agent's routing table is missing"
		}
		return fmt.Sprintf("packets to %s leave by %s, not by %s%s", to.IP, w.GetRoute().GetLink(), w.Interface, rule)
	}
	return ""
}

func peerFault(w *Way, to Pod) (fault, fix string) {
	switch {
	case w.Present == nil && w.Desired == nil:
		return fmt.Sprintf("no peer of %s has %s among its allowed IPs, and the broker desires none", w.Interface, to.IP),
			fmt.Sprintf("semaphorectl status with both contexts says why: %s does not export node %s or the pod's prefix, "+
				"or the other cluster refuses it", to.Cluster, to.Node)
	case w.Present == nil:
		return fmt.Sprintf("no peer of %s has %s among its allowed IPs; the broker desires %s with %s", w.Interface, to.IP,
				w.Desired.GetNode(), w.Desired.GetAllowedIp()),
			"semaphorectl status --agent " + w.Node + " says why the agent does not set the peer"
	case to.Node != "" && w.Present.GetNode() != "" && w.Present.GetNode() != to.Node:
		return fmt.Sprintf("packets to %s go to node %s, and the pod is on node %s", to.IP, w.Present.GetNode(), to.Node),
			fmt.Sprintf("in %s: the pod has an IP of another node's prefix; set allowedIPs to blocks, see docs/exporting.md",
				to.Cluster)
	}
	return "", ""
}

func (j *judge) route(l Link, w *Way) Link {
	fault := routeFault(w, j.Target)
	switch {
	case fault == "":
		return l.add("packets to %s leave by %s", j.Target.IP, w.GetRoute().GetLink())
	case deviceFault(w) != "":
		return l.unknown("%s, which follows from the device", fault)
	}
	return l.broken(fmt.Sprintf("on node %s: ip rule; ip route get %s; remove the rule or route that comes first, "+
		"or add the pod's subnet to the remote", w.Node, j.Target.IP), "%s", fault)
}

func (j *judge) device(l Link, w *Way) Link {
	if w.Cluster == "" {
		return l.unknown("there is no device to look at, which follows from the above")
	}
	if fault := deviceFault(w); fault != "" {
		return l.broken("semaphorectl status --agent "+w.Node+" has the details", "%s", fault)
	}
	l = l.add("%s is up, MTU %d", w.Interface, w.Mtu)
	if w.DeviceProblem != "" {
		l = l.add("the agent says: %s", w.DeviceProblem)
	}
	return l.add("the broker confirmed what the agent sets %s", j.ago(finding.TimeOf(w.ConfirmedAt)))
}

func (j *judge) peer(l Link, w *Way) Link {
	if w.Cluster == "" || deviceFault(w) != "" {
		return l.unknown("follows from the above")
	}
	if j.Apart && w.Present == nil {
		return l.broken(fmt.Sprintf("say on one of the two Nodes where it is reached: annotation %s; see docs/nat.md",
			naming.ReachableAt), "node %s of %s and node %s of %s both have no address at which the other could reach it",
			w.Node, j.Source.Cluster, j.Target.Node, j.Target.Cluster)
	}
	if fault, fix := peerFault(w, j.Target); fault != "" {
		return l.broken(fix, "%s", fault)
	}
	return l.add("node %s, endpoint %s, has %s", w.Present.GetNode(), w.Present.GetEndpoint(), w.Present.GetAllowedIp())
}

// backFault returns why the target's node does not send answers back, apart from the session; empty for nothing known.
func (j *judge) backFault() (fault, fix string) {
	n := j.TargetNode
	if n != nil && !n.Ready {
		return fmt.Sprintf("node %s has not been ready for %s: %s", n.Name, j.lasting(n.Since), n.Reason),
			fmt.Sprintf("in %s: bring node %s back: kubectl describe node %s", j.Target.Cluster, n.Name, n.Name)
	}
	w := j.Back
	if w == nil {
		return "", ""
	}
	if fault := deviceFault(w); fault != "" {
		return fault, fmt.Sprintf("in %s: semaphorectl status --agent %s has the details", j.Target.Cluster, w.Node)
	}
	if fault := routeFault(w, j.Source); fault != "" {
		return fault, fmt.Sprintf("in %s, on node %s: ip rule; ip route get %s; remove the rule or route that comes first",
			j.Target.Cluster, w.Node, j.Source.IP)
	}
	return peerFault(w, j.Source)
}

func (j *judge) handshake(l Link, w *Way) Link {
	if w.Present == nil || j.is(finding.PathPeer) || j.is(finding.PathDevice) {
		return l.unknown("follows from the above")
	}
	silent := func(w *Way, what string) string {
		return fmt.Sprintf("%s has not heard %s for %s: %s", w.Node, what,
			j.lasting(finding.TimeOf(w.Session.GetSilentSince())), w.Session.GetReason())
	}
	there := w.state() == semaphorev1.SessionState_SESSION_STATE_SILENT
	back := j.Back != nil && j.Back.state() == semaphorev1.SessionState_SESSION_STATE_SILENT
	if there || back {
		if fault, _ := j.backFault(); fault != "" {
			return l.unknown("no answer, which follows from the far node")
		}
	}
	fix := fmt.Sprintf("let UDP pass between %s and the peer's endpoint, in both directions; see docs/paths.md", w.Node)
	if there {
		text := silent(w, "node "+w.Present.GetNode())
		if n := j.TargetNode; n != nil && n.AgentProblem != "" && n.Name == w.Present.GetNode() {
			text += fmt.Sprintf("; and its agent cannot be asked: %s", n.AgentProblem)
			fix = fmt.Sprintf("in %s: see that an agent runs on node %s: kubectl -n semaphore get pods -o wide "+
				"--field-selector spec.nodeName=%s; if one does, %s", j.Target.Cluster, n.Name, n.Name, fix)
		}
		l = l.broken(fix, "%s", text)
	}
	if back {
		l = l.broken(fix, "%s", silent(j.Back, "node "+w.Node))
	}
	if l.Verdict == Broken {
		return l
	}
	handshake := finding.TimeOf(w.Session.GetLastHandshake())
	if w.state() != semaphorev1.SessionState_SESSION_STATE_TALKING {
		return l.unknown("the last handshake with %s was %s, and nothing is sent to it: send a request, and ask again",
			w.Present.GetNode(), j.ago(handshake))
	}
	return l.add("a session with %s works; last handshake %s", w.Present.GetNode(), j.ago(handshake))
}

func (j *judge) mtu(l Link, w *Way) Link {
	if w.Present == nil || j.is(finding.PathPeer) || j.is(finding.PathDevice) || j.is(finding.PathHandshake) {
		return l.unknown("follows from the above")
	}
	one := func(l Link, from string, m *semaphorev1.PathMeasurement) Link {
		switch {
		case m == nil:
			return l
		case m.GetProblem() != "":
			return l.unknown("from %s: %s", from, m.GetProblem())
		case !m.GetAnswered():
			return l.unknown("from %s: the other node does not answer probes (UDP, probePort)", from)
		case m.GetCarries() < m.GetNeeded():
			carries := fmt.Sprintf("%d bytes", m.GetCarries())
			if m.GetCarries() == 0 {
				carries = "less than the least MTU"
			}
			return l.broken("set remotes[].wireguard.mtu to what the path carries, or make the path wider; see docs/paths.md",
				"from %s the path carries %s, and the device sends up to %d", from, carries, m.GetNeeded())
		}
		roundTrip := ""
		if d := m.GetRoundTrip().AsDuration(); d > 0 {
			roundTrip = fmt.Sprintf(" with a round trip of %s", d.Round(10*time.Microsecond))
		}
		return l.add("from %s the path carries %d bytes%s, measured now", from, m.GetCarries(), roundTrip)
	}
	l = one(l, j.Source.Cluster+"/"+w.Node, w.Measurement)
	if j.Back != nil {
		l = one(l, j.Target.Cluster+"/"+j.Back.Node, j.Back.Measurement)
	}
	if len(l.Evidence) == 0 {
		return l.unknown(notExamined)
	}
	return l
}

func (j *judge) farNode(l Link) Link {
	if j.TargetNode == nil && j.Back == nil {
		return l.unknown(notExamined)
	}
	if fault, fix := j.backFault(); fault != "" {
		return l.broken(fix, "%s", fault)
	}
	if n := j.TargetNode; n != nil {
		l = l.add("node %s has been ready for %s", n.Name, j.lasting(n.Since))
		if j.Back == nil {
			l = l.unknown("its agent was not asked: %s", n.AgentProblem)
		}
	}
	if w := j.Back; w != nil {
		l = l.add("answers to %s leave by %s, to node %s", j.Source.IP, w.GetRoute().GetLink(), w.GetPresent().GetNode())
	}
	return l
}

func (j *judge) pool(l Link) Link {
	p := j.Pools
	switch {
	case p == nil:
		return l.unknown(notExamined)
	case p.Enabled:
		l = l.broken("kubectl patch ippool "+p.Covering+" --type merge -p '{\"spec\":{\"disabled\":true}}'",
			"IPPool %s assigns IPs of %s to pods of %s", p.Covering, j.Target.Cluster, j.Source.Cluster)
	case p.Covering != "":
		l = l.add("IPPool %s has %s, disabled: Calico keeps the source IP", p.Covering, j.Target.IP)
	case p.NATOutgoing:
		l = l.broken("create a disabled IPPool of the remote's pod subnet, or set manageIPPools in broker.yaml",
			"no IPPool has %s, and the pod's own pool has natOutgoing: Calico replaces the source IP by the node's",
			j.Target.IP)
	default:
		l = l.add("no IPPool has %s, and none replaces the source IP", j.Target.IP)
	}
	if t := j.TargetPools; t != nil && t.Covering == "" && t.NATOutgoing {
		l = l.add("in %s no IPPool has %s: connections in the other direction do not work", j.Target.Cluster, j.Source.IP)
	}
	return l
}

func (j *judge) set(l Link) Link {
	if s := j.Sets; s != nil && len(s.Names) > 0 {
		l = l.add("%s is in %s, confirmed %s", j.Source.IP, strings.Join(s.Names, ", "), j.ago(s.LastHeard))
	} else if s != nil {
		l = l.add("%s is in no set of the broker", j.Source.IP)
	}
	needs := func(r *Result) bool { return r != nil && r.Verdict == Denied && r.NeedsSet }
	may := func(r *Result) bool { return r == nil || r.Verdict == Depends && r.NeedsSet }
	switch {
	case needs(j.Ingress) && j.Sets != nil && len(j.Sets.Names) == 0 && !j.Sets.Labelled:
		const label = naming.DefaultLabelDomain + "/name"
		return l.broken(fmt.Sprintf("in %s: kubectl -n %s label pod %s %s=NAME, by the workload's template",
			j.Source.Cluster, j.Source.Namespace, j.Source.Name, label),
			"a policy of %s admits sets, and the pod has no label %s", j.Target.Cluster, label)
	case needs(j.Ingress):
		return l.broken("semaphorectl get sets of "+j.Target.Cluster+", and semaphorectl trace setmember/"+
			j.Source.Namespace+"/"+j.Source.Name, "a policy of %s admits sets, and no network set there has %s",
			j.Target.Cluster, j.Source.IP)
	case needs(j.Egress):
		return l.broken("semaphorectl get sets of "+j.Source.Cluster,
			"a policy of %s admits sets, and no network set there has %s",
			j.Source.Cluster, j.Target.IP)
	case may(j.Ingress) || may(j.Egress):
		return l.unknown("whether a policy asks for a set is not known")
	}
	return l
}

func (j *judge) policy(l Link, pod Pod, r *Result, direction string) Link {
	switch {
	case j.noTarget():
		return l.unknown("there is no pod to look at, which follows from the above")
	case pod.HostNetwork:
		return l.unknown("the pod is on the host network: policies of host endpoints are not looked at")
	case r == nil:
		l.Depends = true
		return l.unknown("the policies of %s were not read", pod.Cluster)
	case r.Verdict == Allowed:
		return l.add("%s", r.Why)
	case r.Verdict == Depends:
		l.Depends = true
		return l.unknown("%s", r.Why)
	case r.NeedsSet && j.is(finding.PathSet):
		return l.unknown("%s, which follows from the set", r.Why)
	}
	fix := "change the policy"
	if len(r.Missing) > 0 {
		fix = "add " + r.Missing[0]
	}
	l = l.broken(fmt.Sprintf("in %s: %s (%s)", pod.Cluster, fix, direction), "%s", r.Why)
	for _, p := range r.Policies {
		if p.Outcome == saysNothing {
			l = l.add("%s %s: %s", p.Policy, p.Outcome, p.Detail)
		}
	}
	return l
}
