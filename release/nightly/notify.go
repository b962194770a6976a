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

// notifyLimit is the timeout of the notify command.
const notifyLimit = time.Minute

// Notify pipes a failure notification to the standard input of a command. The report is nil if the nightly build
// could not begin. The error does not contain the command's output, which may hold secrets.
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
		err = fmt.Errorf("timed out after %s", notifyLimit)
	}
	if err != nil {
		return fmt.Errorf("command %s: %w", filepath.Base(command[0]), err)
	}
	return nil
}
