// Package explain collects the facts that decide whether a pod reaches another in another cluster. Package policy
// judges it.
package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type explainer struct {
	target         fleet.Target
	from, to, port string
	sets           string
	timeout        time.Duration
	// domain and coredns are for the path.
	domain, coredns string
	output          *show.Outputs
}

func Command(access *fleet.Access) *cobra.Command {
	e := explainer{target: fleet.Target{Access: access, Parts: []string{fleet.Broker}, ReadsCluster: true}}
	cmd := &cobra.Command{
		Use:   "explain FROM TO | --from CLUSTER/NAMESPACE/POD --to NAMESPACE/POD",
		Short: "find out why a pod cannot reach a pod or Service of another cluster",
		Long: `Says whether a pod reaches a pod or a Service of another cluster, and where the path is broken: name, DNS
block, mirror Service, endpoints, kube-proxy, route, device, peer, handshake, path MTU, far node, Calico's pools, set,
and policies on both sides. Give the contexts of both clusters: without one, it names the links that it could not
examine. It changes nothing; to measure the path MTU, the agents of the two nodes send each other some datagrams.

  semaphorectl explain --context c1 --context c2 c1/shop/client echo.shop.svc.clusterset.local:8080
  semaphorectl explain --context c1 --context c2 shop/client c2/shop/echo-7d9f

FROM is a pod, [CLUSTER/]NAMESPACE/NAME, a Service whose pods send, or the IP of a pod. TO is a pod or a Service in
the same form, an IP, or a name of the DNS; also a Service of FROM's own cluster that asks for endpoints of others
(semaphore.uw.io/own-name). docs/explain.md has each link with its causes.

With --from and --to, it judges the policies of one cluster alone: whether the remote pod's IP is in a set there,
which policies select the local pod, what each makes of a packet between the two, and what is missing where it is
denied. It reads the broker's sets, and, with the caller's own kubeconfig, the policies, network sets and the pod; it
changes nothing.

  semaphorectl explain --context c1 --from c2/shop/web-7d9f --to default/db-0 --port 5432

Who may not exec into the broker's pod takes the sets from someone who may:
  semaphorectl get sets --context c1 -o json > sets.json
  semaphorectl explain --sets sets.json --from c2/shop/web-7d9f --to default/db-0 --port 5432

Only the ingress of the local pod is judged there.

Exit code 0 when no link is broken, or the packet is allowed; 1 when this cannot be said; 2 when a link is broken, or
the packet is denied or depends on something.`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				switch {
				case e.from == "" || e.to == "":
					return errors.New("give FROM and TO, or --from and --to")
				case e.output.Chosen != "text":
					return fmt.Errorf("--output %s: with FROM and TO only", e.output.Chosen)
				}
				return e.run(cmd)
			}
			if len(args) != 2 || e.from != "" || e.to != "" || e.sets != "" {
				return errors.New("give FROM and TO, without --from, --to and --sets")
			}
			return e.path(cmd, args[0], args[1])
		},
	}
	e.target.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&e.from, "from", "", "policies alone: the remote pod, CLUSTER/NAMESPACE/POD, or its address")
	f.StringVar(&e.to, "to", "", "policies alone: the local pod, NAMESPACE/POD")
	f.StringVar(&e.port, "port", "",
		"PORT, PORT/UDP or PORT/SCTP; when absent any of TCP, or the only one of a Service")
	e.output = show.OutputFlag(cmd, "text", "json", "yaml")
	f.StringVar(&e.coredns, "coredns", fleet.Corefile,
		"with FROM and TO, NAMESPACE/NAME[/KEY] of the ConfigMap with CoreDNS's configuration; none to not look")
	f.StringVar(&e.domain, "cluster-domain", dns.DefaultClusterDomain,
		"with FROM and TO, the domain of the cluster's own services")
	f.StringVar(&e.sets, "sets", "",
		"`file` with what semaphorectl get sets -o json printed, - for standard input, instead of asking the broker")
	show.TimeoutFlag(cmd, &e.timeout, 30*time.Second)
	show.CompleteFlag(cmd, "from", fleet.CompleteSets(&e.target, true))
	show.CompleteFlag(cmd, "to", fleet.CompleteNamespaced(access, fleet.PodsGVR))
	return show.CompleteArgs(cmd, 2, fleet.CompleteNamespaced(access, fleet.PodsGVR, fleet.ServicesGVR)) // FROM and TO
}

