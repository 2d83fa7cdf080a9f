package image

import (
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Spec describes an image for Linux.
type Spec struct {
	// Arch is a GOARCH.
	Arch string
	// Layers from the lowest on. What changes seldom belongs below.
	Layers [][]Entry
	// Config is what a container has where nothing else is said.
	Config v1.Config
	// Created is when, in the image's own words; the zero time is left out.
	Created time.Time
	// Uncompressed layers are larger, and quicker made and unpacked.
	Uncompressed bool
}

// New makes an image. What it has of files is read now.
func New(spec Spec) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var adds []mutate.Addendum
	for _, entries := range spec.Layers {
		l, err := layer(entries, !spec.Uncompressed)
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: spec.Created}}})
	}
	image, err := mutate.Append(image, adds...)
	if err != nil {
		return nil, fmt.Errorf("put an image together: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("put an image together: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Config = "linux", spec.Arch, v1.Time{Time: spec.Created},
		spec.Config
	return mutate.ConfigFile(image, config)
}
