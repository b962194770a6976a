package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
)

// askpassSocket is the environment variable with the path of dsbuild's socket. To prompt for a
// password, ssh starts SSH_ASKPASS, which gets the answer through this socket from the dsbuild process
// that started ssh.
const askpassSocket = "DSBUILD_ASKPASS"

// askRequest is a prompt of ssh.
type askRequest struct {
	Prompt string `json:"prompt"`
	Kind   string `json:"kind,omitempty"` // SSH_ASKPASS_PROMPT: confirm, none, or "" for a text
}

// askReply is dsbuild's answer.
type askReply struct {
	Text string `json:"text"`
}

// tellsKind is ssh's word for a message that needs no answer, such as a request to touch a security
// key.
const tellsKind = "none"

// Askpass acts as ssh's SSH_ASKPASS program if ssh started this process as one. Otherwise asked is
// false. Askpass writes the answer to out; code is the exit status.
func Askpass(args []string, out io.Writer) (code int, asked bool) {
	socket := os.Getenv(askpassSocket)
	if socket == "" || len(args) != 1 {
		return 0, false
	}
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return 1, true
	}
	defer conn.Close()
	request := askRequest{Prompt: args[0], Kind: os.Getenv("SSH_ASKPASS_PROMPT")}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return 1, true
	}
	var reply askReply
	if err := json.NewDecoder(conn).Decode(&reply); err != nil {
		return 1, true
	}
	if _, err := fmt.Fprintln(out, reply.Text); err != nil {
		return 1, true
	}
	return 0, true
}

// serveAskpass answers ssh's prompts at a socket in the private directory until the caller calls
// end. An unanswered prompt stays open until then, because ssh would send the node an empty password
// if its askpass program ended without an answer.
func serveAskpass(socket string, answer func(prompt string, tell bool) (string, bool)) (end func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listening for OpenSSH's prompts: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerAskpass(conn, ended, answer)
		}
	}()
	return func() {
		listener.Close()
		close(ended)
	}, nil
}

func answerAskpass(conn net.Conn, ended <-chan struct{}, answer func(prompt string, tell bool) (string, bool)) {
	defer conn.Close()
	var request askRequest
	if err := json.NewDecoder(conn).Decode(&request); err != nil {
		return
	}
	text, ok := answer(request.Prompt, request.Kind == tellsKind)
	if request.Kind == tellsKind {
		io.Copy(io.Discard, conn) //nolint:errcheck // wait until ssh ends its askpass program
		return
	}
	if !ok {
		<-ended
		return
	}
	json.NewEncoder(conn).Encode(askReply{Text: text}) //nolint:errcheck // the asker may have gone
}
