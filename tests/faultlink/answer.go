package faultlink

import (
	"bytes"
	"fmt"
	"strconv"
)

// answer is an error reply that the link gives in the server's place.
type answer struct {
	text   string
	n      int // how many more; below zero means without end
	names  []string
	inExec bool
}

// Answer answers the next n commands of these names with an error reply, such as
// "MISCONF Redis is configured to save RDB snapshots", in the server's place, which does
// not run them; a negative n means all until [Link.Heal]. No name means any command but
// those with which a client sets up a connection.
//
// In a transaction the server does what it does when it refuses a command: it refuses
// EXEC, too. A transaction whose EXEC is answered is discarded; one whose MULTI is
// answered gets the same answer to all of its commands. Only one of Answer and
// AnswerInExec is in force: the last one called.
func (l *Link) Answer(text string, n int, names ...string) {
	l.setAnswer(&answer{text: text, n: n, names: names})
}

// AnswerInExec is Answer for commands of transactions that fail only when EXEC runs
// them, such as a script: they are queued, and their place in the reply of EXEC has the
// error. The commands around them run.
func (l *Link) AnswerInExec(text string, n int, names ...string) {
	l.setAnswer(&answer{text: text, n: n, names: names, inExec: true})
}

func (l *Link) setAnswer(a *answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = a
}

// answers returns the answer that the link gives to a command, nil if the server does.
func (l *Link) answers(cmd Command, inTx bool) *answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.answer
	if a == nil || a.n == 0 || a.inExec && (!inTx || cmd.Name == "EXEC" || cmd.Name == "DISCARD") || !cmd.Is(a.names...) {
		return nil
	}
	if a.n > 0 {
		a.n--
	}
	l.stats.Answered++
	return a
}

// transaction is what a connection's requests know of MULTI.
type transaction struct {
	open   bool
	queued []Command
	answer *answer // to all of it, since its MULTI had it
}

// answerInstead decides whether the link answers a command; raw is the command as it came.
// It returns what is sent in its place, so that replies stay in their order: a command
// that the server refuses, too, and one that ends a transaction for one that would.
func (c *conn) answerInstead(cmd Command, raw []byte, tx *transaction) (instead []byte, text string) {
	a := tx.answer
	if a == nil {
		a = c.link.answers(cmd, tx.open)
	}
	switch cmd.Name {
	case "EXEC", "DISCARD":
		tx.answer = nil
	case "MULTI":
		tx.answer = a
	}
	switch {
	case a == nil:
		return raw, ""
	case a.inExec:
		return appendWords(raw[:0], "EVAL", "return redis.error_reply(ARGV[1])", "0", a.text), ""
	case cmd.Name == "EXEC" && tx.open:
		return appendWords(raw[:0], "DISCARD"), a.text
	default:
		return appendWords(raw[:0], "FAULTLINK.REFUSED"), a.text
	}
}

func appendWords(dst []byte, words ...string) []byte {
	dst = fmt.Appendf(dst, "*%d\r\n", len(words))
	for _, w := range words {
		dst = append(append(dst, '$'), strconv.Itoa(len(w))...)
		dst = append(append(append(dst, "\r\n"...), w...), "\r\n"...)
	}
	return dst
}

// replace puts the text of an answer into the place of the server's reply.
func replace(out []byte, start int, text string) []byte {
	out = append(append(out[:start], '-'), bytes.TrimPrefix([]byte(text), []byte("-"))...)
	return append(out, "\r\n"...)
}
