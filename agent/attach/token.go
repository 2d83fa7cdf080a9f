package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/internal/volume"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxToken is far over any ServiceAccount token; what is larger is some other file.
	maxToken = 16 << 10
	// tokenEvery is how often the file is looked at. The kubelet renews a token when a fifth of its life is
	// left, two minutes at the least.
	tokenEvery = 30 * time.Second
)

// tokenFile shows the ServiceAccount token in a file: at every call, and on a stream that stands when the
// kubelet has renewed it. It never tells the token to anybody else.
type tokenFile struct {
	path string

	mu sync.Mutex
	// shown is the token that the broker was shown last, and problem why there was none to show.
	shown   string
	problem string
}

func (f *tokenFile) read() (string, error) {
	data, err := volume.ReadFile(f.path)
	if err != nil {
		return "", fmt.Errorf("broker.tokenFile: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(token) > maxToken {
		return "", errors.New("broker.tokenFile " + f.path + " holds no ServiceAccount token")
	}
	return token, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (f *tokenFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := f.read()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown = token
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: a token is never sent in the clear.
func (*tokenFile) RequireTransportSecurity() bool { return true }

// renewed is a message with the token of now, nil when the broker was shown it already. A token that cannot be
// read ends no stream: the one that was shown may be good for long.
func (f *tokenFile) renewed() *semaphorev1.AttachRequest {
	token, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if f.problem != err.Error() {
			slog.Warn("cannot read the token for the broker; the agent uses the last one", "error", err)
		}
		f.problem = err.Error()
		return nil
	}
	f.problem = ""
	if token == f.shown {
		return nil
	}
	f.shown = token
	return &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Token{Token: &semaphorev1.Token{Token: token}}}
}
