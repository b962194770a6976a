package proc

import (
	"fmt"
	"os"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	p, err := parse("4711 (a (b) c) S 12 1 1 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0 9876 5")
	want := Process{PID: 4711, Parent: 12, Name: "a (b) c", State: "S", CPU: 35200 * time.Millisecond, Start: "9876"}
	if err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	for _, text := range []string{"", "x", "1 (", "1 ) (", "1 (a) S 2"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q is a process", text)
		}
	}
}

func TestAll(t *testing.T) {
	self, err := Read(Root, os.Getpid())
	if err != nil || self.Parent != os.Getppid() || self.Ended() {
		t.Fatalf("%+v, %v", self, err)
	}
	below := false
	for _, p := range Descendants(All(), self.Parent) {
		below = below || p.PID == self.PID
	}
	if !below {
		t.Error("this process is not below its parent")
	}
	tree := []Process{{PID: 4, Parent: 2}, {PID: 2, Parent: 1}, {PID: 3, Parent: 9}, {PID: 5, Parent: 4}}
	if got := fmt.Sprint(Descendants(tree, 1)); got != "[2 () 4 () 5 ()]" {
		t.Error(got)
	}
}
