package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

const remote = "10.2.0.5"

// world returns a cluster with a pod shop/db and one set of a remote with 10.2.0.5.
func world(t *testing.T, manifests string) (*Cluster, Packet) {
	t.Helper()
	c := &Cluster{
		Namespaces:      map[string]map[string]string{"shop": {"team": "blue"}, "other": {"team": "red"}},
		ServiceAccounts: map[string]map[string]string{"default": {"trust": "low"}},
		GlobalSets: []calicov3.GlobalNetworkSet{{
			ObjectMeta: metav1.ObjectMeta{Name: "c2-web-front", Labels: map[string]string{
				"semaphore.uw.systems/name": "front", "semaphore.uw.systems/namespace": "web",
				"semaphore.uw.systems/cluster": "c2",
			}},
			Spec: calicov3.GlobalNetworkSetSpec{Nets: []string{remote + "/32"}},
		}},
	}
	for _, doc := range strings.Split(manifests, "\n---\n") {
		var kind metav1.TypeMeta
		read := func(into any) {
			t.Helper()
			if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
		}
		if strings.TrimSpace(doc) == "" {
			continue
		}
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case "networking.k8s.io/v1 NetworkPolicy":
			var p networkingv1.NetworkPolicy
			read(&p)
			c.KubePolicies = append(c.KubePolicies, p)
		case "projectcalico.org/v3 NetworkPolicy":
			var p calicov3.NetworkPolicy
			read(&p)
			c.Policies = append(c.Policies, p)
		case "projectcalico.org/v3 GlobalNetworkPolicy":
			var p calicov3.GlobalNetworkPolicy
			read(&p)
			c.GlobalPolicies = append(c.GlobalPolicies, p)
		case "projectcalico.org/v3 NetworkSet":
			var s calicov3.NetworkSet
			read(&s)
			c.Sets = append(c.Sets, s)
		case "projectcalico.org/v3 Tier":
			var s calicov3.Tier
			read(&s)
			c.Tiers = append(c.Tiers, s)
		default:
			t.Fatalf("kind %q", kind.Kind)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "sql",
			ContainerPort: 5432}}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.0.9"}}},
	}
	return c, Packet{From: netip.MustParseAddr(remote), To: pod, Protocol: "TCP", Port: 5432}
}

// calico returns a NetworkPolicy of Calico in shop that selects the pod, with one rule.
func calico(rule string) string {
	return "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: p, namespace: shop}\nspec:\n  " +
		"selector: app == 'db'\n  types: [Ingress]\n  ingress:\n  - " + rule + "\n"
}

func global(name, spec string) string {
	return "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: " + name + "}\nspec: " +
		spec + "\n"
}

func kube(name, ingress string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: " + name +
		", namespace: shop}\nspec:\n  podSelector: {matchLabels: {app: db}}\n  ingress: " + ingress + "\n"
}

func join(docs ...string) string { return strings.Join(docs, "\n---\n") }

const front = `semaphore.uw.systems/name == 'front'`

