// Package image puts an installed wheel as one layer on a container image.
//
// Survey reads the base and returns a Plan: the facts about the base, each with its source, and
// where the wheel's files go. Plan.Build writes the layer and the image. The base is neither
// pulled nor unpacked, unless it comes from another registry or the result is a file.
package image
