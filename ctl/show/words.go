package show

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// FindingLines returns the lines of a finding. where names the part that reports it, if several do.
func FindingLines(f *semaphorev1.Finding, where string) []string {
	head := fmt.Sprintf("  %s  %s", strings.ToUpper(semaphorev1.LevelName(f.GetLevel())), f.GetCode())
	if f.GetCluster() != "" {
		head += " (" + f.GetCluster() + ")"
	}
	if where != "" {
		head += ", " + where
	}
	head += ": " + f.GetMeaning()
	if f.GetCount() > 1 {
		head += fmt.Sprintf("; %d", f.GetCount())
	}
	if f.GetSince() != nil {
		head += ", since " + f.GetSince().AsTime().UTC().Format(time.RFC3339)
	}
	lines := []string{head}
	for _, evidence := range f.GetFirst() {
		lines = append(lines, "           "+evidence)
	}
	if more := int(f.GetCount()) - len(f.GetFirst()); more > 0 && len(f.GetFirst()) == finding.Shown {
		lines = append(lines, fmt.Sprintf("           and %d more", more))
	}
	side := strings.ReplaceAll(semaphorev1.SideName(f.GetSide()), "-", " ")
	return append(lines, fmt.Sprintf("           %s: %s", side, f.GetCommand()))
}

// Since returns how long ago t was when the status was made, by the part's own clock.
func Since(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	return finding.Since(s, t)
}

func Short(d time.Duration) string { return finding.Short(d) }

// Number returns a text such as "1 peer does not answer".
func Number(n uint64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func Texts[T fmt.Stringer](values []T) (all []string) {
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

func Ago(s *semaphorev1.GetStatusResponse, t *timestamppb.Timestamp) string {
	if t == nil {
		return "never"
	}
	return Since(s, t) + " ago"
}
