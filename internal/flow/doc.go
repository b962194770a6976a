// Package flow joins what builds wheels with what deploys them. Ship asks the
// nodes of a fleet what they need, has the fewest wheels built that serve them
// all, and puts each where it fits. It is the only room that knows both sides,
// and it knows nothing below them: how a plan is made, run, or brought to a node
// is theirs.
package flow
