package broker

import (
	"bufio"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestPageOfABroker checks that a broker with listen.dashboard serves its state: the remotes, their Services and sets,
// and its events. Without the key the page is off.
func TestPageOfABroker(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	address := loopback.Address(t)
	stop := w.start(w.cfg)
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Fatal("the page is served, and nobody asked for it")
	}
	stop()

	w.cfg.Listen.Dashboard = address
	defer w.start(w.cfg)()
	e := w.exporter("c2")
	e.SendAll("c2", "e1", players.Service("shop", "fine", 80), players.Member("shop", "p", "u", "web", "10.2.1.5"))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response := testkit.Value(client.Get("http://" + address + "/state"))(t)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	last := ""
	for began := time.Now(); ; {
		line := testkit.Value(lines.ReadString('\n'))(t)
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var v operator.View
		testkit.Must(t, json.Unmarshal([]byte(data), &v))
		if last = data; len(v.Mesh.Links) == 2 && v.Mesh.Clusters[0].Name == "c1" && len(v.Services) == 1 &&
			v.Services[0].Name == "fine" && v.Services[0].Clusters[0].Cluster == "c2" && len(v.Events) > 0 &&
			len(v.Sets) == 1 && v.Sets[0].Name == "web" {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("the page does not show what the broker has: %s", last)
		}
	}
}
