// Package nightly is what runs unattended: each night the wheels of a file are
// built from the newest sources where anything has changed, kept, published in an
// index, given to a few nodes and then to the others, and told about in a report.
//
// What is known from one night to the next lies in one folder. A night that was
// killed is finished by the next run; what it had built is there.
package nightly
