// Package verify sends traffic between pods of clusters, judges it, and prints the result.
//
// run.go, cluster.go and objects.go make pods, and ask them, brokers and agents. probe.go runs in the pods: a server
// that answers who asked it, and a client that asks by HTTP/1.1, with one TCP connection for each question, until the
// outcome is the expected one. verify.go turns the answers into checks, each with a result and an observation, and for
// a failure with a code and a fix; it has no effects.
package verify

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Result string

// The results. Unchecked means that the check was not made; the detail has the reason.
const (
	Passed    Result = "passed"
	Failed    Result = "failed"
	Unchecked Result = "unchecked"
)

type Name string

// The checks of one direction, in the order in which they are made. Cleanup concerns one cluster.
const (
	PodIP      Name = "pod-ip"
	Encryption Name = "encryption"
	PathMTU    Name = "path-mtu"
	Mirror     Name = "mirror"
	DNS        Name = "dns"
	Global     Name = "global"
	Policy     Name = "policy"
	Cleanup    Name = "cleanup"
)

// Directed are the checks that are made from each cluster to each other one.
var Directed = []Name{PodIP, Encryption, PathMTU, Mirror, DNS, Global, Policy}

type Check struct {
	// From is the cluster of the asking pod, and To that of the answering pod. To is empty for a check of one cluster.
	From   string `json:"from"`
	To     string `json:"to,omitempty"`
	Name   Name   `json:"check"`
	Result Result `json:"result"`
	// Seconds is the time from the first packet until the result.
	Seconds float64 `json:"seconds"`
	// Detail is the observation, or why there is none.
	Detail   string     `json:"detail"`
	Measured []Measured `json:"measured,omitempty"`
	// Code and Fix are set for a failure.
	Code finding.Code `json:"code,omitempty"`
	Fix  string       `json:"fix,omitempty"`
	// unread is set for a check that was not made because something could not be read.
	unread bool
}

func (c Check) passed(format string, args ...any) Check {
	c.Result, c.Detail = Passed, fmt.Sprintf(format, args...)
	return c
}

func (c Check) failed(code finding.Code, fix, format string, args ...any) Check {
	c.Result, c.Code, c.Fix, c.Detail = Failed, code, fix, fmt.Sprintf(format, args...)
	return c
}

func (c Check) Skip(format string, args ...any) Check {
	c.Result, c.Detail = Unchecked, fmt.Sprintf(format, args...)
	return c
}

func (c Check) notRead() Check {
	c.unread = true
	return c
}

// Question is a request that one pod sends to another.
type Question struct {
	URL string
	// Bytes is the size of the request's payload, and of the answer's.
	Bytes int
	// Attempt is the timeout of one request. Within is how long the pod retries until it observes the expected outcome.
	Attempt, Within time.Duration
	Refused         bool
}

type Answer struct {
	Pod string `json:"pod"`
	// Client is the request's source address and port, as the answering pod sees it.
	Client   string `json:"client"`
	Received int    `json:"received"`
}

type Reason string

// The reasons. Timeout is the result of dropped packets, and Unroutable that of the agents' unreachable route.
const (
	Timeout    Reason = "timeout"
	Closed     Reason = "refused"
	Unroutable Reason = "unreachable"
	NoName     Reason = "no such name"
	Other      Reason = "error"
)

