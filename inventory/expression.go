package inventory

import "unicode/utf8"

// nodeExpressions reads lines of node expressions.
func (r *reader) nodeExpressions() *Inventory {
	list := nodeList{reader: r, first: make(map[string]Position)}
	for at, text := range r.textLines() {
		inside := func(offset int) Position {
			there := at
			there.Column += utf8.RuneCountInString(text[:offset])
			return there
		}
		if list.full || len(list.Problems) > enoughMistakes {
			break
		}
		for _, name := range list.expand(text, at, inside) {
			list.addNode(name, at, settings{})
		}
	}
	return &Inventory{Hosts: list.hosts}
}
