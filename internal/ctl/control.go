package ctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// control has a broker's ControlService called: that of the one among the parts. does is what only brokers do.
func (t *target) control(cmd *cobra.Command, timeout time.Duration, does string, call func(context.Context, semaphorev1.ControlServiceClient) error) error {
	if t.address != "" && t.part != "broker" {
		return fmt.Errorf("--part %q: only a broker %s", t.part, does)
	}
	parts, err := t.dial(cmd.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	asked, err := controlEach(ctx, parts, call)
	if asked == 0 {
		return errors.New("none of the parts asked is a broker: run this where the broker that leads runs, or give --address")
	}
	return err
}

// controlEach has the ControlService called of each part that does what is asked, and returns how many these are.
func controlEach(ctx context.Context, parts []*part, call func(context.Context, semaphorev1.ControlServiceClient) error) (asked int, err error) {
	var failed []string
	for _, p := range parts {
		err := call(ctx, semaphorev1.NewControlServiceClient(p.conn))
		p.Close()
		if grpcstatus.Code(err) == codes.Unimplemented {
			continue
		}
		asked++
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s: %s", p.where, printable(grpcstatus.Convert(err).Message())))
		}
	}
	if len(failed) > 0 {
		return asked, errors.New(strings.Join(failed, "; "))
	}
	return asked, nil
}
