module github.com/dsbuild/dsbuild

go 1.26
