package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestJudgePolicyKeys: subnets that differ are an error, and those that nobody could read are neither right nor wrong.
// Each remote has a finding of its own.
func TestJudgePolicyKeys(t *testing.T) {
	for name, test := range map[string]struct {
		keys *PolicyKeys
		want string
		says []string
	}{
		"none":     {nil, "", nil},
		"the same": {&PolicyKeys{}, "PolicyKeysAgree", nil},
		"unreadable": {&PolicyKeys{Err: errors.New("forbidden")}, "NOT-CHECKED:PolicyKeysUnreadable",
			[]string{"forbidden"}},
		"others": {&PolicyKeys{Differ: errors.New("localSubnets is one, podSubnets is another")},
			"ERROR:PolicyKeysDiffer", []string{"localSubnets is one", "podSubnets is another"}},
		"unreadable in part": {&PolicyKeys{Err: errors.New("forbidden"), Differ: errors.New("localSubnets is one")},
			"ERROR:PolicyKeysDiffer", []string{"localSubnets is one"}},
		"of remotes, and the same": {&PolicyKeys{Remotes: []RemoteKey{
			{Key: "remotePodSubnets.c2", Have: "10.3.0.0/16, 10.2.0.0/16", Want: "10.2.0.0/16,10.3.0.0/16"}}},
			"PolicyKeysAgree", nil},
		"of one remote none, of one others, of one something": {&PolicyKeys{Remotes: []RemoteKey{
			{Remote: "c2", Key: "remotePodSubnets.c2", Want: "10.2.0.0/16"},
			{Remote: "c3", Key: "remotePodSubnets.c3", Have: "10.9.0.0/16", Want: "10.3.0.0/16"},
			{Remote: "c4", Key: "remotePodSubnets.c4", Have: "10.4.0.0/99", Want: "10.4.0.0/16"},
			{Remote: "c5", Key: "remotePodSubnets.c5", Have: "10.5.0.0/16", Want: "10.5.0.0/16"}}},
			"PolicyKeysAgree ERROR:RemotePodSubnetsDiffer ERROR:RemotePodSubnetsDiffer ERROR:RemotePodSubnetsDiffer",
			[]string{"", "no key remotePodSubnets.c2, so own names of Services lead to no endpoint of c2",
				`remotePodSubnets.c3 is "10.9.0.0/16", and RemoteCluster c3 has "10.3.0.0/16"`, `"10.4.0.0/99"`}},
	} {
		var got []show.Finding
		for _, f := range Judge(Facts{Now: now, PolicyKeys: test.keys}) {
			if strings.HasPrefix(string(f.Code), "PolicyKeys") || f.Code == finding.RemotePodSubnetsDiffer {
				got = append(got, f)
			}
		}
		complete(t, got)
		if codes(got) != test.want {
			t.Errorf("%s: %s; want %s", name, codes(got), test.want)
		}
		for i, says := range test.says {
			if at := min(i, len(got)-1); at < 0 || !strings.Contains(got[at].Evidence, says) {
				t.Errorf("%s: no %q in %+v", name, says, got)
			}
		}
	}
}

// TestCheckRemotePodSubnets: with own names, a RemoteCluster whose pod subnets admission policies do not know is an
// error, also in a broker's container, and the command that check prints repairs it. Without own names nobody reads the
// key.
func TestCheckRemotePodSubnets(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	dir := ctltest.Linked(t)
	kubetest.InstallRemoteClusters(t, api)
	kubetest.CreateRemote(t, api, "c2", "{podSubnets: [10.2.0.0/16, 10.3.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	kubetest.Namespace(t, admin, "semaphore")
	maps := admin.CoreV1().ConfigMaps("semaphore")
	keys := map[string]string{"localSubnets": "10.1.0.0/16", "podSubnets": "10.1.0.0/16"}
	kubetest.Create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-subnets",
		Labels: map[string]string{"semaphore.uw.io/subnets": "true"}}, Data: keys})
	look := func(ownNames bool) (show.Finding, int) {
		t.Helper()
		file := brokerFile(t, dir, fmt.Sprintf("features: [services]\n"+
			"globalServices: {podSubnets: [10.1.0.0/16], ownNames: %t}\n", ownNames))
		f, code := ctltest.Found(t, "--config", file, "--coredns", "none", "--kubeconfig", kubetest.Kubeconfig(t, api))
		if f["PolicyKeysAgree"].Level != finding.OK {
			t.Errorf("the other keys: %+v", f)
		}
		return f["RemotePodSubnetsDiffer"], code
	}
	if f, code := look(false); code != 0 || f.Code != "" {
		t.Errorf("without own names: exit code %d, %+v", code, f)
	}
	missing, code := look(true)
	command := regexp.MustCompile(`^kubectl -n semaphore patch configmap semaphore-subnets --type merge -p '(.*?)'`).
		FindStringSubmatch(missing.Fix)
	if code != 2 || missing.Side != "here" || command == nil || !strings.Contains(missing.Evidence, "no key") {
		t.Fatalf("without a key: exit code %d, %+v", code, missing)
	}
	ctltest.Patch(t, maps, "semaphore-subnets", command[1])
	if f, code := look(true); code != 0 || f.Code != "" {
		t.Errorf("repaired: exit code %d, %+v", code, f)
	}
	ctltest.Patch(t, maps, "semaphore-subnets", `{"data":{"remotePodSubnets.c2":"10.2.0.0/16"}}`)
	if f, code := look(true); code != 2 || !strings.Contains(f.Evidence, `is "10.2.0.0/16", and RemoteCluster c2 has`) {
		t.Errorf("one of two subnets: exit code %d, %+v", code, f)
	}

	mounted := t.TempDir()
	t.Setenv("POLICY_KEYS", mounted)
	for key, text := range keys {
		must(t, os.WriteFile(filepath.Join(mounted, key), []byte(text), 0o644))
	}
	if f, code := look(true); code != 2 || f.Fix != missing.Fix {
		t.Errorf("in a container without the key: exit code %d, %+v", code, f)
	}
	must(t, os.WriteFile(filepath.Join(mounted, "remotePodSubnets.c2"), []byte("10.2.0.0/16,10.3.0.0/16"), 0o644))
	if f, code := look(true); code != 0 || f.Code != "" {
		t.Errorf("in a container: exit code %d, %+v", code, f)
	}
}
