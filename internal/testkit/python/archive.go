package python

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Archive makes the archive of a relocatable Python in dir, from the interpreter at a path such as
// /usr/bin/python3.11 and its library. It has no byte code and no packages that only people use.
func Archive(dir, program string) (string, error) {
	program, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", err
	}
	name := filepath.Base(program)
	file := filepath.Join(dir, "cpython-"+strings.TrimPrefix(name, "python")+"-install_only.tar.gz")
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed) // BestSpeed is a valid level
	w := tar.NewWriter(z)
	err = errors.Join(
		addFile(w, program, "python/bin/"+name),
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "python/bin/python3", Linkname: name}),
		addLibrary(w, filepath.Join(filepath.Dir(filepath.Dir(program)), "lib", name), "python/lib/"+name),
	)
	return file, errors.Join(err, w.Close(), z.Close(), f.Close())
}

// leftOut are folders of a library that the programs on nodes do without.
var leftOut = []string{
	"__pycache__", "test", "dist-packages", "idlelib", "lib2to3", "tkinter", "turtledemo", "pydoc_data", "ensurepip", "distutils", "unittest",
	"curses", "dbm", "sqlite3", "wsgiref", "xmlrpc",
}

// addLibrary adds the modules of a Python.
func addLibrary(w *tar.Writer, lib, as string) error {
	return filepath.WalkDir(lib, func(path string, d fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel(lib, path); {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(leftOut, d.Name()) || strings.HasPrefix(d.Name(), "config-")):
			return filepath.SkipDir
		case d.Type().IsRegular():
			return addFile(w, path, as+"/"+filepath.ToSlash(rel))
		}
		return nil
	})
}

func addFile(w *tar.Writer, path, name string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
