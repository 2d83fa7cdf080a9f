package testbed

import (
	"context"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/testbed/components"
	"github.com/kube-semaphore/semaphore/testbed/images"
)

// Image is what pods of tests and of people run: `testbed echo`, `testbed sleep`, a shell, curl, ip. It comes from no
// registry; nodes have it.
const Image = images.Testbed

// makeImages puts the archives of all images into the testbed's directory, where nodes see them.
func (tb *Testbed) makeImages(ctx context.Context, builder *components.Builder) ([]string, error) {
	programs := tb.options.Programs
	if programs == nil {
		done := tb.times.span("", "programs of the checkout are current")
		var err error
		if programs, err = builder.Programs(ctx); err != nil {
			return nil, err
		}
		done()
	}
	defer tb.times.span("", "images are made")()
	archives, err := (&images.Builder{Progress: tb.options.Progress}).Ensure(ctx, filepath.Join(tb.state.path, "images"),
		tb.paths, programs)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, a := range archives {
		paths = append(paths, a.Path)
	}
	return paths, nil
}
