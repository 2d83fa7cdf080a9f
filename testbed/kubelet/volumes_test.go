//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTokenRefresh(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		life      time.Duration
		requested *int64
		want      time.Duration
	}{
		{time.Hour, nil, 48 * time.Minute},
		{10 * time.Minute, ptr(int64(600)), 8 * time.Minute},
		{365 * 24 * time.Hour, ptr(int64(3607)), 3607 * time.Second * 8 / 10}, // an extended token
		{365 * 24 * time.Hour, nil, 24 * time.Hour},
	} {
		if got := tokenRefresh(now, now.Add(tc.life), tc.requested).Sub(now); got != tc.want {
			t.Errorf("life %s: refresh after %s, want %s", tc.life, got, tc.want)
		}
	}
}

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	read := func() map[string]string {
		got := map[string]string{}
		names, err := filepath.Glob(filepath.Join(dir, "[^.]*"))
		if err != nil {
			t.Fatal(err)
		}
		below, err := filepath.Glob(filepath.Join(dir, "[^.]*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(names, below...) {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				t.Fatal(err)
			}
			got[rel] = string(data)
		}
		return got
	}
	file := func(s string) volumeFile { return volumeFile{data: []byte(s), mode: 0o640, user: -1} }
	for i, tc := range []struct {
		files   map[string]volumeFile
		changed bool
	}{
		{map[string]volumeFile{"a": file("1"), "dir/b": file("2")}, true},
		{map[string]volumeFile{"a": file("1"), "dir/b": file("2")}, false},
		{map[string]volumeFile{"a": file("3"), "dir/b": file("2")}, true},
		{map[string]volumeFile{"c": file("4"), "dir/d": file("5")}, true},
		{nil, true},
		{nil, false},
	} {
		changed, err := writeAtomic(dir, tc.files, -1)
		if err != nil || changed != tc.changed {
			t.Fatalf("step %d: changed %v, %v", i, changed, err)
		}
		want := map[string]string{}
		for name, f := range tc.files {
			want[name] = string(f.data)
		}
		if diff := cmp.Diff(want, read()); diff != "" {
			t.Errorf("step %d:\n%s", i, diff)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left besides ..data and its directory: %v, %v", entries, err)
	}
	for _, name := range []string{"../x", "/x", "..x", "a/../../x"} {
		if _, err := writeAtomic(dir, map[string]volumeFile{name: file("")}, -1); err == nil {
			t.Errorf("path %q was accepted", name)
		}
	}
}

func TestTokensAreReplaced(t *testing.T) {
	asked := 0
	v := volumes{dir: t.TempDir(), from: fakeSources{}, request: func(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		asked++
		if namespace != "shop" || account != "sa" || r.Spec.BoundObjectRef.UID != "u1" || r.Spec.Audiences[0] != "broker" {
			t.Errorf("request for %s/%s: %+v", namespace, account, r.Spec)
		}
		if asked == 2 {
			return nil, errors.New("apiserver is away")
		}
		r.Status.Token = fmt.Sprintf("token %d", asked)
		r.Status.ExpirationTimestamp = metav1.NewTime(time.Unix(1600, 0))
		return r, nil
	}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u1"},
		Spec: corev1.PodSpec{ServiceAccountName: "sa", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: "broker", Path: "token"}}}}}}}},
	}
	for _, step := range []struct {
		at   int64 // seconds
		want string
		next int64
		err  bool
	}{
		{1000, "token 1", 1480, false},
		{1479, "token 1", 1480, false},
		{1480, "token 1", 0, true}, // the old one stays while there is no new one
		{1481, "token 3", 1576, false},
	} {
		next, err := v.render(t.Context(), pod, placement{}, time.Unix(step.at, 0))
		if (err != nil) != step.err || !step.err && next.Unix() != step.next {
			t.Errorf("at %d: next %d, error %v", step.at, next.Unix(), err)
		}
		if data, err := os.ReadFile(filepath.Join(v.dir, "v", "token")); err != nil || string(data) != step.want {
			t.Errorf("at %d: %q, %v, want %q", step.at, data, err, step.want)
		}
	}
}

func TestSubPath(t *testing.T) {
	dir := t.TempDir()
	if _, err := writeAtomic(dir, map[string]volumeFile{"a": {mode: 0o644, user: -1}}, -1); err != nil {
		t.Fatal(err)
	}
	if got, err := subPath(dir, "a", false); err != nil || strings.Contains(got, dataLink+"/") {
		t.Errorf("subPath = %q, %v, want the file itself", got, err)
	}
	if _, err := subPath(dir, "none", false); err == nil {
		t.Error("a missing file was found")
	}
	if got, err := subPath(dir, "made", true); err != nil || got != filepath.Join(dir, "made") {
		t.Errorf("subPath = %q, %v", got, err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"out", "../x", "/etc"} {
		if got, err := subPath(dir, path, true); err == nil {
			t.Errorf("subPath(%q) = %q, want an error", path, got)
		}
	}
}
