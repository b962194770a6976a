package node

// Diff is one property in which nodes differ.
type Diff struct {
	// What names the property.
	What string
	// Values holds each node's, in the order given to Compare.
	Values []string
}

// Compare names what must be equal on every node of one job and is not.
func Compare(facts []Facts) []Diff {
	var diffs []Diff
	for _, p := range []struct {
		what string
		of   func(Facts) string
	}{
		{"deepspeed", func(f Facts) string {
			if f.DeepSpeed == nil {
				return ""
			}
			return f.DeepSpeed.Version
		}},
		{"torch", func(f Facts) string { return f.Torch }},
		{"cuda", func(f Facts) string { return f.TorchCUDA }},
	} {
		values := make([]string, len(facts))
		differ := false
		for i, f := range facts {
			values[i] = p.of(f)
			differ = differ || values[i] != values[0]
		}
		if differ {
			diffs = append(diffs, Diff{What: p.what, Values: values})
		}
	}
	return diffs
}
