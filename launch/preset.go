package launch

// Preset is a size of job that has a name.
type Preset struct {
	Name        string
	Nodes, GPUs int
}

// Presets are the sizes that have names.
func Presets() []Preset {
	return []Preset{{"small", 2, 8}, {"medium", 4, 8}, {"large", 8, 8}}
}
