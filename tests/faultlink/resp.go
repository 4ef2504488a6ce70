package faultlink

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// errProtocol is a fault of this package, or of the peer's protocol.
var errProtocol = errors.New("not understood")

// appendLine appends a line to dst and returns its content, which stands in dst.
func appendLine(dst []byte, r *bufio.Reader) (all, line []byte, err error) {
	start := len(dst)
	for {
		part, err := r.ReadSlice('\n')
		dst = append(dst, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return dst, nil, err
		}
	}
	return dst, bytes.TrimRight(dst[start:], "\r\n"), nil
}

// appendBytes appends the n bytes of a bulk string and the end of its line.
func appendBytes(dst []byte, r *bufio.Reader, n int) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, n+2)...)
	_, err := io.ReadFull(r, dst[start:])
	return dst, err
}

func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1:]))
	if err != nil {
		return 0, fmt.Errorf("%w: length in %q", errProtocol, line)
	}
	return n, nil
}

// appendReply appends one whole reply of RESP2 or RESP3 to dst.
func appendReply(dst []byte, r *bufio.Reader) ([]byte, error) {
	dst, line, err := appendLine(dst, r)
	if err != nil {
		return dst, err
	}
	if len(line) == 0 {
		return dst, fmt.Errorf("%w: empty line for a reply", errProtocol)
	}
	values := 0
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return dst, nil
	case '$', '=', '!':
		n, err := length(line)
		if err != nil || n < 0 {
			return dst, err
		}
		return appendBytes(dst, r, n)
	case '*', '~', '>':
		values, err = length(line)
	case '%':
		values, err = length(line)
		values *= 2
	case '|': // attributes, and then what they describe
		values, err = length(line)
		values = 2*values + 1
	default:
		err = fmt.Errorf("%w: reply %q", errProtocol, line)
	}
	for ; err == nil && values > 0; values-- {
		dst, err = appendReply(dst, r)
	}
	return dst, err
}

// appendCommand appends one command to dst as it came, and says what it is.
func appendCommand(dst []byte, r *bufio.Reader) ([]byte, Command, error) {
	dst, line, err := appendLine(dst, r)
	if err != nil {
		return dst, Command{}, err
	}
	if len(line) == 0 || line[0] != '*' { // typed by hand
		return dst, command(strings.Fields(string(line))), nil
	}
	n, err := length(line)
	if err != nil {
		return dst, Command{}, err
	}
	words := make([]string, 0, max(n, 0))
	for range n {
		if dst, line, err = appendLine(dst, r); err != nil {
			return dst, Command{}, err
		}
		if len(line) == 0 || line[0] != '$' {
			return dst, Command{}, fmt.Errorf("%w: argument %q", errProtocol, line)
		}
		size, err := length(line)
		if err != nil {
			return dst, Command{}, err
		}
		if dst, err = appendBytes(dst, r, size); err != nil {
			return dst, Command{}, err
		}
		words = append(words, string(dst[len(dst)-size-2:len(dst)-2]))
	}
	return dst, command(words), nil
}

func command(words []string) Command {
	if len(words) == 0 {
		return Command{}
	}
	return Command{Name: strings.ToUpper(words[0]), Args: words[1:]}
}
