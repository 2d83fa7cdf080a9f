package testbed

import (
	"context"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/images"
)

// Image is the image for the pods of tests and of users: `testbed echo`, `testbed sleep`, a shell, curl, ip. No
// registry has it; the nodes have imported it.
const Image = images.Testbed

// makeImages makes tb.imagesDir the root directory of a containerd with all images, for the nodes.
func (tb *Testbed) makeImages(ctx context.Context, builder *components.Builder) error {
	programs := tb.options.Programs
	if programs == nil {
		done := tb.times.span("", "programs of the checkout are current")
		var err error
		if programs, err = builder.Programs(ctx); err != nil {
			return err
		}
		done()
	}
	defer tb.times.span("", "images are there")()
	return (&images.Builder{Progress: tb.options.Progress}).Ensure(ctx, tb.imagesDir(), tb.paths, programs)
}

func (tb *Testbed) imagesDir() string { return filepath.Join(tb.state.path, "images") }
