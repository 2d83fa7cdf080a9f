package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestOwnNameContent: a Service that is part of a global service says how its own name leads to other clusters. A value
// that cannot be read is sent as such and reported, so that what was valid before can stay.
func TestOwnNameContent(t *testing.T) {
	const key = naming.AnnotationOwnName
	unreadable := &semaphorev1.GlobalSettings{Unreadable: []string{"min-ready"}}
	for name, test := range map[string]struct {
		labels   map[string]string
		set      map[string]string
		own      *semaphorev1.OwnName
		settings *semaphorev1.GlobalSettings
		problem  string
	}{
		"none":                     {labels: globalLabels},
		"failover":                 {globalLabels, map[string]string{key: "failover"}, own("failover"), nil, ""},
		"all":                      {globalLabels, map[string]string{key: "all"}, own("all"), nil, ""},
		"misspelled":               {globalLabels, map[string]string{key: "Failover"}, own(""), nil, `"Failover" is ignored`},
		"true":                     {globalLabels, map[string]string{key: "true"}, own(""), nil, `"true" is ignored`},
		"none, as others write it": {globalLabels, map[string]string{key: "none"}, own(""), nil, "or remove it"},
		"empty": {globalLabels, map[string]string{key: ""}, own(""), nil,
			`annotation semaphore.uw.io/own-name: "" is ignored, and what was valid before stays: use failover or all, ` +
				`or remove it`},
		"without the label of a global service": {mirrorLabels, map[string]string{key: "failover"}, nil, nil,
			"annotation semaphore.uw.io/own-name has no effect: the Service is part of no global service; set its label " +
				"mirror.semaphore.uw.io/global-service=true"},
		"half of the endpoints": {globalLabels, map[string]string{naming.AnnotationMinReady: "50%"}, nil,
			&semaphorev1.GlobalSettings{MinReadyPercent: 50}, ""},
		"a word": {globalLabels, map[string]string{naming.AnnotationMinReady: "many"}, nil, unreadable,
			`"many" is ignored: use a number of ready endpoints from 1 to 1000000, or a share of all such as 50%`},
		"an empty share": {globalLabels, map[string]string{naming.AnnotationMinReady: ""}, nil, unreadable,
			`"" is ignored`},
		"two that cannot be read": {globalLabels, map[string]string{naming.AnnotationMinReady: "many",
			naming.AnnotationWhenGone: "", key: "failover"}, own("failover"),
			&semaphorev1.GlobalSettings{Unreadable: []string{"min-ready", "when-gone"}}, "when-gone: \"\" is ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService("echo", test.labels, annotated(test.set), func(s *corev1.Service) { s.UID = "u-echo" })
			TrimService(s)
			c := newCatalog(t)
			c.PutService(s, time.Unix(0, 0))
			got := content(c)["service shop/echo"].GetService()
			if d := cmp.Diff(test.own, got.GetOwnName(), protocmp.Transform()); d != "" {
				t.Errorf("own name, -want +got:\n%s", d)
			}
			if d := cmp.Diff(test.settings, got.GetGlobalSettings(), protocmp.Transform()); d != "" {
				t.Errorf("settings, -want +got:\n%s", d)
			}
			problems := strings.Join(finding.Texts(c.Findings()), "\n")
			if test.problem == "" && problems != "" || !strings.Contains(problems, test.problem) {
				t.Errorf("problems are %q, not %q", problems, test.problem)
			}
		})
	}
}

func own(use string) *semaphorev1.OwnName { return &semaphorev1.OwnName{Use: use, Uid: "u-echo"} }

// TestOwnNameOfAServiceMadeAgain: a Service that was deleted and made again is another owner of slices, and the broker
// hears of it although nothing else differs.
func TestOwnNameOfAServiceMadeAgain(t *testing.T) {
	c := newCatalog(t)
	for _, uid := range []types.UID{"first", "second"} {
		c.PutService(newService("echo", globalLabels, annotated(map[string]string{naming.AnnotationOwnName: "all"}),
			func(s *corev1.Service) { s.UID = uid }), time.Unix(0, 0))
		if got := content(c)["service shop/echo"].GetService().GetOwnName().GetUid(); got != string(uid) {
			t.Errorf("the owner is %q, not %q", got, uid)
		}
	}
}
