package ctl

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
)

// outputs are the formats of a verb; the first is the default.
type outputs struct {
	of     []string
	chosen string
}

// outputFlag adds -o with these formats and their completion.
func outputFlag(cmd *cobra.Command, formats ...string) *outputs {
	o := &outputs{of: formats}
	cmd.Flags().StringVarP(&o.chosen, "output", "o", formats[0], o.String())
	completeFlag(cmd, "output", oneOf(formats...))
	return o
}

// String returns a list such as "table, json or yaml".
func (o *outputs) String() string {
	last := len(o.of) - 1
	return strings.Join(o.of[:last], ", ") + " or " + o.of[last]
}

// check returns an error for a format that the verb does not have.
func (o *outputs) check() error {
	if slices.Contains(o.of, o.chosen) {
		return nil
	}
	return fmt.Errorf("--output %q: use %s", o.chosen, o)
}

// plannedFormats are the formats of a verb that prints the objects in place of writing them.
var plannedFormats = []string{"yaml", "json"}

// checkPlanned returns an error for a format that is none of these. An empty one means that the verb writes.
func checkPlanned(output string) error {
	if output == "" || slices.Contains(plannedFormats, output) {
		return nil
	}
	return fmt.Errorf("--output %q: use %s", output, strings.Join(plannedFormats, " or "))
}

// planned are the objects that a verb would write into a cluster.
type planned struct {
	Context string                       `json:"context"`
	Objects []*unstructured.Unstructured `json:"objects"`
}

// printPlanned prints objects of several clusters as one JSON document.
func printPlanned(w io.Writer, clusters []planned) error {
	data, err := json.MarshalIndent(map[string]any{"clusters": clusters}, "", "  ")
	if err != nil {
		return err
	}
	return cli.PrintDocument(w, data, "json")
}
