package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// allowedLicences are sentences of the licences under which the program may hold other modules: Apache 2.0 (two), MIT, BSD, ISC
// and MPL 2.0.
var allowedLicences = regexp.MustCompile(`(?i)Apache License Version 2\.0, January 2004|Licensed under the Apache License, Version 2\.0|` +
	`Permission is hereby granted, free of charge, to any person obtaining a copy|` +
	`Redistribution and use in source and binary forms, with or without modification, are permitted|` +
	`Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted|` +
	`Mozilla Public License,? Version 2\.0`)

// TestLicences finds the licence of every module in the program.
func TestLicences(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/dsbuild")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			modules[path] = dir
		}
	}
	if len(modules) < 20 {
		t.Fatalf("%d modules; want all of the program", len(modules))
	}
	for path, dir := range modules {
		if !hasAllowedLicence(t, dir) {
			t.Errorf("%s: no file of %s has the text of an allowed licence (Apache 2.0, MIT, BSD, ISC, MPL 2.0)", path, dir)
		}
	}
}

// hasAllowedLicence reports whether a module's folder has the text of an allowed licence.
func hasAllowedLicence(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.FieldsFunc(string(text), func(r rune) bool { return unicode.IsSpace(r) || r == '>' }) // of quoted lines
		if allowedLicences.MatchString(strings.Join(words, " ")) {
			return true
		}
	}
	return false
}
