package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
)

// dashboardPort is that of listen.dashboard in docs/picture.md.
const dashboardPort = 8085

// reachPage bounds the time until the page answers.
const reachPage = 10 * time.Second

// page is the broker's page, as the flags of --web ask for it.
type page struct {
	web, open bool
	port      uint16
}

func (p *page) flags(f *pflag.FlagSet) {
	f.BoolVar(&p.web, "web", false, "reach the page that the leading broker of one cluster serves, until Ctrl-C")
	f.Uint16Var(&p.port, "port", dashboardPort,
		"with --web: `port` of listen.dashboard in the broker's configuration")
	f.BoolVar(&p.open, "open", false, "with --web: open the page in a browser, too")
}

// show forwards a port to the page, and keeps it open until ctx ends.
func (p *page) show(ctx context.Context, w io.Writer, c *fleet.Cluster) error {
	pods, err := c.Pods(ctx, fleet.Broker, "")
	if err != nil {
		return err
	}
	said := &fleet.Tail{}
	return c.Forward(ctx, pods[0], p.port, said, func(local uint16) error {
		url := fmt.Sprintf("http://127.0.0.1:%d/", local)
		if err := pageAnswers(ctx, url); err != nil {
			return fmt.Errorf("%s: pod %s/%s serves no page at its port %d: set listen.dashboard: 127.0.0.1:%d in the "+
				"broker's configuration (docs/picture.md): %w", c.Context, pods[0].Namespace, pods[0].Name, p.port, p.port,
				errors.Join(err, said.Err()))
		}
		fmt.Fprintf(w, "%s shows the mesh as the broker of %s sees it; Ctrl-C ends this\n", url,
			show.Printable(c.Context))
		if p.open {
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
		return fmt.Errorf("--open: %s: %w: %s", name, err, show.Printable(string(out)))
	}
	return nil
}
