package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// config is a flat DeepSpeed configuration: each value by its keys, joined by dots,
// with its place in the file.
type config map[string]setTo

type setTo struct {
	value  any // string, json.Number, bool, nil, or children for an object or list
	offset int // of the key's first byte
}

// children is the value of an object or list.
type children struct{}

// readConfig reads JSON as DeepSpeed does: a duplicate key is an error.
func readConfig(data []byte) (config, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	c := config{}
	if err := c.readValue(dec, "", 0, 0); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &configFault{int(dec.InputOffset()), "more than one JSON value"}
	}
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return nil, &configFault{0, "not a JSON object"}
	}
	return c, nil
}

// configFault is the error of invalid JSON, or of JSON that DeepSpeed rejects.
type configFault struct {
	offset int
	reason string
}

func (f *configFault) Error() string { return f.reason }

const maxConfigDepth = 50

func (c config) readValue(dec *json.Decoder, path string, offset, depth int) error {
	if depth > maxConfigDepth {
		return &configFault{offset, "nested too deeply"}
	}
	t, err := dec.Token()
	if err != nil {
		return faultOf(dec, err)
	}
	open, nested := t.(json.Delim)
	if !nested {
		c[path] = setTo{t, offset}
		return nil
	}
	if depth > 0 {
		c[path] = setTo{children{}, offset}
	}
	for i := 0; dec.More(); i++ {
		key, at := strconv.Itoa(i), int(dec.InputOffset())
		if open == '{' {
			t, err := dec.Token()
			if err != nil {
				return faultOf(dec, err)
			}
			key, _ = t.(string)
			at = int(dec.InputOffset()) - len(jsonText(key))
		}
		inner := strings.TrimPrefix(path+"."+key, ".")
		if _, twice := c[inner]; twice {
			return &configFault{at, fmt.Sprintf("duplicate key %q", inner)}
		}
		if err := c.readValue(dec, inner, at, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token() // the closing one
	return faultOf(dec, err)
}

func faultOf(dec *json.Decoder, err error) error {
	if err == nil {
		return nil
	}
	at := int(dec.InputOffset())
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		at = int(syntax.Offset) - 1
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &configFault{at, "unexpected end of JSON"}
	}
	return &configFault{at, err.Error()}
}

func (c config) isTrue(key string) bool { return c[key].value == true }

// textOf returns the string value of a key, or "" if it is not a string.
func (c config) textOf(key string) string {
	s, _ := c[key].value.(string)
	return s
}
