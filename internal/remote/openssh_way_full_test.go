//go:build linux && full

package remote_test

import (
	"bytes"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// The tests of dsbuild's own SSH that TestByOpenSSH leaves out hold for OpenSSH as well.
func TestFullRemoteByOpenSSH(t *testing.T) {
	testByOpenSSH(t, map[string]func(*testing.T, way){
		"nothing listens":            testNothingListens,
		"name unknown":               testNameUnknown,
		"stalled handshake":          testStalledHandshake,
		"unknown host key":           testUnknownHostKey,
		"host key of another type":   testHostKeyOfAnotherType,
		"revoked host key":           testRevokedHostKey,
		"refused key":                testRefusedKeyIsNotRetried,
		"encrypted key":              testEncryptedKeyWithoutAgent,
		"turned away":                testTurnedAway,
		"banned":                     testBannedAndTurnedAway,
		"reset":                      testResetInTheHandshake,
		"cut while running":          testCutWhileRunning,
		"silent program":             testSilentProgramIsLeftAlone,
		"cancel on a stalled node":   testCancelOnAStalledNode,
		"SFTP that does not end":     testSFTPThatDoesNotEnd,
		"no space":                   testNoSpace,
		"corruption":                 testCorruptionIsNoticed,
		"no SFTP":                    testNoSFTP,
		"long line":                  testPutFillsALongLine,
		"resume":                     testResumeTrustsNothing,
		"jump host refuses":          testJumpHostRefusesOnce,
		"jump host comes back":       testJumpHostComesBack,
		"jump host cannot reach":     testJumpHostCannotReach,
		"jump host forbids":          testJumpHostForbidsForwarding,
		"codes of a jump host":       testCodeOfAJumpHost,
		"passphrase":                 testPassphraseIsAskedOnce,
		"passphrase not asked":       testPassphraseIsNotAsked,
		"other password":             testOtherPasswordOfOneNode,
		"wrong password":             testWrongPasswordStaysWithOneNode,
		"thinking":                   testThinkingTakesNoTime,
		"real sshd known hosts":      testOpenSSHKnownHosts,
		"real sshd reinstalled":      testOpenSSHReinstalledNode,
		"real sshd refuses":          testOpenSSHRefusesUser,
		"real sshd goes down":        testOpenSSHNodeGoesDown,
		"real sshd forwards nothing": testOpenSSHForwardsNothing,
		"real jump hosts":            testOpenSSHJumpHost,
		"riding":                     testConformanceControlMaster,
		"riding to a jump host":      testControlMasterOfAJumpHost,
		"riding to a silent node":    testControlMasterOfASilentNode,
		"master stays":               testControlMasterStays,
		"stale master":               testStaleControlMaster,
		"no goroutine":               testNoGoroutineIsLeft,
		"reason of the node":         testReasonOfTheNode,
	})
}

// Many nodes at once, each with several sessions, do not disturb each other.
func TestFullRemoteManyNodes(t *testing.T) {
	d := bySSH(t, remote.Options{})
	var all sync.WaitGroup
	for range 48 {
		s := sshtest.Start(t, sshtest.Options{})
		all.Go(func() {
			c, err := d.Dial(t.Context(), s.Target())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			up, want := blob(1<<18, filepath.Join(s.Home, "file"))
			if err := c.Put(t.Context(), up); err != nil {
				t.Error(err)
				return
			}
			var sessions sync.WaitGroup
			for range 4 {
				sessions.Go(func() {
					var out bytes.Buffer
					err := c.Run(t.Context(), remote.Command{Argv: []string{"cat", up.Path}, Stdout: &out})
					if err != nil || !bytes.Equal(out.Bytes(), want) {
						t.Errorf("%d of %d bytes, %v", out.Len(), len(want), err)
					}
				})
			}
			sessions.Wait()
		})
	}
	all.Wait()
}

func TestFullRemoteCutAnywhereThenResume(t *testing.T) { testCutAnywhereThenResume(t, 97<<10) }
