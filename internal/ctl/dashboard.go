package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
)

// dashboardPort is that of listen.dashboard in docs/picture.md.
const dashboardPort = 8085

func dashboardCommand(access *fleet.Access) *cobra.Command {
	var local, port uint16
	var open bool
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "open a port-forward to the broker's page with the live state of the mesh",
		Long: `Forwards a port of 127.0.0.1 to the page that the leading broker of a cluster serves, prints the page's URL,
and keeps the port-forward open until Ctrl-C. The page is off by default: listen.dashboard in the broker's
configuration turns it on (docs/picture.md). It needs the rights of "kubectl port-forward" in the namespace of the
parts.

  semaphorectl dashboard --context c1
  semaphorectl dashboard --context c1 --open

Exit code 0 after Ctrl-C, 1 when the page cannot be reached or the connection has ended.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := access.Cluster()
			if err != nil {
				return err
			}
			return dashboard(cmd.Context(), cmd.OutOrStdout(), c, local, port, open)
		},
	}
	cmd.Flags().Uint16Var(&local, "local-port", 0, "`port` of 127.0.0.1; 0 for any free one")
	cmd.Flags().Uint16Var(&port, "port", dashboardPort, "`port` of listen.dashboard in the broker's configuration")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser, too")
	return cmd
}

// reachPage bounds the time until the page answers.
const reachPage = 10 * time.Second

func dashboard(ctx context.Context, w io.Writer, c *fleet.Cluster, local, port uint16, open bool) error {
	pods, err := c.Pods(ctx, fleet.Broker, "")
	if err != nil {
		return err
	}
	said := &lastLine{}
	return c.Forward(ctx, pods[0], local, port, said, func(local uint16) error {
		url := fmt.Sprintf("http://127.0.0.1:%d/", local)
		if err := pageAnswers(ctx, url); err != nil {
			return fmt.Errorf("%s: pod %s/%s serves no page at its port %d: set listen.dashboard: 127.0.0.1:%d in the "+
				"broker's configuration (docs/picture.md): %w", c.Context, pods[0].Namespace, pods[0].Name, port, port,
				errors.Join(err, said.error()))
		}
		if _, err := fmt.Fprintf(w, "%s shows the mesh as the broker of %s sees it; Ctrl-C ends this\n", url,
			cli.Printable(c.Context)); err != nil {
			return err
		}
		if open {
			return browse(ctx, url)
		}
		return nil
	})
}

func pageAnswers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, reachPage)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// browse opens a URL in the browser of the person.
func browse(ctx context.Context, url string) error {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("--open: %s: %w: %s", name, err, cli.Printable(string(out)))
	}
	return nil
}

// lastLine keeps the last line that is written to it.
type lastLine struct {
	mu   sync.Mutex
	text string
}

func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text := strings.TrimSpace(string(bytes.ToValidUTF8(p, nil))); text != "" {
		l.text = cli.Printable(text[:min(len(text), 300)])
	}
	return len(p), nil
}

func (l *lastLine) error() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return nil
	}
	return errors.New(l.text)
}
