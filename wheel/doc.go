// Package wheel describes wheels: the Spec of a requested wheel, the Manifest of a finished one,
// the Contents of its files, and the reader of .whl files. It is pure: it uses no network, no
// processes, and no other package of dsbuild.
package wheel
