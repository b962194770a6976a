package index

import (
	"errors"
	"net/url"
	"slices"
)

// CheckURL says why installers cannot use the address of an index; nil if they can. The error does
// not repeat the address, which may hold a password.
func CheckURL(text string) error {
	at, err := url.Parse(text)
	switch {
	case err != nil || !slices.Contains([]string{"http", "https", "file"}, at.Scheme) || at.Host == "" && at.Scheme != "file":
		return errors.New("must be an address such as https://wheels.example.org/deepspeed/")
	case at.User != nil || at.RawQuery != "" || at.Fragment != "":
		return errors.New("must have no login, query or fragment")
	}
	return nil
}
