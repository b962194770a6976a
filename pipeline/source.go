package pipeline

// Source is DeepSpeed's sources: a release by its version, or a clean copy.
type Source struct {
	Kind    string
	Ref     string
	Commit  string
	SHA256  string
	Version string
	Dirty   bool
	File    string
}
