package nightly

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// notifyLimit is how long somebody may take to be told.
const notifyLimit = time.Minute

// Notify gives the notice of a failed night to a command on its standard input. The report is nil if the night
// could not begin. The error does not have the output of the command, which may hold secrets.
func Notify(ctx context.Context, command []string, report *Report, by string, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyLimit)
	defer cancel()
	text, file := fmt.Sprintf("dsbuild nightly (%s) failed: %s\n", by, failure), ""
	if report != nil && !report.Ended.IsZero() {
		var err error
		if file, err = filepath.Abs(filepath.Join(report.Dir, reportName+".json")); err != nil {
			return err
		}
		text += "report: " + file + "\n"
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(text)
	cmd.Env = append(os.Environ(), "DSBUILD_REPORT="+file)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %s", notifyLimit)
	}
	if err != nil {
		return fmt.Errorf("command %s: %w", filepath.Base(command[0]), err)
	}
	return nil
}