func TestExplain(t *testing.T) {
	for _, test := range []struct {
		name, manifests string
		change          func(*Packet)
		want            Verdict
		// why, missing and left are parts of the explanation.
		why, missing, left string
	}{
		{"no policy", "", nil, Allowed, "no policy selects the pod", "", ""},
		{"policy for other pods", strings.Replace(calico("{action: Deny}"), "app == 'db'", "app == 'web'", 1), nil, Allowed,
			"no policy selects", "", ""},
		{"policy of another namespace", strings.Replace(calico("{action: Deny}"), "namespace: shop", "namespace: other", 1),
			nil, Allowed, "no policy selects", "", ""},
		{"egress alone", strings.Replace(calico("{action: Deny}"), "types: [Ingress]", "types: [Egress]", 1), nil, Allowed,
			"no policy selects", "", ""},
		{"rule with global()", calico(`{action: Allow, source: {selector: "` + front + `", namespaceSelector: global()}}`),
			nil, Allowed, "rule 1, by GlobalNetworkSet c2-web-front", "", ""},
		{"rule without global()", calico(`{action: Allow, source: {selector: "` + front + `"}}`), nil, Denied,
			"none of them allows", "namespaceSelector: global()", ""},
		{"rule with all()", calico(`{action: Allow, source: {selector: "` + front + `", namespaceSelector: all()}}`), nil,
			Denied, "none of them allows", "an ingress rule with action Allow", ""},
		{"rule for another set", calico(`{action: Allow, source: {selector: "semaphore.uw.systems/name == 'back'", ` +
			`namespaceSelector: global()}}`), nil, Denied, "none of them",
			"semaphore.uw.systems/cluster == 'c2' && semaphore.uw.systems/name == 'front' && semaphore.uw.systems/namespace " +
				"== 'web'", ""},
		{"global policy needs no global()",
			global("g", `{selector: "app == 'db'", ingress: [{action: Allow, source: {selector: "`+front+`"}}]}`), nil,
			Allowed,
			"by GlobalNetworkSet c2-web-front", "", ""},
		{"global policy by namespace labels", global("g", `{namespaceSelector: "team == 'red'", types: [Ingress]}`), nil,
			Allowed, "no policy selects", "", ""},
		{"global policy by the name of the namespace",
			global("g", `{namespaceSelector: "projectcalico.org/name == 'shop'", types: [Ingress]}`), nil, Denied,
			"tier default", "", ""},
		{"global policy by the name of the ServiceAccount",
			global("g", `{serviceAccountSelector: "has(projectcalico.org/name)", types: [Ingress]}`), nil, Denied,
			"tier default", "", ""},
		{"global policy by ServiceAccount labels",
			global("g", `{serviceAccountSelector: "trust == 'low'", types: [Ingress]}`), nil, Denied, "tier default", "", ""},
		{"global policy for hosts",
			global("g",
				`{selector: all(), preDNAT: true, applyOnForward: true, types: [Ingress], ingress: [{action: Deny}]}`),
			nil, Allowed, "no policy selects", "", "host endpoints only"},
		{"set of the namespace", join("apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {name: s, namespace: "+
			"shop, labels: {kind: remote}}\nspec: {nets: [10.2.0.0/24]}",
			calico(`{action: Allow, source: {selector: "kind == 'remote'"}}`)), nil, Allowed, "by NetworkSet shop/s", "", ""},
		{"set of another namespace", join("apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {name: s, "+
			"namespace: other, labels: {kind: remote}}\nspec: {nets: [10.2.0.0/24]}",
			calico(`{action: Allow, source: {selector: "kind == 'remote'"}}`)), nil, Denied, "", "", ""},
		{"set of namespaces by label", join("apiVersion: projectcalico.org/v3\nkind: NetworkSet\nmetadata: {name: s, "+
			"namespace: other, labels: {kind: remote}}\nspec: {nets: [10.2.0.0/24]}",
			calico(`{action: Allow, source: {selector: "kind == 'remote'", namespaceSelector: "team == 'red'"}}`)), nil,
			Allowed,
			"by NetworkSet other/s", "", ""},
		{"nets", calico(`{action: Allow, source: {nets: [10.2.0.0/16]}}`), nil, Allowed, "by nets 10.2.0.0/16", "", ""},
		{"other nets", calico(`{action: Allow, source: {nets: [10.3.0.0/16]}}`), nil, Denied, "", "", ""},
		{"notNets", calico(`{action: Allow, source: {notNets: [10.2.0.0/16]}}`), nil, Denied, "", "", ""},
		{"notSelector of the own namespace", calico(`{action: Allow, source: {notSelector: "kind == 'other'"}}`), nil,
			Denied,
			"none of them allows", "", ""},
		{"notSelector", calico(`{action: Allow, source: {namespaceSelector: global(), notSelector: "` + front + `"}}`), nil,
			Denied, "", "", ""},
		{"a local ServiceAccount", calico(`{action: Allow, source: {serviceAccounts: {names: [front]}}}`), nil, Denied,
			"", "", ""},
		{"endpoints of a Service", calico(`{action: Allow, source: {services: {name: a, namespace: shop}}}`), nil, Depends,
			"may allow", "", ""}, // it may be a mirror
		{"endpoints of a Service that are denied",
			calico("{action: Deny, source: {services: {name: a, namespace: shop}}}\n  - {action: Allow}"), nil, Depends,
			"may deny", "", ""},
		{"its port", calico(`{action: Allow, protocol: TCP, destination: {ports: [5432]}}`), nil, Allowed, "", "", ""},
		{"a range of ports", calico(`{action: Allow, protocol: TCP, destination: {ports: ["5000:6000"]}}`), nil, Allowed,
			"", "", ""},
		{"its port by name", calico(`{action: Allow, protocol: TCP, destination: {ports: [sql]}}`), nil, Allowed, "", "",
			""},
		{"another port", calico(`{action: Allow, protocol: TCP, destination: {ports: [80]}}`), nil, Denied, "", "", ""},
		{"notPorts", calico(`{action: Allow, protocol: TCP, destination: {notPorts: [5432]}}`), nil, Denied, "", "", ""},
		{"another protocol", calico(`{action: Allow, protocol: UDP}`), nil, Denied, "", "", ""},
		{"protocol by number", calico(`{action: Allow, protocol: 6}`), nil, Allowed, "", "", ""},
		{"the other family", calico(`{action: Allow, ipVersion: 6}`), nil, Denied, "", "", ""},
		{"ICMP", calico(`{action: Allow, icmp: {type: 8}}`), nil, Denied, "", "", ""},
		{"any port, and a rule for one", calico(`{action: Allow, protocol: TCP, destination: {ports: [80]}}`),
			func(p *Packet) { p.Port = 0 }, Depends, "the port: 80", "", ""},
		{"any port, and whatever it is it is allowed",
			calico("{action: Allow, protocol: TCP, destination: {ports: [80]}}\n  - {action: Allow}"),
			func(p *Packet) { p.Port = 0 }, Allowed, "rule 2", "", ""},
		{"any port, and one is denied",
			calico("{action: Deny, protocol: TCP, destination: {ports: [80]}}\n  - {action: Allow}"),
			func(p *Packet) { p.Port = 0 }, Depends, "may deny", "", ""},
		{"what HTTP asks for", calico(`{action: Allow, http: {methods: [GET]}}`), nil, Depends, "HTTP", "", ""},
		{"the first rule counts", calico("{action: Deny}\n  - {action: Allow}"), nil, Denied, "rule 1", "", ""},
		{"a log is no verdict", calico("{action: Log}\n  - {action: Allow}"), nil, Allowed, "rule 2", "", ""},
		{"another pod by destination", calico(`{action: Allow, destination: {selector: "app == 'web'"}}`), nil, Denied,
			"", "", ""},
		{"the pod by destination", calico(`{action: Allow, destination: {selector: "app == 'db'"}}`), nil, Allowed,
			"", "", ""},

		{"Kubernetes: pods", kube("k", "[{from: [{podSelector: {}}]}]"), nil, Denied, "", "", ""},
		{"Kubernetes: namespaces", kube("k", "[{from: [{namespaceSelector: {}}]}]"), nil, Denied, "", "", ""},
		{"Kubernetes: a block", kube("k", "[{from: [{ipBlock: {cidr: 10.2.0.0/16}}]}]"), nil, Allowed,
			"nets 10.2.0.0/16", "", ""},
		{"Kubernetes: a block without it", kube("k", "[{from: [{ipBlock: {cidr: 10.2.0.0/16, except: [10.2.0.5/32]}}]}]"),
			nil, Denied, "", "", ""},
		{"Kubernetes: pods or a block", kube("k", "[{from: [{podSelector: {}}, {ipBlock: {cidr: 10.2.0.0/16}}]}]"), nil,
			Allowed, "rule 1", "", ""},
		{"Kubernetes: anyone to a port", kube("k", "[{ports: [{port: 5432}]}]"), nil, Allowed, "", "", ""},
		{"Kubernetes: anyone to a named port", kube("k", "[{ports: [{port: sql}]}]"), nil, Allowed, "", "", ""},
		{"Kubernetes: anyone to others", kube("k", "[{ports: [{port: 80, endPort: 90}]}]"), nil, Denied, "", "", ""},
		{"Kubernetes: anyone by UDP", kube("k", "[{ports: [{protocol: UDP}]}]"), nil, Denied, "", "", ""},
		{"Kubernetes: all of TCP, port not asked", kube("k", "[{ports: [{protocol: TCP}]}]"),
			func(p *Packet) { p.Port = 0 },
			Allowed, "", "", ""},
		{"Kubernetes: no rule", kube("k", "[]"), nil, Denied, "", "", ""},
		{"Kubernetes and Calico: either allows",
			join(kube("k", "[]"), calico(`{action: Allow, source: {selector: "`+front+`", namespaceSelector: global()}}`)),
			nil,
			Allowed, "", "", ""},
		{"an earlier order denies", join(global("g", `{order: 1, selector: all(), ingress: [{action: Deny}]}`),
			kube("k", "[{}]")), nil, Denied, "GlobalNetworkPolicy g", "", ""},
		{"a later order does not", join(global("g", `{order: 2000, selector: all(), ingress: [{action: Deny}]}`),
			kube("k", "[{}]")), nil, Allowed, "NetworkPolicy shop/k", "", ""},
		{"no order is last", join(global("g", `{selector: all(), ingress: [{action: Deny}]}`), kube("k", "[{}]")), nil,
			Allowed, "NetworkPolicy shop/k", "", ""},

		{"a tier before denies", join("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\nspec: "+
			"{order: 1}", global("first.g", `{tier: first, selector: all(), types: [Ingress]}`), kube("k", "[{}]")), nil,
			Denied,
			"tier first", "", ""},
		{"a tier before passes", join("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\nspec: "+
			"{order: 1}", global("first.g", `{tier: first, selector: all(), ingress: [{action: Pass}]}`), kube("k", "[{}]")),
			nil, Allowed, "NetworkPolicy shop/k", "", ""},
		{"a tier passes by default",
			join("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\nspec: {order: 1, defaultAction: Pass}",
				global("first.g", `{tier: first, selector: all(), types: [Ingress]}`)), nil, Allowed,
			"after the last tier", "", ""},
		{"a tier after the default one",
			join("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: last}\nspec: {}",
				global("last.g", `{tier: last, selector: all(), ingress: [{action: Deny}]}`), kube("k", "[{}]")), nil, Allowed,
			"NetworkPolicy shop/k", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, p := world(t, test.manifests)
			if test.change != nil {
				test.change(&p)
			}
			got := Explain(c, p)
			said := got.Why
			for _, j := range got.Policies {
				said += "; " + j.Policy + " " + j.Outcome + ": " + j.Detail
			}
			if got.Verdict != test.want || !strings.Contains(got.Why, test.why) {
				t.Errorf("%s: %s\nwant %s: %s", got.Verdict, said, test.want, test.why)
			}
			if missing := strings.Join(got.Missing, "; "); !strings.Contains(missing, test.missing) ||
				got.Verdict == Denied &&
					missing == "" {
				t.Errorf("missing is %q, want %q in it", missing, test.missing)
			}
			if left := strings.Join(got.NotEvaluated, "; "); !strings.Contains(left, test.left) || test.left == "" &&
				left != "" {
				t.Errorf("not evaluated is %q, want %q in it", left, test.left)
			}
			if len(got.InSets) == 0 || got.InSets[0] != "GlobalNetworkSet c2-web-front" {
				t.Errorf("in sets %q", got.InSets)
			}
		})
	}
}