// parseEnds understands --from, a remote pod or an address, and --to, a pod of this cluster.
func (e *explainer) parseEnds() (from, to end, err error) {
	if from, err = parseEnd(e.from); err != nil || from.port+from.host != "" ||
		!from.address.IsValid() && from.cluster == "" {
		return from, to, fmt.Errorf("--from %q: use CLUSTER/NAMESPACE/POD or an IP address", e.from)
	}
	if to, err = parseEnd(e.to); err != nil || to.port+to.host+to.cluster != "" || to.address.IsValid() {
		return from, to, fmt.Errorf("--to %q: use NAMESPACE/POD, of this cluster", e.to)
	}
	return from, to, nil
}

func setsWith(from end) *semaphorev1.ListSetsRequest {
	if from.address.IsValid() {
		return &semaphorev1.ListSetsRequest{Address: from.address.String()}
	}
	return &semaphorev1.ListSetsRequest{Cluster: from.cluster, Namespace: from.namespace, Pod: from.name}
}

func parsePort(text string) (port uint16, protocol string, err error) {
	if text == "" {
		return 0, "TCP", nil
	}
	number, protocol, found := strings.Cut(text, "/")
	if !found {
		protocol = "TCP"
	}
	n, err := strconv.ParseUint(number, 10, 16)
	protocol = strings.ToUpper(protocol)
	if err != nil || n == 0 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, protocol) {
		return 0, "", fmt.Errorf("--port %q: use a number from 1 to 65535, with /UDP or /SCTP where it is not TCP's", text)
	}
	return uint16(n), protocol, nil
}

func (e *explainer) run(cmd *cobra.Command) error {
	from, to, err := e.parseEnds()
	if err != nil {
		return err
	}
	port, protocol, err := parsePort(e.port)
	if err != nil {
		return err
	}
	c, err := e.target.Access.Cluster()
	if err != nil {
		return err
	}
	sets, err := e.brokerSets(cmd, from)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), e.timeout)
	defer cancel()
	cluster, pod, err := readFor(ctx, c.Objects, to.namespace, to.name)
	if err != nil {
		return err
	}
	denied, err := explainTo(cmd.OutOrStdout(), from, sets, cluster, pod, port, protocol)
	if err == nil && denied != "" {
		err = program.ExitError{Code: show.ExitWrong, Err: errors.New(show.Printable(denied))}
	}
	return err
}

func (e *explainer) brokerSets(cmd *cobra.Command, from end) (*fleet.BrokerSets, error) {
	if e.sets == "" {
		return fleet.AskSets(cmd.Context(), &e.target, setsWith(from), e.timeout)
	}
	var data []byte
	var err error
	if e.sets == "-" {
		data, err = io.ReadAll(cmd.InOrStdin())
	} else {
		data, err = os.ReadFile(e.sets)
	}
	if err != nil {
		return nil, fmt.Errorf("--sets: %w", err)
	}
	all, err := fleet.ReadSets(data)
	if err != nil {
		return nil, fmt.Errorf("--sets %s: %w", e.sets, err)
	}
	all.Sets = slices.DeleteFunc(all.Sets, func(s *semaphorev1.PolicySet) bool { return len(podsOf(s, from)) == 0 })
	return all, nil
}

func podsOf(s *semaphorev1.PolicySet, from end) []*semaphorev1.SetPod {
	var out []*semaphorev1.SetPod
	for _, p := range s.GetPods() {
		if from.address.IsValid() && slices.Contains(p.GetIps(), from.address.String()) ||
			!from.address.IsValid() && s.GetCluster() == from.cluster && s.GetNamespace() == from.namespace &&
				p.GetName() == from.name {
			out = append(out, p)
		}
	}
	return out
}

