package image

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// mediaTypeSBOM is the registered media type of CycloneDX JSON.
const mediaTypeSBOM types.MediaType = "application/vnd.cyclonedx+json"

// sbom returns the SBOM of the product's image in CycloneDX JSON: the programs, and the Go modules that the compiler
// recorded in each. It has neither a serial number nor a timestamp, so the same image gives the same SBOM.
func sbom(r Release, image v1.Image) ([]byte, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	const repository = "pkg:oci/semaphore"
	root := cdx.Component{
		Type: cdx.ComponentTypeContainer, BOMRef: repository + "@" + digest.String(), Name: Reference, Version: r.Version,
		PackageURL: fmt.Sprintf("%s@%s?arch=%s&repository_url=%s", repository,
			strings.ReplaceAll(digest.String(), ":", "%3A"), r.Arch, Reference),
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}},
	}
	modules := map[string]cdx.Component{}
	var programs []cdx.Component
	var dependencies []cdx.Dependency
	var refs []string
	for _, name := range Programs {
		info, err := buildinfo.ReadFile(r.Programs[name])
		if err != nil {
			return nil, fmt.Errorf("SBOM: program %s: %w", name, err)
		}
		data, err := os.ReadFile(r.Programs[name])
		if err != nil {
			return nil, fmt.Errorf("SBOM: %w", err)
		}
		sum := sha256.Sum256(data)
		program := cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "program:" + name, Name: info.Path, Version: r.Version,
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
			Properties: &[]cdx.Property{{Name: "path", Value: path.Join(programDir, name)}},
		}
		programs, refs = append(programs, program), append(refs, program.BOMRef)
		var needs []string
		for _, m := range modulesOf(info) {
			modules[m.BOMRef] = m
			needs = append(needs, m.BOMRef)
		}
		slices.Sort(needs)
		dependencies = append(dependencies, cdx.Dependency{Ref: program.BOMRef, Dependencies: &needs})
	}
	components := programs
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	dependencies = append([]cdx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}, dependencies...)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &root}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("SBOM: %w", err)
	}
	return out.Bytes(), nil
}

// modulesOf returns the modules in a program except its own: the standard library, and its dependencies after
// replacements.
func modulesOf(info *buildinfo.BuildInfo) []cdx.Component {
	modules := []*debug.Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules = append(modules, m)
	}
	components := make([]cdx.Component, len(modules))
	for i, m := range modules {
		purl := fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)
		components[i] = cdx.Component{
			Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: m.Path, Version: m.Version, PackageURL: purl,
			Scope: cdx.ScopeRequired,
		}
		if m.Sum != "" { // the checksum of go.sum, over all files of the module
			components[i].Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
	}
	return components
}

// referrer wraps an SBOM as an artifact with the described image as its subject.
func referrer(sbom []byte, image v1.Image) (v1.Image, error) {
	subject, err := partial.Descriptor(image)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mediaTypeSBOM)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(sbom, mediaTypeSBOM))
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest,
		Size: subject.Size}).(v1.Image), nil
}
