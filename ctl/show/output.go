package show

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Outputs are the formats of a verb; the first is the default.
type Outputs struct {
	of     []string
	Chosen string
}

// OutputFlag adds -o with these formats and their completion.
func OutputFlag(cmd *cobra.Command, formats ...string) *Outputs {
	o := &Outputs{of: formats}
	cmd.Flags().StringVarP(&o.Chosen, "output", "o", formats[0], o.String())
	CompleteFlag(cmd, "output", OneOf(formats...))
	return o
}

// String returns a list such as "table, json or yaml".
func (o *Outputs) String() string {
	last := len(o.of) - 1
	return strings.Join(o.of[:last], ", ") + " or " + o.of[last]
}

// Check returns an error for a format that the verb does not have.
func (o *Outputs) Check() error {
	if slices.Contains(o.of, o.Chosen) {
		return nil
	}
	return fmt.Errorf("--output %q: use %s", o.Chosen, o)
}

// PlannedFormats are the formats of a verb that prints the objects in place of writing them.
var PlannedFormats = []string{"yaml", "json"}

// PlannedFlags adds --dry-run and -o of a verb that can print the objects in place of writing them.
func PlannedFlags(cmd *cobra.Command, d *DryRun, output *string) {
	DryRunFlag(cmd, d)
	cmd.Flags().StringVarP(output, "output", "o", "", "with --dry-run=client, what prints the objects: yaml or json "+
		"(default yaml)")
	CompleteFlag(cmd, "output", OneOf(PlannedFormats...))
}

// CheckPlanned returns an error for flags that are none of these.
func CheckPlanned(output string, d DryRun) error {
	switch {
	case d.Check() != nil:
		return d.Check()
	case output != "" && !slices.Contains(PlannedFormats, output):
		return fmt.Errorf("--output %q: use %s", output, strings.Join(PlannedFormats, " or "))
	case output != "" && !d.On():
		return errors.New("--output: it is for --dry-run=client")
	}
	return nil
}

// Planned are the objects that a verb would write into a cluster.
type Planned struct {
	Context string                       `json:"context"`
	Objects []*unstructured.Unstructured `json:"objects"`
}

// PrintPlanned prints objects of several clusters as one JSON document.
func PrintPlanned(w io.Writer, clusters []Planned) error {
	return PrintValue(w, map[string]any{"clusters": clusters}, "json")
}
