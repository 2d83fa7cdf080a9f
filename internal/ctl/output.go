package ctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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
	completeFlag(cmd, "output", func(*cobra.Command, string) []string { return formats })
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
