package choice

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// SettingsOf returns the settings that a cluster exports, except local-first.
func SettingsOf(g *semaphorev1.GlobalSettings) Settings {
	return Settings{Prefer: g.GetPrefer(), MinReady: int(g.GetMinReady()), MinReadyPercent: int(g.GetMinReadyPercent()),
		WhenGone: config.WhenGone(semaphorev1.WhenGoneName(g.GetWhenGone()))}
}

// SettingsIn returns the settings that Annotate noted.
func SettingsIn(annotations map[string]string) Settings {
	out := Settings{WhenGone: config.WhenGone(annotations[naming.AnnotationWhenGone])}
	if text := annotations[naming.AnnotationPreferClusters]; text != "" {
		out.Prefer = strings.Split(text, ",")
	}
	if count, percent, err := config.ParseMinReady(annotations[naming.AnnotationMinReady]); err == nil {
		out.MinReady, out.MinReadyPercent = count, percent
	}
	return out
}

func (s Settings) Keep(unreadable []string, before Settings) Settings {
	for _, setting := range unreadable {
		switch naming.Domain + setting {
		case naming.AnnotationPreferClusters:
			s.Prefer = before.Prefer
		case naming.AnnotationMinReady:
			s.MinReady, s.MinReadyPercent = before.MinReady, before.MinReadyPercent
		case naming.AnnotationWhenGone:
			s.WhenGone = before.WhenGone
		}
	}
	return s
}

// MinReadyText returns the minimum, as the annotation has it.
func (s Settings) MinReadyText() string {
	if s.MinReadyPercent > 0 {
		return fmt.Sprintf("%d%%", s.MinReadyPercent)
	}
	return strconv.Itoa(max(1, s.MinReady))
}

// Annotate notes the settings in the annotations of a Service, for people and for the next broker.
func (s Settings) Annotate(annotations map[string]string) {
	annotations[naming.AnnotationPreferClusters] = strings.Join(s.Prefer, ",")
	annotations[naming.AnnotationMinReady] = s.MinReadyText()
	annotations[naming.AnnotationWhenGone] = string(s.WhenGone)
}

func (s Settings) Complete() Settings {
	s.MinReady, s.WhenGone = max(1, s.MinReady), cmp.Or(s.WhenGone, config.Demote)
	return s
}

// Decide returns the settings of a global service: those of the operator's rule, else of the service that decides, else
// those that the previous broker noted in what exists; each is nil for none. With local-first, the cluster first comes
// before others; it is empty where hints do that.
func Decide(rule *config.GlobalRule, service *semaphorev1.Service, existing *corev1.Service, first string) Settings {
	g := service.GetGlobalSettings()
	switch out := SettingsOf(g); {
	case rule != nil:
		count, percent, _ := config.ParseMinReady(rule.MinReady.String()) // the configuration was checked
		return Settings{rule.Prefer, count, percent, rule.WhenGone}.Complete()
	case service != nil:
		if len(g.GetUnreadable()) > 0 && existing != nil {
			out = out.Keep(g.GetUnreadable(), SettingsIn(existing.Annotations))
		}
		if g.GetLocalFirst() && first != "" {
			out, _ = out.OwnFirst(first)
		}
		return out.Complete()
	case existing != nil:
		return SettingsIn(existing.Annotations).Complete()
	}
	return Settings{}.Complete()
}
