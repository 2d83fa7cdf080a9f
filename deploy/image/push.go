package image

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push pushes the images as one index to a registry, and then their SBOMs as referrers. It uses the credentials of
// `docker login`, and returns the reference of the index by digest. It fails if reference is not valid, or the registry
// refuses.
func Push(ctx context.Context, reference string, platforms ...Platform) (string, error) {
	ref, err := name.NewTag(reference)
	if err != nil {
		return "", fmt.Errorf("reference to push to: %w", err)
	}
	index, err := index(platforms...)
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(ref, index, options...); err != nil {
		return "", fmt.Errorf("push %s: %w", ref, err)
	}
	for _, p := range platforms {
		if p.SBOM == nil {
			continue
		}
		artifact, err := referrer(p.SBOM, p.Image)
		if err != nil {
			return "", err
		}
		sbom, err := artifact.Digest()
		if err != nil {
			return "", err
		}
		if err := remote.Write(ref.Context().Digest(sbom.String()), artifact, options...); err != nil {
			return "", fmt.Errorf("push SBOM to %s: %w", ref.Context(), err)
		}
	}
	return ref.Context().Digest(digest.String()).String(), nil
}
