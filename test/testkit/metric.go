package testkit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric returns the sum of all samples of a metric that have all given label values, in any order. For a histogram, it
// sums the numbers of observations. found reports whether such a sample exists.
func Metric(tb testing.TB, metrics prometheus.Gatherer, name string, labels ...string) (sum float64, found bool) {
	tb.Helper()
	families, err := metrics.Gather()
	Must(tb, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, sample := range f.GetMetric() {
			var values []string
			for _, l := range sample.GetLabel() {
				values = append(values, l.GetValue())
			}
			if !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(values, l) }) {
				sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue() +
					float64(sample.GetHistogram().GetSampleCount())
				found = true
			}
		}
	}
	return sum, found
}

// Scraped returns the sum of a metric in the text of a scrape, over the series that have all given labels, such as
// `cluster="a"`. It is 0 if there is none.
func Scraped(tb testing.TB, text, name string, labels ...string) (sum float64) {
	tb.Helper()
	for line := range strings.Lines(text) {
		of, _, _ := strings.Cut(line, "{")
		of, _, _ = strings.Cut(of, " ")
		if of == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			fields := strings.Fields(line)
			sum += Value(strconv.ParseFloat(fields[len(fields)-1], 64))(tb)
		}
	}
	return sum
}

// Get returns what is at a URL, by a connection of its own, or an error with the answer if that is not 200.
func Get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}
