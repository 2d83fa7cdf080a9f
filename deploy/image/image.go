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
	// Layers are ordered from the lowest to the highest. Rarely changing files belong into lower layers.
	Layers [][]Entry
	// Config is the default configuration of containers.
	Config v1.Config
	// Created is the creation time in the image's metadata. It is omitted if zero.
	Created time.Time
	// Uncompressed layers are larger but faster to create and unpack.
	Uncompressed bool
}

// New builds an image. It reads the files of the entries immediately, and fails if one cannot be read.
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
