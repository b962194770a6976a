package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultTests are the failures of faults.md, and the tests that make each.
var faultTests = [][2]string{
	{"a connection breaks while a file is sent, at any byte", "TestCutAnywhereThenResume TestALostTransferGoesOnInTheSameRun TestWhatHasArrivedIsNotSentAgain"},
	{"a connection breaks later", "TestNodePutsItselfBackWhenTheControllerIsGone TestConnectionLostWhileRecording"},
	{"a file arrives damaged", "TestCorruptionIsNoticed"},
	{"the node's disk or a quota is full, or the disk has no free inodes: during the transfer, during pip, at the end", "TestDiskThatFillsUpOnTheWay TestFullDiskWhileInstalling"},
	{"the environment is mounted read-only", "TestReadOnlyEnvironmentIsRefused"},
	{"the node's disk fails", "TestFullFaultsFailingDisk"},
	{"a node's host key has changed; a node is off, unresponsive, resets the connection, rejects the key, or its name cannot be resolved", "TestOneChangedHostKeyAndOneDeadNodeDoNotStopTheOthers TestUnreachableNodesAreNamed TestFullFaultsDeadNodes"},
	{"a jump host does not allow forwarding", "TestJumpHostForbidsForwarding"},
	{"no name server responds", "TestFaultsOfTheController"},
	{"a node is slow", "TestSlowNodeHoldsUpNobody"},
	{"pip hangs", "TestHungPipAndWhoWaitsForIt"},
	{"the network stops during a deploy", "TestSilenceInTheMiddle TestSilenceIsNoticed"},
	{"dsbuild is killed", "TestFaultsOfAFleet TestFullFaultsKilledProgram"},
	{"Ctrl-C", "TestFaultsOfAFleet TestFullFaultsCtrlC"},
	{"dsbuild is frozen (a laptop that sleeps)", "TestFullFaultsFrozenController"},
	{"dsbuild's program on the node is killed", "TestNextRunRepairsWhatAPowerCutLeft TestKilledAgentLeavesTheOldOrTheNewVersion TestFullFaultsKilledAgent"},
	{"the node goes down, and comes back", "TestFaultsOfAFleet TestFullFaultsReboot"},
	{"its power is cut", "TestKilledAgentLeavesTheOldOrTheNewVersion TestFullFaultsPowerCut"},
	{"a command of the wheel, or its file in a shared directory, is partially installed", "TestKilledAgentLeavesTheOldOrTheNewVersion TestCommandsArePutBack TestFoldersOfOthersStay"},
	{"two deploys at once", "TestFaultsOfAFleet TestHungPipAndWhoWaitsForIt TestAnotherDeployBetweenProbeAndLock TestFullFaultsTwoDeploys"},
	{"the control node cannot write the report, the output or its cache", "TestFaultsOfTheController"},
	{"the node's clock is wrong", "TestNodesWithWrongClocks"},
}

// Each failure of faults.md has tests that exist, and every long test makes one of them.
func TestFaultsHaveTheTestsThatAreNamed(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, dir := range []string{".", "../../internal/remote", "../../cmd/dsbuild"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	var tests []string
	for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(source.String(), -1) {
		tests = append(tests, m[1])
	}
	page, err := os.ReadFile("faults.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| failure | result |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found || table == "" {
		t.Fatal("faults.md has no table")
	}
	var shown, listed, named []string
	for line := range strings.Lines(table + "\n") {
		fault, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		shown = append(shown, fault)
	}
	for _, f := range faultTests {
		listed = append(listed, f[0])
		named = append(named, strings.Fields(f[1])...)
		if f[1] == "" {
			t.Errorf("no test is named: %s", f[0])
		}
	}
	if !slices.Equal(shown, listed) {
		t.Errorf("faults.md shows the failures\n%s\nand there are tests of\n%s", strings.Join(shown, "\n"), strings.Join(listed, "\n"))
	}
	for _, name := range named {
		if !slices.Contains(tests, name) {
			t.Errorf("there is no test %s", name)
		}
	}
	for _, test := range tests {
		if strings.HasPrefix(test, "TestFullFaults") && !slices.Contains(named, test) {
			t.Errorf("%s makes no fault of the table", test)
		}
	}
}
