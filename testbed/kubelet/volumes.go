//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/testbed/container"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// volumes are the volumes of one pod, below a directory of its own.
type volumes struct {
	dir     string
	node    *machine
	from    sources
	request tokenRequest
	// tokens by volume and place in its sources.
	tokens map[tokenPlace]token
	// hostPaths by volume, once they were checked.
	hostPaths map[string]string
}

// tokenRequest asks for a token of a ServiceAccount.
type tokenRequest func(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)

type tokenPlace struct {
	volume string
	source int
}

type token struct {
	text    string
	refresh time.Time
}

// render makes the content of all volumes what it should be now, and says when to look again even if nothing the pod
// refers to changes (the zero time for never).
func (v *volumes) render(ctx context.Context, pod *corev1.Pod, place placement, now time.Time) (next time.Time, err error) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		again, err := v.renderOne(ctx, pod, volume, place, now)
		if err != nil {
			return time.Time{}, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		next = earlier(next, again)
	}
	return next, nil
}

func (v *volumes) renderOne(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, place placement, now time.Time) (next time.Time, err error) {
	if volume.HostPath != nil {
		return time.Time{}, v.prepareHostPath(volume)
	}
	dir := filepath.Join(v.dir, volume.Name)
	group := volumeGroup(pod)
	if volume.EmptyDir != nil {
		return time.Time{}, makeEmptyDir(dir, group)
	}
	files, next, err := v.files(ctx, pod, volume, place, now)
	if err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return time.Time{}, err
	}
	_, err = writeAtomic(dir, files, group)
	return next, err
}

func makeEmptyDir(dir string, group int) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	mode := fs.FileMode(0o777)
	if group >= 0 {
		if err := os.Chown(dir, -1, group); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(dir, mode)
}

// files are what a volume that shows API objects consists of.
func (v *volumes) files(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, place placement, now time.Time) (map[string]volumeFile, time.Time, error) {
	switch {
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		files, err := v.configMapFiles(ctx, pod.Namespace, s.Name, s.Items, s.Optional, mode(s.DefaultMode))
		return files, time.Time{}, err
	case volume.Secret != nil:
		s := volume.Secret
		files, err := v.secretFiles(ctx, pod.Namespace, s.SecretName, s.Items, s.Optional, mode(s.DefaultMode))
		return files, time.Time{}, err
	case volume.DownwardAPI != nil:
		files, err := downwardFiles(pod, volume.DownwardAPI.Items, place, mode(volume.DownwardAPI.DefaultMode))
		return files, time.Time{}, err
	case volume.Projected != nil:
		return v.projectedFiles(ctx, pod, volume, place, now)
	}
	return nil, time.Time{}, errors.New("this kind of volume is not supported; want configMap, secret, projected, downwardAPI, emptyDir or hostPath")
}

func (v *volumes) projectedFiles(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, place placement, now time.Time) (map[string]volumeFile, time.Time, error) {
	all := map[string]volumeFile{}
	var next time.Time
	m := mode(volume.Projected.DefaultMode)
	for i, s := range volume.Projected.Sources {
		var files map[string]volumeFile
		var err error
		switch {
		case s.ServiceAccountToken != nil:
			var t token
			if t, err = v.token(ctx, pod, tokenPlace{volume.Name, i}, s.ServiceAccountToken, now); err == nil {
				file := volumeFile{data: []byte(t.text), mode: m, user: tokenOwner(pod)}
				if file.user >= 0 {
					file.mode = 0o600
				}
				files = map[string]volumeFile{s.ServiceAccountToken.Path: file}
				next = earlier(next, t.refresh)
			}
		case s.ConfigMap != nil:
			files, err = v.configMapFiles(ctx, pod.Namespace, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, m)
		case s.Secret != nil:
			files, err = v.secretFiles(ctx, pod.Namespace, s.Secret.Name, s.Secret.Items, s.Secret.Optional, m)
		case s.DownwardAPI != nil:
			files, err = downwardFiles(pod, s.DownwardAPI.Items, place, m)
		default:
			err = errors.New("this kind of source is not supported")
		}
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("source %d: %w", i, err)
		}
		maps.Copy(all, files)
	}
	return all, next, nil
}

