package policy

import (
	"fmt"
	"slices"
	"strings"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// missing returns changes that would admit the packet. For a set that no rule selects it names the selector that would.
func (e *explainer) missing(policies []policy) []string {
	var out []string
	for _, p := range policies {
		for i := range p.rules {
			r := &p.rules[i]
			if r.Action != calicov3.Allow {
				continue
			}
			remote, _ := e.ends(r)
			if s, ok := e.hidden(p, remote); ok {
				out = append(
					out,
					fmt.Sprintf("%s, "+e.direction()+" rule %d: add `namespaceSelector: global()` beside the selector: a "+
						"rule of one namespace does not see %s, which is in none", p.title, i+1, s.name),
				)
			}
		}
	}
	switch {
	case len(out) > 0:
		return out
	case len(e.sets) == 0 && len(e.unknown) > 0: // one that was not read may have it
		return nil
	case len(e.sets) == 0:
		return []string{fmt.Sprintf("%s is in no network set of this cluster, so only a rule that names its subnet can "+
			"allow it", e.packet.From)}
	}
	end := "source"
	if e.packet.Egress {
		end = "destination"
	}
	return []string{fmt.Sprintf("an "+e.direction()+" rule with action Allow and "+end+".selector %q (in a policy of "+
		"one namespace with namespaceSelector: global() for a GlobalNetworkSet)", e.suggestion())}
}

// suggestion returns a selector for the first set that contains the source, by its labels.
func (e *explainer) suggestion() string {
	labels := e.sets[0].labels
	var parts []string
	for _, suffix := range []string{"/name", "/namespace", "/cluster"} {
		for k, v := range labels {
			if strings.HasSuffix(k, suffix) && !strings.HasPrefix(k, namespacePrefix) && k != calicov3.LabelNamespace {
				parts = append(parts, fmt.Sprintf("%s == '%s'", k, v))
			}
		}
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return "one that selects " + e.sets[0].name
	}
	return strings.Join(parts, " && ")
}
