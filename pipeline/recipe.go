package pipeline

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// recipeFile has the number of the recipe and the digests of its default plans: a test fails if these change and the
// number is not increased. Installers prefer the wheel with the higher number.
//
//go:embed recipe.json
var recipeFile []byte

// recipe returns the number of the recipe.
func recipe() int {
	var file struct{ Number int }
	if err := json.Unmarshal(recipeFile, &file); err != nil {
		panic(fmt.Sprintf("recipe.json: %v", err)) // it is part of the program, and tested
	}
	return file.Number
}