// TestExplainNotKnown: a policy that was not read, or that Felix may drop, could decide otherwise. Then nothing is
// allowed, no set is missing, and the path is not known. A denial by a policy that is known stands, and breaks the
// path. An object that is known to decide nothing changes no verdict.
func TestExplainNotKnown(t *testing.T) {
	const p = "NetworkPolicy shop/p of Calico"
	const bad = p + `: selector "app ==": position 7: the selector ends where a value in quotes is expected`
	selected := calico(`{action: Allow, source: {selector: "` + front + `", namespaceSelector: global()}}`)
	for _, test := range []struct {
		name, manifests string
		// unread is Cluster.UnreadLast if it is about sets or baseline policies, and Cluster.Unread otherwise.
		unread []string
		// says is the reason as far as is known, and left is not evaluated.
		says, left string
	}{
		{"none allows, and something unread may come before", kube("k", "[]"), []string{"1 adminnetworkpolicies"},
			"policies of tier default select the pod, and none of them allows the packet", "1 adminnetworkpolicies"},
		{"denied, and something unread comes after", kube("k", "[]"), []string{"1 baselineadminnetworkpolicies"},
			"policies of tier default select the pod, and none of them allows the packet", "1 baselineadminnetworkpolicies"},
		{"denied, and sets are unread for which no rule asks", kube("k", "[]"), []string{"networksets: timeout"},
			"policies of tier default select the pod, and none of them allows the packet", "networksets: timeout"},
		{"denied and a selector that is none", join(kube("k", "[]"), calico(`{action: Allow, source: {selector: "app =="}}`)),
			nil, "policies of tier default select the pod, and none of them allows the packet", bad},
		{"no policy is seen", "", []string{"globalnetworkpolicies: forbidden"}, "no policy selects the pod for ingress",
			"globalnetworkpolicies: forbidden"},
		{"one allows", calico("{action: Allow}"), []string{"networksets: timeout"}, p + " allows it: ingress rule 1",
			"networksets: timeout"},
		{"one denies", calico("{action: Deny}"), []string{"globalnetworkpolicies: forbidden"},
			p + " denies it: ingress rule 1", "globalnetworkpolicies: forbidden"},
		{"the sets", selected, []string{"globalnetworksets: forbidden"},
			"policies of tier default select the pod, and none of them allows the packet", "globalnetworksets: forbidden"},
		{"the tiers", global("security.g", "{tier: security, selector: all(), ingress: [{action: Deny}]}"),
			[]string{"tiers: forbidden"}, "no policy selects the pod for ingress", "tiers: forbidden"},
		{"a tier that is not there", global("security.g", "{tier: security, selector: all(), ingress: [{action: Deny}]}"),
			nil, "no policy selects the pod for ingress",
			"GlobalNetworkPolicy security.g is of tier security, which is not there"},
		{"a policy's selector", strings.Replace(calico("{action: Deny}"), "app == 'db'", "app ==", 1), nil,
			"no policy selects the pod for ingress", bad},
		{"a source's selector", calico(`{action: Allow, source: {selector: "app =="}}`), nil,
			"policies of tier default select the pod, and none of them allows the packet", bad},
		{"a selector behind the rule that decides", calico("{action: Allow}\n  - {action: Deny, source: {notSelector: " +
			`"app =="}}`), nil, p + " allows it: ingress rule 1", bad},
		{"a destination's selector", calico(`{action: Deny, destination: {notSelector: "app =="}}` +
			"\n  - {action: Allow}"), nil, p + " allows it: ingress rule 2", bad},
	} {
		c, packet := world(t, test.manifests)
		if last := strings.Join(test.unread, ""); strings.Contains(last, "sets") || strings.Contains(last, "baseline") {
			c.UnreadLast = test.unread
		} else {
			c.Unread = test.unread
		}
		if test.name == "the sets" {
			c.GlobalSets = nil
		}
		got := Explain(c, packet)
		verdict, link := Depends, Unknown
		if strings.Contains(test.name, "denied") {
			verdict, link = Denied, Broken
		}
		if want := test.says + ", as far as is known; not evaluated: " + test.left; got.Verdict != verdict ||
			got.Why != want || got.NotEvaluated[0] != test.left {
			t.Errorf("%s: %s: %s; want %s; not evaluated: %q", test.name, got.Verdict, got.Why, want,
				got.NotEvaluated)
		}
		if test.name == "the sets" && !strings.Contains(got.Policies[0].Detail, "no network set that was read holds") {
			t.Errorf("%+v", got.Policies)
		}
		if missing := strings.Join(got.Missing, "; "); strings.Contains(missing, "no network set") {
			t.Errorf("%s: missing is %q", test.name, missing)
		}
		for _, code := range []finding.Code{finding.PathPolicyIn, finding.PathPolicyOut} {
			f := good()
			if f.Ingress = &got; code == finding.PathPolicyOut {
				f.Ingress, f.Egress = f.Egress, &got
			}
			chain := Judge(*f)
			for _, l := range chain.Links {
				want := OK
				if l.Code == code || l.Code == finding.PathSet && verdict == Depends {
					want = link
				}
				if l.Verdict != want {
					t.Errorf("%s: link %s is %s, want %s: %q", test.name, l.Title, l.Verdict, want, l.Evidence)
				}
			}
			if d := chain.Depends(); (d != nil) != (verdict == Depends) || d != nil && d.Code != code {
				t.Errorf("%s: the path depends on %+v", test.name, d)
			}
		}
	}
	c, packet := world(t, "")
	c.Aside = []string{"Calico's policies and sets: the cluster serves none"}
	if got := Explain(c, packet); got.Verdict != Allowed || !slices.Equal(got.NotEvaluated, c.Aside) {
		t.Errorf("without Calico: %s: %s; not evaluated: %q", got.Verdict, got.Why, got.NotEvaluated)
	}
}

