//go:build linux

package kubelet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestIdentity(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	yes := true
	all := defaultCapabilities
	for _, tc := range []struct {
		name  string
		pod   *corev1.PodSecurityContext
		own   *corev1.SecurityContext
		image Image
		want  identity
		err   string
	}{
		{name: "plain", want: identity{capabilities: &all}},
		{name: "privileged", own: &corev1.SecurityContext{Privileged: &yes}, want: identity{}},
		{name: "agent", own: &corev1.SecurityContext{ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}},
			want: identity{capabilities: &[]string{"NET_ADMIN"}, readOnlyRoot: true}},
		{name: "one dropped", own: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"CAP_AUDIT_WRITE"}}},
			want: identity{capabilities: ptr(all[1:])}},
		{name: "user of the pod", pod: &corev1.PodSecurityContext{RunAsUser: number(5), RunAsGroup: number(6), FSGroup: number(7),
			SupplementalGroups: []int64{8}, RunAsNonRoot: &yes}, want: identity{user: 5, group: 6, groups: []int{8, 7}, capabilities: &all}},
		{name: "user of the container wins", pod: &corev1.PodSecurityContext{RunAsUser: number(5)},
			own: &corev1.SecurityContext{RunAsUser: number(9)}, want: identity{user: 9, capabilities: &all}},
		{name: "user of the image", image: Image{User: 65532, Group: 65532}, pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes},
			want: identity{user: 65532, group: 65532, capabilities: &all}},
		{name: "root forbidden", pod: &corev1.PodSecurityContext{RunAsNonRoot: &yes}, err: "runAsUser"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: tc.pod}}
		got, err := containerIdentity(pod, &corev1.Container{SecurityContext: tc.own}, tc.image)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.err)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(identity{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", tc.name, err, diff)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestTokenOwner(t *testing.T) {
	user := func(n int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &n} }
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
		want int
	}{
		{"nobody says", corev1.PodSpec{Containers: []corev1.Container{{}}}, -1},
		{"one user", corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: user(5)}, {SecurityContext: user(5)}}}, 5},
		{"two users", corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: user(5)}, {SecurityContext: user(6)}}}, -1},
		{"pod's user", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: ptr(int64(7))}, Containers: []corev1.Container{{}}}, 7},
		{"fsGroup decides", corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr(int64(7))},
			Containers: []corev1.Container{{SecurityContext: user(5)}}}, -1},
	} {
		if got := tokenOwner(&corev1.Pod{Spec: tc.spec}); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
