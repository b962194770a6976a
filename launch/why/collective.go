package why

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// collective is the collective that timed out on a rank.
type collective struct {
	sequence int
	op       string
}

// explainTimeouts lists the ranks that did not arrive at the collective that timed out.
func explainTimeouts(watch map[int]collective) string {
	timed := 0
	var most collective
	for _, w := range watch {
		if w.op != "" {
			timed++
		}
		if w.op != "" && w.sequence > most.sequence {
			most = w
		}
	}
	if timed == 0 {
		return ""
	}
	var behind, silent []string
	last := slices.Max(slices.Collect(maps.Keys(watch)))
	for rank := 0; rank <= last && last < 1<<16; rank++ {
		w, known := watch[rank]
		switch {
		case !known || w.op == "":
			silent = append(silent, strconv.Itoa(rank))
		case w.sequence < most.sequence:
			behind = append(behind, fmt.Sprintf("%d (at %s %d)", rank, w.op, w.sequence))
		}
	}
	text := fmt.Sprintf("%s number %d timed out on %s", most.op, most.sequence, ui.Count(timed, "rank"))
	if len(behind) > 0 {
		text += "; behind: rank " + strings.Join(behind[:min(len(behind), 8)], ", ")
	}
	if len(silent) > 0 {
		text += "; no timeout on rank " + foldRanks(silent)
	}
	return text
}

// foldRanks shortens a list of ranks: [0-2,5].
func foldRanks(ranks []string) string {
	folded, whole := ui.FoldWithin(ranks, 60)
	if !whole {
		folded += " …"
	}
	return folded
}
