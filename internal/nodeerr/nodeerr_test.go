package nodeerr_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

var errDial = errors.New("no connection")

func TestCommon(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 15), Port: 22}, Err: errors.New("no route to host")}
	lookup := &net.DNSError{Err: "no such host", Name: "gpu1.cluster", Server: "10.0.0.1:53"}
	inner := nodeerr.Errorf("%w to %s: %w", errDial, nodeerr.Own("10.0.0.15:22"), dial)
	process := nodeerr.Messagef("pid %d (alice): %s", nodeerr.Own(71), "train.py")
	for name, c := range map[string]struct {
		err        error
		text, want string
	}{
		"plain":   {errDial, "no connection", "no connection"},
		"marked":  {inner, "no connection to 10.0.0.15:22: dial tcp 10.0.0.15:22: no route to host", "no connection to …: dial tcp: no route to host"},
		"wrapped": {fmt.Errorf("probe: %w", inner), "probe: no connection to 10.0.0.15:22: dial tcp 10.0.0.15:22: no route to host", "probe: no connection to …: dial tcp: no route to host"},
		"hinted":  {fault.WithHint(inner, "is it on?"), inner.Error(), "no connection to …: dial tcp: no route to host"},
		"several": {fmt.Errorf("%w, %w", inner, lookup), inner.Error() + ", lookup gpu1.cluster on 10.0.0.1:53: no such host", "no connection to …: dial tcp: no route to host, no such host"},
		"verbs":   {nodeerr.Errorf("%q of %.1f GiB, %03d", "a", nodeerr.Own(1.25), nodeerr.Own(7)), `"a" of 1.2 GiB, 007`, `"a" of … GiB, …`},
		"message": {nodeerr.Errorf("used by %s", process), "used by pid 71 (alice): train.py", "used by pid … (alice): train.py"},
		"percent": {nodeerr.Errorf("100%%w of %w, %s", errDial, nodeerr.Own("x")), "100%w of no connection, x", "100%w of no connection, …"},
		"as one":  {nodeerr.Error(process), "pid 71 (alice): train.py", "pid … (alice): train.py"},
	} {
		if got := c.err.Error(); got != c.text {
			t.Errorf("%s: text %q", name, got)
		}
		if got := nodeerr.Common(c.err); got != c.want {
			t.Errorf("%s: cause %q", name, got)
		}
	}
	if got := nodeerr.Common(nil); got != "" {
		t.Errorf("no error: %q", got)
	}
	if !errors.Is(inner, errDial) || !errors.As(fmt.Errorf("x: %w", inner), new(*net.OpError)) || errors.Is(inner, fs.ErrNotExist) {
		t.Error("an error does not wrap what it was made of")
	}
}
