// Package wheel is what a wheel is: the Spec of what is wanted, the Manifest
// of what was built, the Contents of what is inside, and the reader of .whl
// files. It is pure: no network, no processes, nothing else of dsbuild's.
package wheel