// token gives the current token for a place, a new one when the old one is due.
func (v *volumes) token(ctx context.Context, pod *corev1.Pod, at tokenPlace, s *corev1.ServiceAccountTokenProjection, now time.Time) (token, error) {
	if t, ok := v.tokens[at]; ok && now.Before(t.refresh) {
		return t, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: s.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if s.Audience != "" {
		request.Spec.Audiences = []string{s.Audience}
	}
	answer, err := v.request(ctx, pod.Namespace, pod.Spec.ServiceAccountName, request)
	if err != nil {
		return token{}, fmt.Errorf("request token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	t := token{text: answer.Status.Token, refresh: tokenRefresh(now, answer.Status.ExpirationTimestamp.Time, s.ExpirationSeconds)}
	if v.tokens == nil {
		v.tokens = map[tokenPlace]token{}
	}
	v.tokens[at] = t
	return t, nil
}

// tokenRefresh is when a token is replaced: at 80 % of its life, and after a day at the latest. The life is the one that
// was asked for where the apiserver gave a longer one.
func tokenRefresh(now, expires time.Time, requested *int64) time.Time {
	life := expires.Sub(now)
	if requested != nil {
		life = min(life, time.Duration(*requested)*time.Second)
	}
	return now.Add(min(life*8/10, 24*time.Hour))
}

func (v *volumes) configMapFiles(ctx context.Context, namespace, name string, items []corev1.KeyToPath, optional *bool, m fs.FileMode) (map[string]volumeFile, error) {
	cm, err := v.from.configMap(ctx, namespace, name)
	if err != nil {
		return nil, allowMissing(err, optional)
	}
	data := maps.Clone(cm.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for k, text := range cm.Data {
		data[k] = []byte(text)
	}
	files, err := pick(data, items, isTrue(optional), m)
	if err != nil {
		return nil, fmt.Errorf("configmap %s/%s: %w", namespace, name, err)
	}
	return files, nil
}

func (v *volumes) secretFiles(ctx context.Context, namespace, name string, items []corev1.KeyToPath, optional *bool, m fs.FileMode) (map[string]volumeFile, error) {
	secret, err := v.from.secret(ctx, namespace, name)
	if err != nil {
		return nil, allowMissing(err, optional)
	}
	files, err := pick(secret.Data, items, isTrue(optional), m)
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return files, nil
}

// pick makes files of the items, or of all data when there are none.
func pick(data map[string][]byte, items []corev1.KeyToPath, optional bool, m fs.FileMode) (map[string]volumeFile, error) {
	files := map[string]volumeFile{}
	if len(items) == 0 {
		for k, d := range data {
			files[k] = volumeFile{data: d, mode: m, user: -1}
		}
		return files, nil
	}
	for _, item := range items {
		d, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("has no key %s", item.Key)
		}
		f := volumeFile{data: d, mode: m, user: -1}
		if item.Mode != nil {
			f.mode = fs.FileMode(*item.Mode)
		}
		files[item.Path] = f
	}
	return files, nil
}

func downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, place placement, m fs.FileMode) (map[string]volumeFile, error) {
	files := map[string]volumeFile{}
	for _, item := range items {
		var text string
		var err error
		switch {
		case item.FieldRef != nil:
			text, err = fieldValue(pod, item.FieldRef.FieldPath, place)
		case item.ResourceFieldRef != nil:
			i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool {
				return c.Name == item.ResourceFieldRef.ContainerName
			})
			if i < 0 {
				return nil, fmt.Errorf("item %s: no container %q", item.Path, item.ResourceFieldRef.ContainerName)
			}
			text, err = resourceValue(&pod.Spec.Containers[i], item.ResourceFieldRef)
		}
		if err != nil {
			return nil, fmt.Errorf("item %s: %w", item.Path, err)
		}
		f := volumeFile{data: []byte(text), mode: m, user: -1}
		if item.Mode != nil {
			f.mode = fs.FileMode(*item.Mode)
		}
		files[item.Path] = f
	}
	return files, nil
}

func mode(m *int32) fs.FileMode {
	if m == nil {
		return 0o644
	}
	return fs.FileMode(*m)
}

// prepareHostPath checks a hostPath volume once and makes what its type says is made. The node's disk is a directory of
// the machine; only devices are the machine's own.
func (v *volumes) prepareHostPath(volume *corev1.Volume) error {
	if _, ok := v.hostPaths[volume.Name]; ok {
		return nil
	}
	kind := corev1.HostPathUnset
	if volume.HostPath.Type != nil {
		kind = *volume.HostPath.Type
	}
	path := hostPath(v.node.Root, volume.HostPath.Path)
	info, err := os.Stat(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case err != nil && !missing:
		return err
	case missing && (kind == corev1.HostPathDirectoryOrCreate || kind == corev1.HostPathUnset):
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	case missing && kind == corev1.HostPathFileOrCreate:
		// As a kubelet: the file's directory must be there.
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	case missing:
		return fmt.Errorf("hostPath %s on node %s: %w", volume.HostPath.Path, v.node.Name, fs.ErrNotExist)
	default:
		if !hasKind(info.Mode(), kind) {
			return fmt.Errorf("hostPath %s on node %s is no %s", volume.HostPath.Path, v.node.Name, kind)
		}
	}
	if v.hostPaths == nil {
		v.hostPaths = map[string]string{}
	}
	v.hostPaths[volume.Name] = path
	return nil
}

// hostPath is where a path of a node is on the machine.
func hostPath(root, path string) string {
	path = filepath.Clean("/" + path)
	if strings.HasPrefix(path, "/dev/") {
		return path
	}
	return filepath.Join(root, path)
}

func hasKind(m fs.FileMode, kind corev1.HostPathType) bool {
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return m.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		return m.IsRegular()
	case corev1.HostPathSocket:
		return m&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		return m&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
	}
	return true
}

