package show

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// choice is the value of a flag that takes some texts and no other.
type choice struct {
	of     []string
	Chosen string
}

var _ pflag.Value = (*choice)(nil)

func (c *choice) String() string { return c.Chosen }

func (c *choice) Type() string { return "string" }

// Set fails for a text that is none of the flag's.
func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return errors.New("use " + c.list())
	}
	c.Chosen = text
	return nil
}

// list returns a text such as "table, json or yaml".
func (c *choice) list() string {
	last := len(c.of) - 1
	return strings.Join(c.of[:last], ", ") + " or " + c.of[last]
}

// flag adds the flag with its completion.
func (c *choice) flag(cmd *cobra.Command, name, short, usage string) {
	cmd.Flags().VarP(c, name, short, usage)
	CompleteFlag(cmd, name, OneOf(c.of...))
}

// Outputs is the value of -o.
type Outputs struct{ choice }

// OutputFlag adds -o with these formats, the first as the default.
func OutputFlag(cmd *cobra.Command, formats ...string) *Outputs {
	o := &Outputs{choice{of: formats, Chosen: formats[0]}}
	o.flag(cmd, "output", "o", o.list())
	return o
}

// PlannedFlags adds --dry-run and -o of a verb that can print the objects in place of writing them.
func PlannedFlags(cmd *cobra.Command, d *DryRun) *Outputs {
	DryRunFlag(cmd, d)
	o := &Outputs{choice{of: []string{"yaml", "json"}}}
	o.flag(cmd, "output", "o", "with --dry-run=client, what prints the objects: "+o.list()+" (default yaml)")
	return o
}

// CheckPlanned fails for a format without --dry-run=client, when there are no objects to print.
func CheckPlanned(o *Outputs, d DryRun) error {
	if o.Chosen != "" && !d.On() {
		return errors.New("--output: it is for --dry-run=client")
	}
	return nil
}

// Planned are the objects that a verb would write into a cluster, with a comment for YAML.
type Planned struct {
	Context string                       `json:"context"`
	Objects []*unstructured.Unstructured `json:"objects"`
	Comment string                       `json:"-"`
	// SubnetKeys are added to the ConfigMap semaphore-subnets, whose other keys stay.
	SubnetKeys map[string]string `json:"subnetKeys,omitempty"`
}

// PrintPlanned prints objects of several clusters: as one JSON document, else as YAML documents for kubectl. It fails
// if w does.
func PrintPlanned(w io.Writer, clusters []Planned, output string) error {
	if output == "json" {
		return PrintValue(w, map[string]any{"clusters": clusters}, output)
	}
	for _, c := range clusters {
		fmt.Fprintf(w, "---\n# %s\n", Printable(c.Comment))
		for _, key := range slices.Sorted(maps.Keys(c.SubnetKeys)) {
			fmt.Fprintf(w, "# the ConfigMap semaphore-subnets also gets %s: %q\n", Printable(key),
				c.SubnetKeys[key])
		}
		text, err := YAML(c.Objects)
		if err != nil {
			return err
		}
		w.Write(text)
	}
	return nil
}

// YAML returns objects as YAML documents. It fails for a value that YAML cannot hold.
func YAML(all []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, o := range all {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}
