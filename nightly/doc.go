// Package nightly runs unattended. Each night it builds the wheels of a file from
// the newest sources where anything has changed, keeps and publishes them in an
// index, deploys them to a canary and then to the other nodes, and writes a report.
//
// One folder holds the state between nights. A run that was killed is finished by
// the next one, which uses the wheels that were already built.
package nightly
