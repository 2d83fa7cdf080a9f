package show

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Columns prints an event as one line: when, by whom, from where, the action and its object, how long after its source
// observed it, and why. Columns grow with their content.
type Columns struct{ who, source, action, object, lag int }

// Print fails if w does.
func (c *Columns) Print(w io.Writer, m *semaphorev1.WatchResponse) error {
	if lost := m.GetLost(); lost > 0 {
		_, err := fmt.Fprintf(w, "… %d events lost: this reader was too slow\n", lost)
		return err
	}
	e := m.GetEvent()
	who := e.GetPart() + "/" + e.GetCluster()
	if e.GetNode() != "" {
		who += "/" + e.GetNode()
	}
	source, lag := cmp.Or(e.GetSource(), "-"), ""
	if e.GetObservedAt() != nil {
		lag = e.GetTime().AsTime().Sub(e.GetObservedAt().AsTime()).Round(100 * time.Microsecond).String()
		if lag[0] != '-' {
			lag = "+" + lag
		}
		if e.GetSource() != "" && e.GetSource() != e.GetCluster() {
			lag += " (" + e.GetSource() + "'s clock)" // the difference of the two clocks is included
		}
	}
	line := e.GetTime().AsTime().Local().Format("15:04:05.000")
	for _, column := range []struct {
		width *int
		text  string
	}{{&c.who, who}, {&c.source, source}, {&c.action, e.GetAction()}, {&c.object, e.GetObject()}, {&c.lag, lag}} {
		text := Printable(column.text)
		*column.width = max(*column.width, utf8.RuneCountInString(text))
		line += fmt.Sprintf("  %-*s", *column.width, text)
	}
	line += "  " + Printable(e.GetDetail())
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

// PrintJSON prints an event as a JSON document. It fails if w does.
func PrintJSON(w io.Writer, m *semaphorev1.WatchResponse) error {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	return PrintDocument(w, data, "json")
}
