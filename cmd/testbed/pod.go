package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/test/testbed/echo"
)

// The programs of the image "testbed".

func echoCommand() *cobra.Command {
	var listen string
	var quiet time.Duration
	cmd := &cobra.Command{
		Use:   "echo",
		Short: "in a pod: an HTTP server that says who answered and who asked",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return echo.Serve(cmd.Context(), listen, quiet)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", ":8080", "address to listen on")
	cmd.Flags().DurationVar(&quiet, "until-quiet", 0, "when terminated, serve until no request has come for this time")
	return cmd
}

func helloCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "hello TEXT",
		Short: "in a pod: answer TCP and UDP with a text",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return echo.Hello(cmd.Context(), listen, args[0])
		},
	}
	cmd.Flags().StringVar(&listen, "listen", ":42", "address to listen on")
	return cmd
}

func sleepCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sleep",
		Short: "in a pod: do nothing until terminated",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() },
	}
}
