package choice

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// SettingsOf returns the settings that a cluster exports, except local-first.
func SettingsOf(g *semaphorev1.GlobalSettings) Settings {
	return Settings{Prefer: g.GetPrefer(), MinReady: int(g.GetMinReady()),
		WhenGone: config.WhenGone(semaphorev1.WhenGoneName(g.GetWhenGone()))}
}

// SettingsIn returns the settings that Annotate noted.
func SettingsIn(annotations map[string]string) Settings {
	out := Settings{WhenGone: config.WhenGone(annotations[naming.AnnotationWhenGone])}
	if text := annotations[naming.AnnotationPreferClusters]; text != "" {
		out.Prefer = strings.Split(text, ",")
	}
	if n, err := strconv.Atoi(annotations[naming.AnnotationMinReady]); err == nil {
		out.MinReady = n
	}
	return out
}

// Annotate notes the settings in the annotations of a Service, for people and for the next broker.
func (s Settings) Annotate(annotations map[string]string) {
	annotations[naming.AnnotationPreferClusters] = strings.Join(s.Prefer, ",")
	annotations[naming.AnnotationMinReady] = strconv.Itoa(s.MinReady)
	annotations[naming.AnnotationWhenGone] = string(s.WhenGone)
}

func (s Settings) Complete() Settings {
	s.MinReady, s.WhenGone = max(1, s.MinReady), cmp.Or(s.WhenGone, config.Demote)
	return s
}
