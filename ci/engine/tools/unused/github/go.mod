module github.com/google/go-github/v59

go 1.26.1
