package explain

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/program"
)

type end struct {
	text string
	// address is set for an IP; host for a name of the DNS. cluster may be empty.
	address                  netip.Addr
	host                     string
	cluster, namespace, name string
	port                     string
}

// parseEnd understands an IP, a name such as echo.shop.svc.cluster.c2, [CLUSTER/]NAMESPACE/NAME of a pod or a Service.
// Of names and IPs a port may follow, as in URLs.
func parseEnd(text string) (end, error) {
	e := end{text: text}
	if a, err := netip.ParseAddr(text); err == nil {
		e.address = a.Unmap()
		return e, nil
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		e.address, e.port = a.Addr().Unmap(), fmt.Sprint(a.Port())
		return e, nil
	}
	rest, port, ported := strings.Cut(text, ":")
	if ported {
		if _, _, err := parsePort(port); err != nil {
			return e, fmt.Errorf("%q: the port: use a number from 1 to 65535", text)
		}
		e.port = port
	}
	if parts := strings.Split(rest, "/"); len(parts) == 2 || len(parts) == 3 {
		if slices.Contains(parts, "") {
			return e, fmt.Errorf("%q: use [CLUSTER/]NAMESPACE/NAME", text)
		}
		if len(parts) == 3 {
			e.cluster, parts = parts[0], parts[1:]
		}
		e.namespace, e.name = parts[0], parts[1]
		return e, nil
	}
	// [POD.]NAME.NAMESPACE.svc.cluster.CLUSTER, where only CLUSTER can have dots, or
	// [[POD.]CLUSTER.]NAME.NAMESPACE.svc.clusterset.local.
	host := strings.TrimSuffix(rest, ".")
	service, cluster, found := strings.Cut(host, ".svc.cluster.")
	if before, ok := strings.CutSuffix(host, ".svc."+coredns.ClusterSetDomain); ok {
		service, cluster, found = before, coredns.ClusterSetDomain, true
	}
	if found && cluster != "" {
		if labels := strings.Split(service, "."); len(labels) >= 2 {
			e.host, e.cluster = host, cluster
			e.namespace, e.name = labels[len(labels)-1], labels[len(labels)-2]
			return e, nil
		}
	}
	return e, fmt.Errorf("%q: use [CLUSTER/]NAMESPACE/NAME of a pod or a Service, an IP address, or a name such as "+
		"echo.shop.svc.cluster.c2", text)
}

// path explains the path between two ends, and prints it.
func (e *explainer) path(cmd *cobra.Command, from, to string) error {
	source, err := parseEnd(from)
	if err != nil {
		return fmt.Errorf("FROM %w", err)
	}
	target, err := parseEnd(to)
	if err != nil {
		return fmt.Errorf("TO %w", err)
	}
	if e.port != "" {
		if target.port != "" {
			return errors.New("--port: TO has a port already")
		}
		target.port = e.port
	}
	facts, err := e.gather(cmd.Context(), source, target)
	if err != nil {
		return err
	}
	chain := policy.Judge(*facts)
	if err := printChain(cmd.OutOrStdout(), chain, e.output.Chosen); err != nil {
		return err
	}
	if chain.Broken() != nil {
		return program.ExitError{Code: show.ExitWrong, Err: errors.New(show.Printable(chainVerdict(chain)))}
	} else if chain.Depends() != nil {
		return errors.New(show.Printable(chainVerdict(chain)))
	}
	return nil
}

func chainVerdict(c *policy.Chain) string {
	if b := c.Broken(); b != nil {
		return fmt.Sprintf("does not reach: %s (%s): %s", b.Title, b.Code, b.Fault)
	}
	if d := c.Depends(); d != nil {
		return fmt.Sprintf("not known: %s (%s): %s", d.Title, d.Code, strings.Join(d.Evidence, "; "))
	}
	examined := c.Count(policy.OK)
	unknown := c.Count(policy.Unknown)
	if unknown == 0 {
		return fmt.Sprintf("reaches: none of %d links is broken", examined)
	}
	return fmt.Sprintf("reaches, as far as is known: none of %d links is broken, and %d could not be examined", examined,
		unknown)
}

func printChain(w io.Writer, c *policy.Chain, output string) error {
	broken := c.Broken()
	if output != "text" {
		said := struct {
			*policy.Chain
			Reaches *bool        `json:"reaches"` // null where it is not known
			Verdict string       `json:"verdict"`
			Broken  *policy.Link `json:"broken,omitempty"`
		}{c, nil, chainVerdict(c), broken}
		if broken != nil || c.Depends() == nil {
			said.Reaches = new(broken == nil)
		}
		return show.PrintValue(w, said, output)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s → %s\n%s\n", c.From, c.To, chainVerdict(c))
	if broken != nil && broken.Fix != "" {
		fmt.Fprintf(&out, "fix: %s\n", broken.Fix)
	}
	out.WriteString("\n")
	for _, l := range c.Links {
		if l.Verdict == policy.None {
			continue
		}
		evidence := l.Evidence
		if len(evidence) == 0 {
			evidence = []string{""}
		}
		fmt.Fprintf(&out, "%-8s %-30s %-10s %s\n", l.Verdict, l.Title, l.Where, evidence[0])
		for _, more := range evidence[1:] {
			fmt.Fprintf(&out, "%-8s %-30s %-10s %s\n", "", "", "", more)
		}
	}
	if len(c.NotRead) > 0 {
		out.WriteString("\nnot looked at:\n")
		for _, n := range c.NotRead {
			fmt.Fprintf(&out, "  %s\n", n)
		}
	}
	return show.PrintLines(w, out.String())
}
