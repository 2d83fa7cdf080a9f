package stream

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
	// maxToken is larger than any ServiceAccount token, in bytes. A larger file is not a token.
	maxToken = 16 << 10
	// tokenEvery is the interval at which the file is read. The kubelet renews a token when a fifth of its lifetime is
	// left, which is at least two minutes.
	tokenEvery = 30 * time.Second
)

// tokenFile sends the ServiceAccount token in a file with every call, and on an open stream after the kubelet renewed
// it. The token never appears in a log or an error.
type tokenFile struct {
	path string

	mu sync.Mutex
	// shown is the last token that was sent to the broker, and problem why it could not be read.
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

// renewed returns a message with the current token; nil if the broker has it already. If the file cannot be read, the
// stream continues: the token that was sent may be valid for a long time.
func (f *tokenFile) renewed() *semaphorev1.AttachRequest {
	token, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if f.problem != err.Error() {
			slog.Warn("cannot read the token for the broker; the last token remains in use", "error", err)
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
