package verify

import (
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/show"
)

// Probe is what check --traffic runs in the pods that it makes.
func Probe() *cobra.Command {
	cmd := &cobra.Command{
		Use: "probe", Short: "the two ends of the traffic of check, in the pods that it makes", Hidden: true,
		Args: cobra.NoArgs,
	}
	serve := &cobra.Command{
		Use: "serve", Short: "answer who asks", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			listener, err := net.Listen("tcp", fmt.Sprintf(":%d", Port))
			if err != nil {
				return err
			}
			pod, node := Environment()
			return Serve(cmd.Context(), listener, pod, node)
		},
	}
	var q Question
	ask := &cobra.Command{
		Use: "ask URL", Short: "ask until the outcome is the wanted one, and print it as JSON", Args: cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			q.URL = args[0]
			data, err := json.Marshal(Ask(cmd.Context(), q))
			if err != nil {
				return err
			}
			return show.PrintDocument(cmd.OutOrStdout(), data, "json")
		},
	}
	f := ask.Flags()
	f.IntVar(&q.Bytes, "bytes", 0, "to send, and to get back")
	f.DurationVar(&q.Attempt, "attempt", 3*time.Second, "how long one request may take")
	f.DurationVar(&q.Within, "within", 0, "how long to try")
	f.BoolVar(&q.Refused, "refused", false, "want no answer")
	cmd.AddCommand(serve, ask)
	return cmd
}
