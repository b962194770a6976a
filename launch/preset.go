package launch

// Preset is a named job size.
type Preset struct {
	Name        string
	Nodes, GPUs int
}

// Presets are the named sizes.
func Presets() []Preset {
	return []Preset{{"small", 2, 8}, {"medium", 4, 8}, {"large", 8, 8}}
}
