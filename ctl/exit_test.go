package ctl

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// exits are calls of each verb in a directory with the files of TestExitCodes. unable cannot do what it is for: exit
// code 1. well and found end with 0 and 2, as far as that needs no cluster; tests on clusters have the others.
var exits = map[string]struct{ unable, well, found string }{
	"bundle":          {unable: "--context c1"},
	"check":           {unable: "--context c1", well: "--dir pki", found: "--config wrong.yaml"},
	"coredns":         {unable: "--context c1"},
	"drain cluster":   {unable: "c2 --context c1"},
	"drain node":      {unable: "c2/n1 --context c1"},
	"drain service":   {unable: "c2:shop/echo --context c1"},
	"undrain cluster": {unable: "c2 --context c1"},
	"undrain node":    {unable: "c2/n1 --context c1"},
	"undrain service": {unable: "c2:shop/echo --context c1"},
	"explain":         {unable: "--context c1 --from c2/shop/client --to shop/echo"},
	"get drains":      {unable: "--context c1"},
	"get findings":    {unable: "--context c1"},
	"get ip":          {unable: "10.2.1.1 --context c1"},
	"get nodes":       {unable: "--context c1"},
	"get services":    {unable: "--context c1"},
	"get sets":        {unable: "--context c1"},
	"install":         {unable: "--context c1"},
	"link":            {unable: "--context c1 --context c2"},
	"unlink":          {unable: "--context c1 --context c2"},
	"migrate":         {unable: "missing.json", found: "wireguard.json"},
	"pki init":        {unable: "--context c1 --cluster c1", well: "--cluster c3 --dir c3"},
	"pki bundle":      {unable: "--dir missing", well: "--dir pki"},
	"pki secrets":     {unable: "--dir missing --peer-bundle c2=missing", well: "--dir pki --peer-bundle c3=c3.pem"},
	"pki exchange":    {unable: "--context c1 --context c2"},
	"pki rotate":      {unable: "--dir missing", well: "--dir pki"},
	"pki rotate-ca":   {unable: "--dir missing", well: "--dir pki"},
	"pki show":        {unable: "--dir missing", well: "--dir pki -o json"},
	"options":         {unable: "c1", well: ""},
	"release":         {unable: "c2 --context c1"},
	"rotate-key":      {unable: "--all --context c1"},
	"status":          {unable: "--context c1"},
	"trace":           {unable: "service/shop/echo --context c1"},
	"uninstall":       {unable: "--context c1"},
	"version":         {unable: "c1", well: ""},
}

// modes are verbs with a flag that makes them do something else.
var modes = []string{"status -o svg", "status --web", "trace --history", "trace --watch", "check --pre",
	"check --traffic --context c2", "unlink c9 --force"}

// TestExitCodes: exit codes are the same for all verbs: 0 all is well, 1 wrong use or out of reach, 2 something is
// wrong.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"kubeconfig": `{apiVersion: v1, kind: Config, current-context: c1,
contexts: [{name: c1, context: {cluster: c1, user: c1}}, {name: c2, context: {cluster: c1, user: c1}}],
clusters: [{name: c1, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: c1, user: {}}]}`,
		"wrong.yaml": "cluster: c1\nlocalSubnets: [10.1.0.0/16]\nnothing: 1\n",
		"remote.yaml": "apiVersion: semaphore.uw.io/v1alpha1\nkind: RemoteCluster\nmetadata: {name: c2}\n" +
			"spec: {podSubnets: [10.2.0.0/16]}\n",
		"wireguard.json": `{"local": {"name": "c1"}, "remotes": [{"name": "c2", "remoteAPIURL": "https://192.0.2.1:6443",
"podSubnet": "10.2.0.0/16", "wgDeviceMTU": 1420, "wgListenPort": 51821}]}`,
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	call := func(verb, args string, want int) string {
		t.Helper()
		words := append(strings.Fields(verb), strings.Fields(args)...)
		if strings.Contains(args, "--context") {
			words = append(words, "--kubeconfig", filepath.Join(dir, "kubeconfig"))
		}
		out, code, err := ctltest.Run(t, words...)
		if code != want {
			t.Errorf("%s %s: exit code %d, %v; want %d\n%s", verb, args, code, err, want, out)
		}
		return out
	}
	call("pki init", "--cluster c1 --dir pki", 0)
	verbs := slices.Sorted(maps.Keys(exits))
	for _, cmd := range all(Command()) {
		verb := strings.TrimPrefix(cmd.CommandPath(), "semaphorectl ")
		if !cmd.Runnable() || cmd.Hidden || cmd.HasSubCommands() || verb == "help" || strings.HasPrefix(verb,
			"completion") {
			continue
		}
		if i := slices.Index(verbs, verb); i >= 0 {
			verbs = slices.Delete(verbs, i, i+1)
		} else {
			t.Errorf("no calls of %s", verb)
		}
		call(verb, "--no-such-flag", 1)
		if f := cmd.Flags().Lookup("output"); f != nil {
			call(verb, exits[verb].unable+" -o nonsense", 1)
		}
	}
	if len(verbs) > 0 {
		t.Errorf("there are no verbs %v", verbs)
	}
	for _, verb := range slices.Sorted(maps.Keys(exits)) {
		call(verb, exits[verb].unable, 1)
	}
	for _, mode := range modes {
		call(mode, "--context c1", 1)
	}
	// The secrets of one cluster for another need the bundle of that one.
	call("pki init", exits["pki init"].well, 0)
	must(t, os.WriteFile("c3.pem", []byte(call("pki bundle", "--dir c3", 0)), 0o600))
	for _, verb := range slices.Sorted(maps.Keys(exits)) {
		if e := exits[verb]; e.well != "" && verb != "pki init" || slices.Contains([]string{"version", "options"}, verb) {
			call(verb, e.well, 0)
		}
		if e := exits[verb]; e.found != "" {
			call(verb, e.found, 2)
		}
	}
}
