package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// link loses replies: the server has run the command and its reply has arrived, then
// the connection is cut instead of passing it on. Only appends are concerned, the
// requests where a loss matters.
type link struct {
	loss    float64
	appends atomic.Int64 // sent

	mu     sync.Mutex
	random *rand.Rand
}

func newLink(loss float64, seed uint64) *link {
	return &link{loss: loss, random: rand.New(rand.NewPCG(seed, seed))}
}

func (l *link) loses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.Float64() < l.loss
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// over makes connections that go over the link.
func (l *link) over(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &lossyConn{Conn: c, link: l, replies: bufio.NewReader(c)}, nil
	}
}

var errLost = errors.New("the link lost the reply and cut the connection")

// lossyConn is a connection of the client. go-redis writes a request, a command or a
// whole transaction, and then reads: never both at once.
type lossyConn struct {
	net.Conn
	link    *link
	replies *bufio.Reader

	owed     int    // replies that have not come
	isAppend bool   // what they answer
	passing  []byte // what the client has not read of a reply
}

// uuidField is in every entry that Watermill writes, and in no other request.
var uuidField = []byte("_watermill_message_uuid")

func (c *lossyConn) Write(request []byte) (int, error) {
	for commands := bufio.NewReader(bytes.NewReader(request)); ; c.owed++ {
		if _, err := appendValue(nil, commands); err != nil {
			break // the end: small requests are written as a whole
		}
	}
	if c.isAppend = bytes.Contains(request, uuidField); c.isAppend {
		c.link.appends.Add(1)
	}
	return c.Conn.Write(request)
}

func (c *lossyConn) Read(p []byte) (int, error) {
	if len(c.passing) == 0 {
		reply, err := appendValue(nil, c.replies)
		if err != nil {
			return 0, err
		}
		if reply[0] != '>' { // what the server says unasked answers nothing
			c.owed--
		}
		if c.owed == 0 && c.isAppend && c.link.loses() {
			_ = c.Close()
			return 0, errLost
		}
		c.passing = reply
	}
	n := copy(p, c.passing)
	c.passing = c.passing[n:]
	return n, nil
}

// appendValue appends the bytes of the next value of Redis' protocol (RESP) to b.
func appendValue(b []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return b, err
	}
	b = append(b, line...)
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	switch line[0] {
	case '$', '!', '=': // n bytes, or -1 for null
		if n < 0 {
			return b, nil
		}
		start := len(b)
		b = append(b, make([]byte, n+len("\r\n"))...)
		_, err = io.ReadFull(r, b[start:])
		return b, err
	case '%':
		n *= 2
	case '*', '~', '>':
	case '+', '-', ':', '_', '#', ',', '(':
		return b, nil
	default:
		return b, fmt.Errorf("unexpected %q in the protocol", line[0])
	}
	for range n {
		if b, err = appendValue(b, r); err != nil {
			return b, err
		}
	}
	return b, nil
}
