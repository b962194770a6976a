//go:build linux

package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// ballast is a file that makes a wheel a big one: as much native code
// as a wheel of many ops for many GPUs has, and none that is ever loaded.
const (
	ballast     = "deepspeed/ops/ballast.bin"
	ballastSize = 30 << 20
)

// bigWheels makes big wheels of the real ones.
func (ws *workspace) bigWheels(context.Context, ui.Step) (string, error) {
	ws.big = nil
	for i, real := range ws.real {
		dir := filepath.Join(filepath.Dir(real), "big")
		if err := errors.Join(os.RemoveAll(filepath.Join(ws.dir, dir)), os.Mkdir(filepath.Join(ws.dir, dir), 0o755)); err != nil {
			return "", err
		}
		big := filepath.Join(dir, filepath.Base(real))
		if err := writeBigWheel(filepath.Join(ws.dir, real), filepath.Join(ws.dir, big), byte(i+1)); err != nil {
			return "", fmt.Errorf("%s: %w", real, err)
		}
		ws.big = append(ws.big, big)
	}
	return strings.Join(ws.big, ", "), nil
}

// writeBigWheel writes a wheel with ballast. What dsbuild says of the wheel in it does
// not go along: it would not be true.
func writeBigWheel(wheel, big string, seed byte) (err error) {
	in, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := os.Create(big)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := zip.NewWriter(f)
	var record string
	var gone []string
	for _, member := range in.File {
		folder, name, _ := strings.Cut(member.Name, "/")
		switch {
		case !strings.HasSuffix(folder, ".dist-info"):
		case name == "RECORD":
			record = member.Name
			continue
		case name == "dsbuild.json", strings.HasPrefix(name, "sboms/"):
			gone = append(gone, member.Name)
			continue
		}
		if err := out.Copy(member); err != nil {
			return err
		}
	}
	row, err := addBallast(out, seed)
	if err != nil {
		return err
	}
	if err := writeRecord(in, out, record, gone, row); err != nil {
		return err
	}
	return out.Close()
}

// addBallast writes the ballast and returns its row of RECORD.
func addBallast(out *zip.Writer, seed byte) ([]string, error) {
	w, err := out.Create(ballast)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, h), noiseReader(seed, ballastSize)); err != nil {
		return nil, err
	}
	return []string{ballast, "sha256=" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)), fmt.Sprint(ballastSize)}, nil
}

// writeRecord writes RECORD without the files that are gone, and with one row more.
func writeRecord(in *zip.ReadCloser, out *zip.Writer, name string, gone []string, row []string) error {
	old, err := in.Open(name)
	if err != nil {
		return err
	}
	defer old.Close()
	rows, err := csv.NewReader(old).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	rows = slices.DeleteFunc(rows, func(r []string) bool { return slices.Contains(gone, r[0]) })
	w, err := out.Create(name)
	if err != nil {
		return err
	}
	return csv.NewWriter(w).WriteAll(append(rows, row))
}
