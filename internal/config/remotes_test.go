package config

import (
	"strings"
	"testing"
)

// TestFilesOfTheOriginals: a part that is started with a file of an original tool reports that, with the command that
// converts it.
func TestFilesOfTheOriginals(t *testing.T) {
	for text, tool := range map[string]string{
		`{"local": {"name": "c1"}, "remotes": [{"name": "c2", "podSubnet": "10.2.0.0/16"}]}`: "semaphore-wireguard",
		`{"global": {}, "localCluster": {"name": "c1"}, "remoteClusters": []}`:               "semaphore-service-mirror",
	} {
		for part, parse := range map[string]func([]byte) error{
			"broker":   func(data []byte) error { _, err := Parse[Broker](data); return err },
			"exporter": func(data []byte) error { _, err := Parse[Exporter](data); return err },
			"agent":    func(data []byte) error { _, err := Parse[Agent](data); return err },
		} {
			err := parse([]byte(text))
			if err == nil || !strings.Contains(err.Error(), tool+": run semaphorectl migrate") {
				t.Errorf("%s with a file of %s: %v", part, tool, err)
			}
		}
	}
}
