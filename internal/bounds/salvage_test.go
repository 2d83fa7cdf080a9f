package bounds

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
)

// brief describes subnets: the local ones, each remote that is used with its subnets and port, and those blocked.
func brief(s *Subnets) string {
	words := []string{fmt.Sprint(s.Local)}
	for _, name := range slices.Sorted(maps.Keys(s.Remotes)) {
		r := s.Remotes[name]
		words = append(words, fmt.Sprintf("%s %v %d %s", name, r.PodPrefixes, r.WireGuard.ListenPort, r.Encryption))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Blocked)) {
		words = append(words, fmt.Sprintf("no %s %v %s", name, s.Blocked[name].PodPrefixes, s.Blocked[name].Encryption))
	}
	if !s.Known {
		words = append(words, "unknown")
	}
	if s.Unnamed {
		words = append(words, "unnamed")
	}
	return strings.Join(words, ", ")
}

// TestOneBadElement: whatever is wrong with an element of the files, the others are in use, and so is its earlier form.
// Without one, what can only be the remote's is blocked.
func TestOneBadElement(t *testing.T) {
	const (
		local = "localSubnets: [10.1.0.0/16]\n"
		c2    = "{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 1}}"
		c3    = "{name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 2}}"
		both  = "remotes:\n- " + c2 + "\n- " + c3
		in2   = "c2 [10.2.0.0/16] 1 strict"
		in3   = "c3 [10.3.0.0/16] 2 strict"
		all   = "[10.1.0.0/16], " + in2 + ", " + in3
	)
	other := func(old, with string) string { return strings.Replace(both, old, with, 1) }
	for name, test := range map[string]struct {
		own, beside string
		// before is in use with an earlier form of both remotes, and fresh without any.
		before, fresh string
		problem       string
	}{
		"nothing": {local, both, all, all, ""},
		"overlaps the own cluster": {local, other("10.2.0.0/16", "10.1.2.0/24"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [] strict", "remote c2: podSubnets: 10.1.2.0/24 overlaps"},
		"part of it overlaps the own cluster": {local, other("10.2.0.0/16", "10.1.2.0/24, 10.9.0.0/16"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.9.0.0/16] strict", "remote c2: podSubnets: 10.1.2.0/24"},
		"overlaps the next one": {local, other("10.2.0.0/16", "10.3.0.0/17"), all,
			"[10.1.0.0/16], c2 [10.3.0.0/17] 1 strict, no c3 [] strict", "overlaps"},
		"overlaps the nodes of the other": {local, other("10.2.0.0/16", "192.0.2.0/26"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [] strict", "remote c2: nodeSubnets"},
		"another's device": {local, other("name: c2", "name: cluster-42807") + "\n- " +
			strings.NewReplacer("c3", "cluster-320514", "10.3", "10.4", "listenPort: 2", "listenPort: 3").Replace(c3),
			"[10.1.0.0/16], " + in3 + ", cluster-42807 [10.2.0.0/16] 1 strict, no cluster-320514 [10.4.0.0/16] strict",
			"[10.1.0.0/16], " + in3 + ", cluster-42807 [10.2.0.0/16] 1 strict, no cluster-320514 [10.4.0.0/16] strict",
			"have devices of one name, wg.0c5526e1cb"},
		"another's port": {local, other("listenPort: 1", "listenPort: 2"), all,
			"[10.1.0.0/16], c2 [10.2.0.0/16] 2 strict, no c3 [10.3.0.0/16] strict", "listenPort"},
		"no CIDR": {local, other("10.2.0.0/16", "10.2.0.0/166, 10.9.0.0/16"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.9.0.0/16] strict", "remote c2: podSubnets[0]"},
		"everything": {local, other("10.2.0.0/16", "0.0.0.0/0"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [] strict", "remote c2: podSubnets[0]"},
		"no list": {local, other("[10.2.0.0/16]", "10.2.0.0/16"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [] strict", "remote c2: podSubnets: found string"},
		"no nodes": {local, other("nodeSubnets: [192.0.2.0/24], ", ""), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.2.0.0/16] strict", "remote c2: nodeSubnets"},
		"a port that is none": {local, other("listenPort: 1", "listenPort: 70000"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.2.0.0/16] strict", "remote c2: wireguard.listenPort"},
		"no encryption, and a typo": {local, other("wireguard: {listenPort: 1}", "encryption: permissive, wireguard: 1"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.2.0.0/16] permissive", "remote c2: wireguard"},
		"encryption is a typo": {local, other("wireguard", "encryption: stric, wireguard"), all,
			"[10.1.0.0/16], " + in3 + ", no c2 [10.2.0.0/16] stric", "remote c2: encryption"},
		"encryption of all is a typo": {local + "encryption: stric\n", both, all, all, "encryption"},
		"features are a typo":         {local + "features: [encrypton]\n", both, all, all, "features[0]"},
		"features are no list":        {local + "features: encryption\n", both, all, all, "features"},
		"without a name": {local, other("name: c2, ", ""), "[10.1.0.0/16], " + in3, "[10.1.0.0/16], " + in3,
			"remotes[0].name"},
		"its name is none": {local, other("name: c2", "name: C2_"), "[10.1.0.0/16], " + in3, "[10.1.0.0/16], " + in3,
			"remotes[0].name"},
		"twice": {local, both + "\n- " + strings.Replace(c2, "10.2.0.0", "10.9.0.0", 1), all, all, "listed twice"},
		"one of the own subnets is none": {"localSubnets: [10.1.0.0/166, 10.7.0.0/16]", both,
			"[10.7.0.0/16 10.1.0.0/16], " + in2 + ", " + in3, "[10.7.0.0/16], " + in2 + ", " + in3, "localSubnets[0]"},
		"an own subnet takes those of a remote": {"localSubnets: [10.0.0.0/14]", both, all,
			"[10.0.0.0/14], no c2 [] strict, no c3 [] strict", "localSubnets[0]: 10.0.0.0/14 overlaps podSubnets of the remote"},
		"no own subnets": {"localSubnets: []", both, all,
			"[], no c2 [10.2.0.0/16] strict, no c3 [10.3.0.0/16] strict, unknown", "localSubnets: none"},
		"the own subnets are no list": {"localSubnets: 10.1.0.0/16", both, all,
			"[], no c2 [10.2.0.0/16] strict, no c3 [10.3.0.0/16] strict, unknown", "localSubnets: "},
		"the broker's file is missing": {"-", both, all,
			"[], no c2 [10.2.0.0/16] strict, no c3 [10.3.0.0/16] strict, unknown", "does not exist"},
		"the broker's file is no YAML": {"[", both, all,
			"[], no c2 [10.2.0.0/16] strict, no c3 [10.3.0.0/16] strict, unknown", "yaml"},
		"the broker's file is empty": {"", both, all,
			"[], no c2 [10.2.0.0/16] strict, no c3 [10.3.0.0/16] strict, unknown", "the file is empty"},
		"the file of remotes is missing":  {local, "-", all, "[10.1.0.0/16], unnamed", "is missing"},
		"the file of remotes is empty":    {local, "", all, "[10.1.0.0/16], unknown", "the file is empty"},
		"the file of remotes is no YAML":  {local, "remotes: [", all, "[10.1.0.0/16], unknown", "yaml"},
		"the file of remotes has no list": {local, "remotes: 1", all, "[10.1.0.0/16], unknown", "no list"},
		"the list is of something else":   {local, "remotes: [1, [], {}]", all, "[10.1.0.0/16], unknown", "remotes[0].name"},
		"another key":                     {local, "remote: []", all, "[10.1.0.0/16], unknown", "no such key"},
		"nothing is named any more":       {local, "remotes: []", "[10.1.0.0/16]", "[10.1.0.0/16]", ""},
		"both make room for each other": {local, strings.NewReplacer("10.2.0.0", "10.3.0.0", "10.3.0.0", "10.2.0.0").Replace(
			both), "[10.1.0.0/16], c2 [10.3.0.0/16] 1 strict, c3 [10.2.0.0/16] 2 strict",
			"[10.1.0.0/16], c2 [10.3.0.0/16] 1 strict, c3 [10.2.0.0/16] 2 strict", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := func(text string) subnetsText {
				if text == "-" {
					return subnetsText{err: fs.ErrNotExist}
				}
				return subnetsText{data: []byte(text)}
			}
			earlier := ReadText(readSubnets(file(local), file(both), "c1", nil).Text(), "c1")
			for _, from := range []struct {
				before *Subnets
				want   string
			}{{earlier, test.before}, {nil, test.fresh}} {
				got := readSubnets(file(test.own), file(test.beside), "c1", from.before)
				problem := strings.Join(got.Problems, "\n")
				if b := brief(got); b != from.want || !strings.Contains(problem, test.problem) && from.before != nil ||
					(test.problem == "") != (problem == "") && from.before != nil {
					t.Errorf("with an earlier form: %t\ngot  %s\nwant %s\n%s", from.before != nil, b, from.want, problem)
				}
			}
		})
	}
}
