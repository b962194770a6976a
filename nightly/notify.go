package nightly

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Notify is the receiver of a message about a failed night. URL or Command is given.
type Notify struct {
	URL     string   // gets a Notice, as JSON, by POST; it may hold a secret and is never printed
	Command []string // gets the text of a Notice on standard input

	Transport http.RoundTripper // by which the URL is reached; nil: http.DefaultTransport
}

// Notice is a message about a failed night.
type Notice struct {
	Text   string   `json:"text"` // all of it, for people
	ID     string   `json:"id,omitempty"`
	By     string   `json:"by"`
	Error  string   `json:"error"`
	Failed []string `json:"failed"`           // wheels
	Report string   `json:"report,omitempty"` // the file report.json
}

// notifyLimit is how long somebody may take to be told.
const notifyLimit = time.Minute

// NewNotice is the notice of a night. The report is nil where the night could
// not begin.
func NewNotice(report *Report, by string, failure error) Notice {
	n := Notice{By: by, Error: failure.Error(), Failed: []string{}}
	if report == nil {
		n.Text = fmt.Sprintf("dsbuild nightly (%s) failed: %s\n", by, n.Error)
		return n
	}
	n.ID = report.ID
	for _, e := range report.Entries {
		if e.Status == Failed {
			n.Failed = append(n.Failed, e.Name)
		}
	}
	n.Text = fmt.Sprintf("dsbuild nightly %s (%s) failed: %s\n", n.ID, by, n.Error)
	if file, err := filepath.Abs(filepath.Join(report.Dir, reportName+".json")); err == nil && !report.Ended.IsZero() {
		n.Report = file
		n.Text += "report: " + file + "\n"
	}
	return n
}

// Send sends a notice. The error names neither the URL nor the output of the command:
// both may hold secrets.
func (n Notify) Send(ctx context.Context, notice Notice) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyLimit)
	defer cancel()
	if len(n.Command) > 0 {
		return n.runCommand(ctx, notice)
	}
	return n.postToURL(ctx, notice)
}

// runCommand gives the notice to the command.
func (n Notify) runCommand(ctx context.Context, notice Notice) error {
	cmd := exec.CommandContext(ctx, n.Command[0], n.Command[1:]...)
	cmd.Stdin = bytes.NewReader([]byte(notice.Text))
	cmd.Env = append(os.Environ(), "DSBUILD_REPORT="+notice.Report)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %s", notifyLimit)
	}
	if err != nil {
		return fmt.Errorf("command %s: %w", filepath.Base(n.Command[0]), err)
	}
	return nil
}

// postToURL sends the notice to the URL. It follows no redirects: the notice is for that
// server.
func (n Notify) postToURL(ctx context.Context, notice Notice) error {
	body, err := json.Marshal(notice)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is not valid")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "dsbuild")
	client := &http.Client{Transport: n.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err // at itself prints the URL
	}
	if err != nil {
		return fmt.Errorf("%s: %w", request.URL.Hostname(), err)
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10)
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("%s: the server answered %d %s", request.URL.Hostname(), answer.StatusCode, http.StatusText(answer.StatusCode))
	}
	return nil
}
