// Package image puts installed wheels as one layer on a container image.
//
// Survey reads the base and returns a Plan: the facts about the base, each with its source, and
// where the wheels' files go. Plan.Build writes the layer and the image. go-containerregistry
// reads and writes images, in registries and on disk. The layers of a base in a registry are read
// only if its labels and configuration do not tell enough.
package image