// Outcome is the result of the last attempt of a question.
type Outcome struct {
	Answered bool   `json:"answered"`
	Answer   Answer `json:"answer"`
	Reason   Reason `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
	// Seconds is the duration of the last attempt, and the second field that of all attempts.
	Seconds float64 `json:"seconds"`
	Total   float64 `json:"total"`
	// PathMTU is the path MTU that the asking pod's kernel knows at the end of the connection; 0 if unknown.
	PathMTU int `json:"pathMTU,omitempty"`
}

func (o Outcome) said() string { return fmt.Sprintf("no answer in %.1f s: %s", o.Total, o.Error) }

type Pod struct {
	Name string       `json:"name"`
	Node string       `json:"node"`
	IPs  []netip.Addr `json:"ips"`
}

func JudgePodIP(c Check, client, server Pod, ip netip.Addr, o Outcome) Check {
	path := fmt.Sprintf("%s on %s → %s on %s", client.Name, client.Node, ip, server.Node)
	switch {
	case !o.Answered && o.Reason == Unroutable:
		return c.failed(finding.PodUnreachable, fmt.Sprintf("semaphorectl status --agent %s in %s: the device, its routes "+
			"and its peers", client.Node, c.From), "%s: %s", path, o.said())
	case !o.Answered:
		return c.failed(finding.PodUnreachable, fmt.Sprintf("semaphorectl status of both clusters; UDP between the nodes; "+
			"policies in %s that deny pods of %s", c.To, c.From), "%s: %s", path, o.said())
	case o.Answer.Pod != server.Name:
		return c.failed(finding.AnotherPodAnswers, "look for another pod or host with that address",
			"%s: pod %q answered, not %s", path, o.Answer.Pod, server.Name)
	}
	seen, _, err := net.SplitHostPort(o.Answer.Client)
	from, parseErr := netip.ParseAddr(seen)
	if err != nil || parseErr != nil || !slices.Contains(client.IPs, from.Unmap()) {
		return c.failed(finding.SourceRewritten, fmt.Sprintf("an IPPool of %s with the pods of %s, disabled, "+
			"natOutgoing: false (manageIPPools), or the like of the CNI", c.From, c.To),
			"%s: it saw the address %s, not the pod's %s: something on the way applies SNAT", path, seen,
			strings.Join(show.Texts(client.IPs), ", "))
	}
	return c.passed("%s, which saw %s: %s", path, seen, millis(o.Seconds))
}

func millis(seconds float64) string { return fmt.Sprintf("%.0f ms", seconds*1000) }

// JudgePathMTU judges a request that is much larger than a packet, after a small one was answered.
func JudgePathMTU(c Check, bytes int, o Outcome) Check {
	if !o.Answered {
		return c.failed(finding.LargePayloadLost,
			"semaphorectl status --agent: MTU of the device; let ICMP \"fragmentation "+
				"needed\" pass, or set wireguard.mtu", "small requests are answered, %s each way are not: %s", size(bytes),
			o.said())
	}
	known := ""
	if o.PathMTU > 0 {
		known = fmt.Sprintf("; the pod's kernel knows a path MTU of %d", o.PathMTU)
	}
	return c.passed("%s each way in %s%s", size(bytes), millis(o.Seconds), known)
}

func size(bytes int) string {
	if bytes%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// Device is an agent's report about its node's device for the other cluster, before and after a transfer.
type Device struct {
	Cluster, Node string
	Before, After *semaphorev1.DeviceStatus
	// Err is why the agent did not report.
	Err string
}

// JudgeEncryption judges a transfer of bytes each way between the sender's pod and ip: the packets must have passed the
// devices of both nodes. It does not judge the packets on the link, which no agent sees.
func JudgeEncryption(c Check, bytes int, ip netip.Addr, sender, receiver Device) Check {
	var seen []string
	for _, side := range []struct {
		Device
		other string
		sends bool
	}{{sender, c.To, true}, {receiver, c.From, false}} {
		where, fix := side.Cluster+"/"+side.Node, "semaphorectl status --agent "+side.Node+" in "+side.Cluster
		d := side.After
		sent := grown(side.Before.GetSentBytes(), d.GetSentBytes())
		received := grown(side.Before.GetReceivedBytes(), d.GetReceivedBytes())
		switch {
		case side.Err != "":
			return c.failed(finding.NotEncrypted, "semaphorectl status of "+side.Cluster,
				"packets passed, and nothing shows that they were encrypted: the agent of %s cannot be asked: %s", where,
				side.Err)
		case d == nil:
			return c.failed(finding.NotEncrypted, fix, "%s has no device for %s, and packets passed", where, side.other)
		case side.sends && !routed(d.GetRoutes(), ip):
			return c.failed(finding.NotEncrypted, fix, "%s: no route into %s leads to %s, of %s", where, d.GetInterface(), ip,
				strings.Join(d.GetRoutes(), " "))
		case sent < uint64(bytes) || received < uint64(bytes):
			return c.failed(finding.NotEncrypted,
				fix+": the routes; a permissive remote sends in the clear until both ends are ready",
				"%s: %d bytes went each way, and %s sent only %d and received %d", where, bytes, d.GetInterface(), sent,
				received)
		case d.GetLastHandshake() == nil:
			return c.failed(finding.NotEncrypted, fix, "%s: %s has no handshake", where, d.GetInterface())
		}
		seen = append(seen, fmt.Sprintf("%s of %s sent %d and received %d bytes", d.GetInterface(), where, sent, received))
	}
	return c.passed("of %d bytes each way %s; the route to %s leads into the device; not looked at: packets on the link",
		bytes, strings.Join(seen, ", "), ip)
}

// grown returns the increase of a counter. If the device was created again between, the counter restarted at 0.
func grown(before, after uint64) uint64 {
	if after < before {
		return after
	}
	return after - before
}

func routed(routes []string, ip netip.Addr) bool {
	return slices.ContainsFunc(routes, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(ip)
	})
}

// Service is a Service that a broker created for one of another cluster. The zero value is one that does not exist.
type Service struct {
	Namespace, Name string
	Sought          string
	// Waited is how long verify waited for it, in seconds.
	Waited float64
}

// JudgeMirror judges the Service that the broker of From created for the Service of To, and a request to it.
func JudgeMirror(c Check, s Service, server Pod, o Outcome) Check {
	if s.Name == "" {
		return c.failed(finding.MirrorMissing,
			fmt.Sprintf("export rules of %s, and problems in semaphorectl status of both "+
				"clusters; kubectl describe service shows the result of an offer", c.To),
			"%s has no Service for %s of %s after %.0f s", c.From, s.Sought, c.To, s.Waited)
	}
	return c.answered(finding.ServiceUnreachable,
		"its EndpointSlices, kube-proxy, and drains (semaphorectl get drains) in "+
			c.From, s.Namespace+"/"+s.Name, server, o)
}

func JudgeDNS(c Check, name string, server Pod, o Outcome) Check {
	if o.Reason == NoName {
		return c.failed(finding.NameUnresolved,
			"semaphorectl check --context of "+c.From+": the Corefile; NodeLocal DNSCache",
			"%s does not resolve: %s", name, o.Error)
	}
	return c.answered(finding.ServiceUnreachable, "the mirror that the name leads to in "+c.From, name, server, o)
}

func (c Check) answered(code finding.Code, fix, what string, server Pod, o Outcome) Check {
	switch {
	case !o.Answered:
		return c.failed(code, fix, "%s: %s", what, o.said())
	case o.Answer.Pod != server.Name:
		return c.failed(finding.AnotherPodAnswers, "which endpoints it has", "%s: pod %q answered, not %s", what,
			o.Answer.Pod, server.Name)
	}
	return c.passed("%s: %s", what, millis(o.Seconds))
}

// Set describes the set that the policy admits, as the broker of To has it.
type Set struct {
	// Err is why the broker did not answer; empty if it did.
	Err       string
	Addresses []string
}

// JudgePolicy judges a policy in To that admits only pods of From's set to the server: admitted is the outcome of the
// client, a pod in the set, and refused that of the stranger, a pod outside of it. Without the policy, the server
// answered both.
func JudgePolicy(c Check, client, stranger Pod, set Set, admitted, refused Outcome) Check {
	fix := fmt.Sprintf("semaphorectl get sets and explain in %s; export rules in %s", c.To, c.From)
	switch {
	case refused.Answered:
		return c.failed(finding.PolicyIgnored, "Felix on the node of the server in "+c.To,
			"the policy admits only %s, and %s, which is in no set, is answered %.0f s after", client.Name, stranger.Name,
			refused.Total)
	case !admitted.Answered && set.Err != "":
		return c.failed(finding.PolicyRefuses, fix, "%s gets %s; whether a set of %s has it is not known: %s", client.Name,
			admitted.said(), c.To, set.Err)
	case !admitted.Answered && len(set.Addresses) == 0:
		return c.failed(finding.SetMissing, fix, "%s has no set with the pod %s of %s", c.To, client.Name, c.From)
	case !admitted.Answered:
		return c.failed(finding.PolicyRefuses, fix, "the set has %s, and its pod %s gets %s",
			strings.Join(set.Addresses, " "), client.Name, admitted.said())
	}
	return c.passed("%s, which is in the set, is admitted after %.1f s; %s is refused (%s)", client.Name, admitted.Total,
		stranger.Name, refused.Reason)
}

// JudgeCleanup judges the removal of the objects that were created. left is why some remain.
func JudgeCleanup(c Check, namespace string, left error) Check {
	if left != nil {
		return c.failed(finding.LeftBehind,
			"semaphorectl check --traffic --clean; kubectl describe namespace "+namespace, "%s",
			strings.ReplaceAll(left.Error(), "\n", "; "))
	}
	return c.passed("namespace %s is gone, and the broker has no Service and no set of it", namespace)
}