func TestExplainUnknownSource(t *testing.T) {
	c, p := world(t, calico(`{action: Allow, source: {selector: "`+front+`", namespaceSelector: global()}}`))
	p.From = netip.MustParseAddr("10.2.0.6")
	got := Explain(c, p)
	if got.Verdict != Denied || len(got.InSets) != 0 || len(got.Missing) != 1 ||
		!strings.Contains(got.Missing[0], "in no network set") {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(got.Policies[0].Detail, "no network set holds 10.2.0.6") {
		t.Errorf("%q", got.Policies[0].Detail)
	}
}

// TestSetOfARule: an address in no set lacks one where a rule would admit it, and not where a rule would deny it.
func TestSetOfARule(t *testing.T) {
	for action, needs := range map[string]bool{"Allow": true, "Pass": true, "Deny": false} {
		c, p := world(t, calico("{action: "+action+`, source: {selector: "threat == 'feed'", namespaceSelector: global()}}`))
		p.From = netip.MustParseAddr("10.2.0.6")
		if got := Explain(c, p); got.Verdict != Denied || got.NeedsSet != needs {
			t.Errorf("%s: %s, needs a set: %t", action, got.Verdict, got.NeedsSet)
		}
	}
}

// TestExplainEgress: the egress rules of the same policies apply to packets of the local pod.
func TestExplainEgress(t *testing.T) {
	const selected = `{action: Allow, destination: {selector: "` + front + `", namespaceSelector: global(), ports: [80]}}`
	calicoOut := func(spec string) string {
		return "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: out, namespace: shop}\nspec: " +
			spec
	}
	kubeOut := func(spec string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: k, namespace: shop}\nspec: " + spec
	}
	for _, test := range []struct {
		name, manifests string
		port            uint16
		want            Verdict
		why             string
		needsSet        bool
	}{
		{"none", "", 80, Allowed, "no policy selects the pod for egress", false},
		{"about ingress", kubeOut("{podSelector: {}, ingress: []}"), 80, Allowed, "for egress", false},
		{"none allowed", kubeOut("{podSelector: {}, policyTypes: [Egress]}"), 80, Denied, "none of them allows", false},
		{"to anywhere", kubeOut("{podSelector: {}, egress: [{}]}"), 80, Allowed, "egress rule 1", false},
		{"another port", kubeOut("{podSelector: {}, egress: [{ports: [{port: 53}]}]}"), 80, Denied, "none of them", false},
		{"its subnet", kubeOut("{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.2.0.0/16}}]}]}"), 80, Allowed,
			"rule 1", false},
		{"own pods", kubeOut("{podSelector: {}, egress: [{to: [{podSelector: {}}]}]}"), 80, Denied, "none of them", false},
		{"its set", calicoOut("{selector: all(), types: [Egress], egress: [" + selected + "]}"), 80, Allowed,
			"egress rule 1", false},
		{"its set, another port", calicoOut("{selector: all(), egress: [" + selected + "]}"), 81, Denied,
			"none of them", false},
		{"denied", calicoOut("{selector: all(), egress: [{action: Deny}]}"), 80, Denied, "egress rule 1", false},
		{"a Service", calicoOut("{selector: all(), egress: [{action: Allow, destination: {services: {name: web, namespace: " +
			"semaphore}}}]}"), 80, Depends, "the endpoints of Service semaphore/web", false},
		{"in no set", calicoOut("{selector: all(), egress: [" + selected + "]}"), 80, Denied, "none of them", true},
		{"a port that the client's own pod names so", kubeOut("{podSelector: {}, egress: [{ports: [{port: sql}]}]}"), 5432,
			Denied, "none of them", false},
		{"any port, where only a name is allowed", kubeOut("{podSelector: {}, egress: [{ports: [{port: sql}]}]}"), 0,
			Denied, "none of them", false},
	} {
		c, p := world(t, test.manifests)
		p.Egress, p.Port = true, test.port
		if test.needsSet {
			p.From = netip.MustParseAddr("10.2.0.6")
		}
		got := Explain(c, p)
		if got.Verdict != test.want || !strings.Contains(got.Why, test.why) || got.NeedsSet != test.needsSet {
			t.Errorf("%s: %s: %s, needs a set: %t", test.name, got.Verdict, got.Why, got.NeedsSet)
		}
	}
}

func TestExplainIPv6(t *testing.T) {
	c, p := world(t,
		calico(`{action: Allow, ipVersion: 6, source: {selector: "`+front+`", namespaceSelector: global()}}`))
	c.GlobalSets[0].Spec.Nets = append(c.GlobalSets[0].Spec.Nets, "fd02::5/128")
	p.From = netip.MustParseAddr("fd02::5")
	if got := Explain(c, p); got.Verdict != Allowed {
		t.Errorf("%+v", got)
	}
}
