package verify

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

// Probe is the command that check --traffic runs in its pods.
func Probe() *cobra.Command {
	cmd := &cobra.Command{
		Use: "probe", Short: "the two ends of the traffic of check, in the pods that it makes", Hidden: true,
		Args: cobra.NoArgs,
	}
	serve := &cobra.Command{
		Use: "serve", Short: "answer who asks", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var listeners []net.Listener
			for _, port := range []int{Port, LoadPort} {
				listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
				if err != nil {
					return err
				}
				listeners = append(listeners, listener)
			}
			g, ctx := errgroup.WithContext(cmd.Context())
			g.Go(func() error { return Serve(ctx, listeners[0], os.Getenv("POD_NAME")) })
			g.Go(func() error { return ServeLoad(ctx, listeners[1]) })
			return g.Wait()
		},
	}
	var q Question
	ask := &cobra.Command{
		Use: "ask URL", Short: "ask until the outcome is the wanted one, and print it as JSON", Args: cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.URL = args[0]
			return show.PrintValue(cmd.OutOrStdout(), Ask(cmd.Context(), q), "json")
		},
	}
	f := ask.Flags()
	f.IntVar(&q.Bytes, "bytes", 0, "to send, and to get back")
	f.DurationVar(&q.Attempt, "attempt", 3*time.Second, "how long one request may take")
	f.DurationVar(&q.Within, "within", 0, "how long to try")
	f.BoolVar(&q.Refused, "refused", false, "want no answer")
	cmd.AddCommand(serve, ask, measureCommand())
	return cmd
}

func measureCommand() *cobra.Command {
	var m Measurement
	cmd := &cobra.Command{
		Use: "measure NAME HOST:PORT", Short: "measure the path to a server, and print the result as JSON",
		Args: cobra.ExactArgs(2), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			m.Name = Name(args[0])
			return show.PrintValue(cmd.OutOrStdout(), Measure(cmd.Context(), Path(args[1]), m), "json")
		},
	}
	f := cmd.Flags()
	f.IntVar(&m.Streams, "streams", 0, "connections at once")
	f.DurationVar(&m.While, "while", measureFor, "how long to measure")
	f.Float64Var(&m.Rate, "rate", 0, "bytes per second of each stream; 0 is no limit")
	return cmd
}
