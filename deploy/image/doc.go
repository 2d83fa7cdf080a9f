// Package image builds container images without a container engine: the product's, which the manifests beside it run,
// and with the same means other ones.
//
// An image is made of entries (files, directories, links), and depends on them and on the time it is given alone: the
// same in gives the same digest out. Write gives an archive in the OCI image layout, Push sends the same to a registry.
//
// It builds no program and imports nothing of this module.
package image
