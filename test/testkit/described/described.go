// Package described makes a broker's configuration for tests: its file, and the remotes that RemoteClusters describe to
// a program, in one text.
package described

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// file is a broker's file with remotes.
type file struct {
	config.Broker
	Remotes []config.Remote `json:"remotes"`
}

// Broker returns the configuration of a text with the key remotes.
func Broker(text []byte) (*config.Broker, error) {
	f, err := config.Parse[file](text)
	if err != nil {
		return nil, err
	}
	c, wrong := f.WithRemotes(f.Remotes)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		errs = append(errs, fmt.Errorf("remote %s: %s", name, strings.Join(wrong[name], "; ")))
	}
	return c, errors.Join(errs...)
}
