// Package image builds container images without a container engine: the product's image, which the manifests run, and
// others with the same functions.
//
// An image consists of entries (files, directories, links). Its digest depends only on them and on the given time.
// Write creates an archive in the OCI image layout, and Push pushes the same image to a registry.
//
// The package builds no program: build does, for `make image`.
package image
