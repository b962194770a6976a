// Package wheel describes wheels: the Request for one, the Manifest of a finished wheel, the
// Contents of its files, and the Archive that reads .whl files. It uses no network, no processes,
// and no other package of dsbuild.
package wheel
