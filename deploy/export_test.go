package deploy

// WithAftermath is a node that failed, and of which something became then.
func WithAftermath(n NodeReport, why, after string) NodeReport {
	n.aftermath = "; " + after
	n.Error = why + n.aftermath
	return n
}
