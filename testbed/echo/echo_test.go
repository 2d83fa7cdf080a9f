package echo

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, Answer{Pod: "p", Namespace: "n", Node: "k"}) }()

	base := "http://" + listener.Addr().String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/some/path?headers", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Mark", "m")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var got Answer
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Pod != "p" || got.Namespace != "n" || got.Node != "k" || got.IP != "127.0.0.1" || got.Path != "/some/path" ||
		!strings.HasPrefix(got.Client, "127.0.0.1:") || got.Headers.Get("X-Mark") != "m" {
		t.Errorf("answer: %+v", got)
	}
	health, err := http.Get(base + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = health.Body.Close()
	if health.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", health.Status)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("end: %v", err)
	}
}