// mounts are the mounts of a container's volumes, in an order in which one may lie in another.
func (v *volumes) mounts(pod *corev1.Pod, c *corev1.Container, env *environment) ([]container.Mount, error) {
	var mounts []container.Mount
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool { return volume.Name == m.Name })
		if i < 0 {
			return nil, fmt.Errorf("volumeMount %s: the pod has no such volume", m.Name)
		}
		source := filepath.Join(v.dir, m.Name)
		if path, ok := v.hostPaths[m.Name]; ok {
			source = path
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = expand(m.SubPathExpr, env.get)
		}
		if sub != "" {
			var err error
			if source, err = subPath(source, sub, pod.Spec.Volumes[i].EmptyDir != nil || pod.Spec.Volumes[i].HostPath != nil); err != nil {
				return nil, fmt.Errorf("volumeMount %s: %w", m.Name, err)
			}
		}
		mounts = append(mounts, container.Mount{Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly || readOnlyVolume(pod.Spec.Volumes[i])})
	}
	slices.SortStableFunc(mounts, func(a, b container.Mount) int {
		return strings.Count(filepath.Clean(a.Target), "/") - strings.Count(filepath.Clean(b.Target), "/")
	})
	return mounts, nil
}

// readOnlyVolume tells whether a volume shows API objects, which containers cannot write.
func readOnlyVolume(v corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.Projected != nil || v.DownwardAPI != nil
}

// subPath finds a path in a volume. Links are resolved here: as with a kubelet the container keeps the version of the
// file that it started with.
func subPath(volume, path string, mayCreate bool) (string, error) {
	if !filepath.IsLocal(path) {
		return "", fmt.Errorf("subPath %q: want a relative path that does not lead up", path)
	}
	full := filepath.Join(volume, path)
	resolved, err := filepath.EvalSymlinks(full)
	if errors.Is(err, fs.ErrNotExist) && mayCreate {
		if err := os.MkdirAll(full, 0o755); err != nil {
			return "", fmt.Errorf("subPath: %w", err)
		}
		return full, nil
	}
	if err != nil {
		return "", fmt.Errorf("subPath: %w", err)
	}
	root, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return "", fmt.Errorf("subPath: %w", err)
	}
	if resolved != root && !strings.HasPrefix(resolved, root+"/") {
		return "", fmt.Errorf("subPath %q leads out of the volume", path)
	}
	return resolved, nil
}

// refersTo tells whether a pod's volumes show a ConfigMap or Secret.
func refersTo(pod *corev1.Pod, kind, name string) bool {
	for _, v := range pod.Spec.Volumes {
		if kind == "ConfigMap" && v.ConfigMap != nil && v.ConfigMap.Name == name ||
			kind == "Secret" && v.Secret != nil && v.Secret.SecretName == name {
			return true
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if kind == "ConfigMap" && s.ConfigMap != nil && s.ConfigMap.Name == name ||
				kind == "Secret" && s.Secret != nil && s.Secret.Name == name {
				return true
			}
		}
	}
	return false
}

// allowMissing passes an error on unless it says that something optional is not there.
func allowMissing(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	return err
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// podDir is the directory of a pod's files.
func podDir(dir string, uid types.UID) string {
	return filepath.Join(dir, "pods", string(uid))
}
