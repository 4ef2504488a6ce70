package faultlink

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

const chunk = 64 << 10

// conn is one client's connection and the one to the server that belongs to it.
type conn struct {
	link           *Link
	client, server net.Conn
	done           chan struct{}
	once           sync.Once

	mu      sync.Mutex
	waiting []sent // for their replies, in order
	isRaw   bool   // what comes from the server are no longer replies to commands

	// Of LoseRate, under the link's lock.
	isCast    bool // the die is cast for what is being waited for
	loseAfter int
}

// sent is a command on its way.
type sent struct {
	Command
	isQueued bool   // in a transaction
	isFirst  bool   // nothing was waited for when it was sent
	answer   string // what the client gets instead of the server's reply
}

func newConn(l *Link, client, server net.Conn) *conn {
	return &conn{link: l, client: client, server: server, done: make(chan struct{})}
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.done)
		_ = c.client.Close()
		_ = c.server.Close()
	})
}

// pumpRequests carries commands to the server and notes them.
func (c *conn) pumpRequests() error {
	var (
		r   = bufio.NewReaderSize(c.client, chunk)
		out []byte
		tx  transaction
	)
	for {
		start := len(out)
		var cmd Command
		var err error
		if out, cmd, err = appendCommand(out, r); err != nil {
			return err
		}
		s := sent{Command: cmd, isQueued: tx.open}
		var instead []byte
		instead, s.answer = c.answerInstead(cmd, out[start:], &tx)
		out = append(out[:start], instead...)
		switch {
		case cmd.Name == "MULTI":
			tx.open, tx.queued = s.answer == "", nil
		case cmd.Name == "EXEC":
			s.isQueued, s.Queued, tx.open = false, tx.queued, false
		case cmd.Name == "DISCARD":
			s.isQueued, tx.open = false, false
		case cmd.Name == "WATCH": // is run at once, and refused, inside a transaction
		case tx.open && s.answer == "":
			tx.queued = append(tx.queued, cmd)
		}
		if cmd.Name != "" { // an empty line has no reply
			c.note(s)
		}
		if r.Buffered() > 0 && len(out) < chunk {
			continue
		}
		if err := c.pass(Requests, c.server, out); err != nil {
			return err
		}
		out = out[:0]
	}
}

func (c *conn) note(s sent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.isFirst = len(c.waiting) == 0
	c.waiting = append(c.waiting, s)
	switch s.Name {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC":
		c.isRaw = true
	}
}

// pumpReplies carries replies to the client, but for those that are to be lost.
func (c *conn) pumpReplies() error {
	r := bufio.NewReaderSize(c.server, chunk)
	var out []byte
	for {
		start := len(out)
		var err error
		if out, err = appendReply(out, r); err != nil {
			return err
		}
		reply := out[start:]
		isRaw := false
		if reply[0] != '>' { // pushes answer nothing
			var lost bool
			var answer string
			if lost, isRaw, answer, err = c.answered(reply); err != nil {
				return err
			}
			if answer != "" {
				out = replace(out, start, answer)
			}
			if lost {
				return c.pass(Replies, c.client, out[:start]) // the caller cuts the connection
			}
		}
		if r.Buffered() > 0 && len(out) < chunk && !isRaw {
			continue
		}
		if err := c.pass(Replies, c.client, out); err != nil {
			return err
		}
		out = out[:0]
		if isRaw {
			return c.pumpRaw(r)
		}
	}
}

// answered takes the command that a reply belongs to, and says whether the reply is lost
// or replaced by an answer of the link.
func (c *conn) answered(reply []byte) (lost, isRaw bool, answer string, err error) {
	c.mu.Lock()
	if c.isRaw {
		c.mu.Unlock()
		return false, true, "", nil
	}
	if len(c.waiting) == 0 {
		c.mu.Unlock()
		return false, false, "", fmt.Errorf("%w: a reply to no command: %.100q", errProtocol, reply)
	}
	s := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.mu.Unlock()
	if s.isFirst {
		c.link.mu.Lock()
		c.isCast = false
		c.link.mu.Unlock()
	}
	if s.answer != "" || !wasRun(s, reply) {
		return false, false, s.answer, nil
	}
	return c.link.loses(exchange{Command: s.Command, conn: c}), false, "", nil
}

// countWaiting counts the commands of these names that have no reply yet.
func (c *conn) countWaiting(names []string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.waiting {
		if !s.isQueued && s.Is(names...) {
			n++
		}
	}
	return n
}

func wasRun(s sent, reply []byte) bool {
	switch {
	case reply[0] == '-', reply[0] == '!':
		return false
	case s.isQueued, s.Name == "MULTI", s.Name == "DISCARD":
		return false
	case s.Name == "EXEC":
		return !bytes.HasPrefix(reply, []byte("*-1")) && reply[0] != '_'
	}
	return true
}

// pumpRaw carries what is no sequence of replies: messages, a replication stream.
func (c *conn) pumpRaw(r io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := c.pass(Replies, c.client, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// pass writes bytes when the link lets them.
func (c *conn) pass(d Direction, to net.Conn, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := c.link.wait(c, d); err != nil {
		return err
	}
	_, err := to.Write(b)
	return err
}
