package ctl

import (
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

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/explain"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// explainer is what a call of explain asks.
type explainer struct {
	target              fleet.Target
	from, to, port      string
	kubeconfig, context string
	sets                string
	timeout             time.Duration
}

func explainCommand() *cobra.Command {
	var e explainer
	cmd := &cobra.Command{
		Use:   "explain --from CLUSTER/NAMESPACE/POD --to NAMESPACE/POD [--port 8080[/UDP]]",
		Short: "say whether this cluster's policies let a remote pod reach one of its own, and what is missing",
		Long: `Says whether a remote pod's address is in a set here, which policies select the local pod, what each makes of a
packet between the two, and what is missing where it is stopped. It reads the broker's sets, and, with the caller's own
kubeconfig, the policies, network sets and the pod; it changes nothing.

From one's own machine, with the broker asked in its pod:

  kubectl -n semaphore exec deploy/semaphore-broker -- semaphorectl policy -o json |
    semaphorectl explain --sets - --from c2/shop/web-7d9f --to default/db-0 --port 5432

Only the ingress of the local pod is judged: what the remote cluster lets out is known there, and asked there.

Exit code 0 when the packet is allowed, 1 when this cannot be said, 2 when it is denied or depends on something.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return e.run(cmd)
		},
	}
	e.target.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&e.from, "from", "", "the remote pod, CLUSTER/NAMESPACE/POD, or its address")
	f.StringVar(&e.to, "to", "", "the local pod, NAMESPACE/POD")
	f.StringVar(&e.port, "port", "", "PORT, PORT/UDP or PORT/SCTP; any of TCP when absent")
	f.StringVar(&e.sets, "sets", "", "file with what `semaphorectl policy -o json` printed, - for standard input, instead of asking the broker")
	f.StringVar(&e.kubeconfig, "kubeconfig", "", "kubeconfig of this cluster (default: as kubectl)")
	f.StringVar(&e.context, "context", "", "context of the kubeconfig")
	f.DurationVar(&e.timeout, "timeout", 20*time.Second, "how long to wait for the answers")
	for _, required := range []string{"from", "to"} {
		if err := cmd.MarkFlagRequired(required); err != nil {
			panic(err) // no such flag
		}
	}
	return cmd
}

// source is the remote end.
type source struct {
	cluster, namespace, pod string
	address                 netip.Addr
}

func parseSource(text string) (source, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return source{address: a.Unmap()}, nil
	}
	parts := strings.Split(text, "/")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return source{}, fmt.Errorf("--from %q: use CLUSTER/NAMESPACE/POD or an IP address", text)
	}
	return source{cluster: parts[0], namespace: parts[1], pod: parts[2]}, nil
}

func (s source) String() string {
	if s.address.IsValid() {
		return s.address.String()
	}
	return s.cluster + "/" + s.namespace + "/" + s.pod
}

func (s source) request() *semaphorev1.ListSetsRequest {
	if s.address.IsValid() {
		return &semaphorev1.ListSetsRequest{Address: s.address.String()}
	}
	return &semaphorev1.ListSetsRequest{Cluster: s.cluster, Namespace: s.namespace, Pod: s.pod}
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
	from, err := parseSource(e.from)
	if err != nil {
		return err
	}
	namespace, name, found := strings.Cut(e.to, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("--to %q: use NAMESPACE/POD, of this cluster", e.to)
	}
	port, protocol, err := parsePort(e.port)
	if err != nil {
		return err
	}
	sets, err := e.brokerSets(cmd, from)
	if err != nil {
		return err
	}
	cluster, pod, err := readCluster(cmd.Context(), e.kubeconfig, e.context, namespace, name, e.timeout)
	if err != nil {
		return err
	}
	denied, err := explainTo(cmd.OutOrStdout(), from, sets, cluster, pod, port, protocol)
	if err == nil && denied != "" {
		err = program.ExitError{Code: cli.ExitWrong, Err: errors.New(cli.Printable(denied))}
	}
	return err
}

func (e *explainer) brokerSets(cmd *cobra.Command, from source) (*brokerSets, error) {
	if e.sets == "" {
		return askSets(cmd.Context(), &e.target, from.request(), e.timeout)
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
	all, err := readSets(data)
	if err != nil {
		return nil, fmt.Errorf("--sets %s: %w", e.sets, err)
	}
	all.Sets = slices.DeleteFunc(all.Sets, func(s *semaphorev1.PolicySet) bool { return len(podsOf(s, from)) == 0 })
	return all, nil
}

// podsOf are the pods of a set that are the source.
func podsOf(s *semaphorev1.PolicySet, from source) []*semaphorev1.SetPod {
	var out []*semaphorev1.SetPod
	for _, p := range s.GetPods() {
		if from.address.IsValid() && slices.Contains(p.GetIps(), from.address.String()) ||
			!from.address.IsValid() && s.GetCluster() == from.cluster && s.GetNamespace() == from.namespace && p.GetName() == from.pod {
			out = append(out, p)
		}
	}
	return out
}

// explainTo prints all there is to say. denied is the verdict in one sentence, where it is not that all is allowed.
func explainTo(w io.Writer, from source, sets *brokerSets, cluster *explain.Cluster, pod *corev1.Pod, port uint16, protocol string) (denied string, err error) {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	what := protocol
	if port != 0 {
		what = fmt.Sprintf("%s port %d", protocol, port)
	}
	say("%s → %s/%s of %s, %s", from, pod.Namespace, pod.Name, sets.Cluster, what)
	ips := describeSource(say, from, sets)
	if pod.Spec.HostNetwork {
		say("\n%s/%s is on the host network: policies for pods do not apply to it, those for host endpoints do, and are not looked at", pod.Namespace, pod.Name)
		return "the local pod is on the host network", cli.PrintLines(w, text.String())
	}
	if len(ips) == 0 {
		denied = "there is no address to judge"
	}
	for _, ip := range ips {
		r := explain.Explain(cluster, explain.Packet{From: ip, To: pod, Protocol: protocol, Port: port})
		say("\nfrom %s: %s. %s", ip, strings.ToUpper(r.Verdict.String()), sentence(r.Why))
		for _, s := range r.InSets {
			say("  in %s", s)
		}
		if len(r.InSets) == 0 {
			say("  in no network set")
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
		if r.Verdict != explain.Allowed && denied == "" {
			denied = fmt.Sprintf("from %s: %s: %s", ip, r.Verdict, r.Why)
		}
	}
	return denied, cli.PrintLines(w, text.String())
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// describeSource says what the broker knows of the source, and returns its addresses.
func describeSource(say func(string, ...any), from source, sets *brokerSets) []netip.Addr {
	var ips []netip.Addr
	for _, s := range sets.Sets {
		for _, p := range podsOf(s, from) {
			say("%s/%s/%s is in set %s, told %s ago: %s", s.GetCluster(), s.GetNamespace(), p.GetName(), setName(s),
				setAge(sets.Now, s.GetLastHeard()), setState(s))
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
		say("%s is not connected since %s (%s): what happened there meanwhile is not known here", from.cluster,
			short(sets.Now.Sub(sets.Links[i].GetSince().AsTime())), sets.Links[i].GetLastError())
	default:
		say("%s tells of no such pod. Only pods that bear the set label (<labelDomain>/name) are told, while they have an IP of their own and have not ended; pods on the host network are not. "+
			"Give its address to --from to have that judged.", from.cluster)
	}
	return nil
}
