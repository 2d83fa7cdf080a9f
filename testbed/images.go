package testbed

import (
	"context"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/testbed/components"
	"github.com/kube-semaphore/semaphore/testbed/images"
)

// Image is the image for the pods of tests and of users: `testbed echo`, `testbed sleep`, a shell, curl, ip. No
// registry has it; the nodes have imported it.
const Image = images.Testbed

// makeImages builds the archives of all images in the testbed's directory, which the nodes mount.
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
