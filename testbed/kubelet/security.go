//go:build linux

package kubelet

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaultCapabilities are what container runtimes give to a container that is not privileged.
var defaultCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
	"SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// identity is who a container runs as and what it may do.
type identity struct {
	user, group  int
	groups       []int
	capabilities *[]string // nil for all
	readOnlyRoot bool
}

// containerIdentity merges the security contexts of pod, container and image, the container's first.
func containerIdentity(pod *corev1.Pod, c *corev1.Container, image Image) (identity, error) {
	id := identity{user: image.User, group: image.Group}
	own, pods := c.SecurityContext, pod.Spec.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if pods == nil {
		pods = &corev1.PodSecurityContext{}
	}
	if user := firstSet(own.RunAsUser, pods.RunAsUser); user != nil {
		id.user = int(*user)
	}
	if group := firstSet(own.RunAsGroup, pods.RunAsGroup); group != nil {
		id.group = int(*group)
	}
	if nonRoot := firstSet(own.RunAsNonRoot, pods.RunAsNonRoot); isTrue(nonRoot) && id.user == 0 {
		return identity{}, errors.New("runAsNonRoot is set and the user would be root: set runAsUser")
	}
	for _, g := range pods.SupplementalGroups {
		id.groups = append(id.groups, int(g))
	}
	if pods.FSGroup != nil {
		id.groups = append(id.groups, int(*pods.FSGroup))
	}
	id.readOnlyRoot = isTrue(own.ReadOnlyRootFilesystem)
	if !isTrue(own.Privileged) {
		caps := capabilities(own.Capabilities)
		id.capabilities = &caps
	}
	return id, nil
}

// capabilities applies drops and adds to the default set; ALL stands for every one.
func capabilities(change *corev1.Capabilities) []string {
	set := slices.Clone(defaultCapabilities)
	if change == nil {
		return set
	}
	for _, drop := range change.Drop {
		name := capabilityName(drop)
		if name == "ALL" {
			set = nil
		}
		set = slices.DeleteFunc(set, func(have string) bool { return have == name })
	}
	for _, add := range change.Add {
		if name := capabilityName(add); !slices.Contains(set, name) {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	return set
}

func capabilityName(c corev1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}

// volumeGroup is the group that volumes are given to, -1 for none.
func volumeGroup(pod *corev1.Pod) int {
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		return int(*sc.FSGroup)
	}
	return -1
}

// tokenOwner is the user a projected token is made readable for alone: the user of all containers, if it is one and the
// same, as KEP-2451 decided. Otherwise, and with an fsGroup, it is -1 and the mode decides.
func tokenOwner(pod *corev1.Pod) int {
	if volumeGroup(pod) >= 0 {
		return -1
	}
	owner := int64(-1)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		var user *int64
		if c.SecurityContext != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil && pod.Spec.SecurityContext != nil {
			user = pod.Spec.SecurityContext.RunAsUser
		}
		if user == nil || owner >= 0 && owner != *user {
			return -1
		}
		owner = *user
	}
	return int(owner)
}

func firstSet[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

func isTrue(b *bool) bool { return b != nil && *b }