// explainTo prints the explanation. denied is the verdict in one sentence, if not everything is allowed.
func explainTo(w io.Writer, from end, sets *fleet.BrokerSets, cluster *policy.Cluster, pod *corev1.Pod, port uint16,
	protocol string) (denied string, err error) {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	what := protocol
	if port != 0 {
		what = fmt.Sprintf("%s port %d", protocol, port)
	}
	say("%s → %s/%s of %s, %s", from.text, pod.Namespace, pod.Name, sets.Cluster, what)
	ips := describeSource(say, from, sets)
	if pod.Spec.HostNetwork {
		say("\n%s/%s is on the host network: policies for pods do not apply to it, those for host endpoints do, and are "+
			"not looked at", pod.Namespace, pod.Name)
		return "the local pod is on the host network", show.PrintLines(w, text.String())
	}
	if len(ips) == 0 {
		denied = "there is no address to judge"
	}
	for _, ip := range ips {
		r := policy.Explain(cluster, policy.Packet{From: ip, To: pod, Protocol: protocol, Port: port})
		say("\nfrom %s: %s. %s", ip, strings.ToUpper(r.Verdict.String()), sentence(r.Why))
		for _, s := range r.InSets {
			say("  in %s", s)
		}
		if len(r.InSets) == 0 {
			say("  in no network set%s", cluster.ThatWasRead())
		}
		if len(r.Policies) > 0 {
			say("  policies that select %s/%s, in their order:", pod.Namespace, pod.Name)
		}
		for _, p := range r.Policies {
			say("    %s %s: %s", p.Policy, p.Outcome, p.Detail)
		}
		for _, m := range r.Missing {
			say("  missing: %s", m)
		}
		for _, o := range r.OpenToRemotes {
			say("  warning: %s", o)
		}
		for _, n := range r.NotEvaluated {
			say("  not evaluated: %s", n)
		}
		if r.Verdict != policy.Allowed && denied == "" {
			denied = fmt.Sprintf("from %s: %s: %s", ip, r.Verdict, r.Why)
		}
	}
	return denied, show.PrintLines(w, text.String())
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// describeSource prints the broker's knowledge of the source, and returns its addresses.
func describeSource(say func(string, ...any), from end, sets *fleet.BrokerSets) []netip.Addr {
	var ips []netip.Addr
	for _, s := range sets.Sets {
		for _, p := range podsOf(s, from) {
			say("%s/%s/%s is in set %s, last update %s ago: %s", s.GetCluster(), s.GetNamespace(), p.GetName(),
				show.SetName(s), show.Age(sets.Now, finding.TimeOf(s.GetLastHeard())), show.SetState(s))
			for _, text := range p.GetIps() {
				if ip, err := netip.ParseAddr(text); err == nil && !slices.Contains(ips, ip) {
					ips = append(ips, ip)
				}
			}
		}
	}
	if from.address.IsValid() {
		if len(ips) == 0 {
			say("no pod of a set has %s", from.address)
		}
		return []netip.Addr{from.address}
	}
	if len(ips) > 0 {
		return ips
	}
	i := slices.IndexFunc(sets.Links, func(l *semaphorev1.LinkStatus) bool { return l.GetCluster() == from.cluster })
	switch {
	case i < 0:
		say("the broker of %s has no remote %q", sets.Cluster, from.cluster)
	case !sets.Links[i].GetConnected():
		say("%s is not connected since %s (%s): changes there since then are not known here", from.cluster,
			show.Short(sets.Now.Sub(sets.Links[i].GetSince().AsTime())), sets.Links[i].GetLastError())
	default:
		say("%s exports no such pod. It exports only pods with the set label (DOMAIN/name), while they have an "+
			"IP of their own and have not ended, and no pods on the host network. "+
			"Give its address to --from to have that judged.", from.cluster)
	}
	return nil
}
