package ansible

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// ranges expands [first:last] and [first:last:step] in a name, with numbers or letters. Both ends
// are included.
func ranges(pattern string, most int) ([]string, error) {
	head, rest, found := strings.Cut(pattern, "[")
	if !found {
		return []string{pattern}, nil
	}
	inside, tail, found := strings.Cut(rest, "]")
	if !found {
		return nil, errors.New("a [ without its ]")
	}
	values, err := span(inside, most)
	if err != nil {
		return nil, err
	}
	tails, err := ranges(tail, most/max(len(values), 1))
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(values)*len(tails))
	for _, v := range values {
		for _, t := range tails {
			all = append(all, head+v+t)
		}
	}
	return all, nil
}

// span expands the text between the brackets.
func span(inside string, most int) ([]string, error) {
	bounds := strings.Split(inside, ":")
	if len(bounds) != 2 && len(bounds) != 3 {
		return nil, fmt.Errorf("%s is not a range: write FIRST:LAST or FIRST:LAST:STEP", clip(inside))
	}
	step := 1
	if len(bounds) == 3 {
		n, err := strconv.Atoi(bounds[2])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("the step %s of the range must be a number above 0", clip(bounds[2]))
		}
		step = n
	}
	first, last, format := bounds[0], bounds[1], strconv.Itoa
	if first == "" {
		first = "0"
	}
	low, high := strings.Index(letters, first), strings.Index(letters, last)
	if len(first) == 1 && len(last) == 1 && low >= 0 && high >= 0 {
		format = func(n int) string { return letters[n : n+1] }
	} else {
		var err error
		if low, high, err = numbers(first, last); err != nil {
			return nil, fmt.Errorf("the range %s: %w", inside, err)
		}
		if width := len(first); first[0] == '0' && width > 1 {
			format = func(n int) string { return fmt.Sprintf("%0*d", width, n) }
		}
	}
	if low > high {
		return nil, fmt.Errorf("the range %s runs backwards", inside)
	}
	if (high-low)/step >= most {
		return nil, fmt.Errorf("more than %d hosts", MaxHosts)
	}
	var all []string
	for n := low; n <= high; n += step {
		all = append(all, format(n))
	}
	return all, nil
}

// numbers parses the ends of a range of numbers.
func numbers(first, last string) (low, high int, err error) {
	for _, s := range []string{first, last} {
		if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
			return 0, 0, fmt.Errorf("%s is neither a number nor a letter", clip(s))
		}
	}
	if len(first) > 1 && first[0] == '0' && len(first) != len(last) {
		return 0, 0, errors.New("ends of different width")
	}
	low, _ = strconv.Atoi(first) // cannot fail: at most 18 digits
	high, _ = strconv.Atoi(last)
	return low, high, nil
}
