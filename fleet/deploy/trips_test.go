package deploy_test

import (
	"context"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// A node that is far away costs each command its round trips, by either client the same. One trip more needs a reason here; one
// less lowers the number.
func TestRoundTrips(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	if _, err := remote.FindOpenSSH(t.Context()); err != nil {
		needs.Missing(t, "%v", err)
	}
	put := func(opt deploy.Options) error { return run(t, context.Background(), opt).Err() }
	look := func(opt deploy.Options) error {
		r, err := verify.Run(context.Background(), verifyOptions(opt))
		if err == nil {
			err = r.Err()
		}
		return err
	}
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	for _, client := range []remote.Client{remote.Native, remote.OpenSSH} {
		h, s := host(t, "gpu1", newEnvironment(t, "2.15.0"), sshtest.Options{})
		opt := options(t, wheels, []*sshtest.Server{s}, h)
		opt.Dialer = remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute, Client: client})
		for _, c := range []struct {
			does string
			run  func(deploy.Options) error
			want sshtest.Trips
		}{
			// Sessions, each with one request that starts its program: the probe, the agent, SFTP, the program that loads
			// the ops. SFTP: version, open, mode, free space, one packet of data, close, size, rename. Orders: users,
			// digest, install, record.
			{"first deploy", put, sshtest.Trips{Connections: 1, Sessions: 4, Requests: 4, SFTP: 8, Orders: 4}},
			// The probe; the program that compares the files and loads the ops.
			{"deploy of an up-to-date node", put, sshtest.Trips{Connections: 1, Sessions: 2, Requests: 2}},
			// The probe, which compares the files, too; the program that loads the ops.
			{"verify", look, sshtest.Trips{Connections: 1, Sessions: 2, Requests: 2}},
		} {
			if err := c.run(opt); err != nil {
				t.Errorf("%s, %s: %v", client, c.does, err)
			}
			if got := s.Trips(); got != c.want {
				t.Errorf("%s, %s: %+v, want %+v", client, c.does, got, c.want)
			}
		}
	}
}
