package faultlink

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// Command is one that the server ran.
type Command struct {
	Name   string    // in upper case
	Args   []string  // without the name
	Queued []Command // what an EXEC ran
}

// Is reports whether the command, or for EXEC one of those that it ran, has one of
// these names. No name means any, but not those with which a client sets up a
// connection.
func (c Command) Is(names ...string) bool {
	if len(names) == 0 {
		return !slices.Contains(setup, c.Name)
	}
	for _, n := range names {
		if strings.EqualFold(n, c.Name) || slices.ContainsFunc(c.Queued, func(q Command) bool { return q.Is(n) }) {
			return true
		}
	}
	return false
}

var setup = []string{"HELLO", "AUTH", "SELECT", "CLIENT", "READONLY", "READWRITE", "ASKING"}

// exchange is a reply at the moment when it has come from the server.
type exchange struct {
	Command
	conn *conn
}

// rule decides whether the reply of an exchange is lost; the link's lock is held.
type rule func(exchange) bool

// Lose loses the replies that which picks: the server has run the command and its
// reply has arrived, then the client's connection is cut instead of passing it on.
// Replies before it on the same connection are passed on. nil loses none.
//
// Never lost, because nothing was run: error replies, the QUEUED of a command in a
// transaction (its EXEC counts for it, see Command.Is), the null of an aborted EXEC.
// Only one of Lose, LoseNext and LoseRate is in force: the last one called. The calls
// of which come one at a time; it must not call the link.
func (l *Link) Lose(which func(Command) bool) {
	var r rule
	if which != nil {
		r = func(e exchange) bool { return which(e.Command) }
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = r
}

// LoseNext loses the next n replies to commands of these names, see Command.Is.
func (l *Link) LoseNext(n int, names ...string) {
	l.Lose(func(c Command) bool {
		if n == 0 || !c.Is(names...) {
			return false
		}
		n--
		return true
	})
}

// LoseRate loses replies to commands of these names, see Command.Is, with probability
// p. The die is cast once for all that a connection waits for at a time, a command or
// a pipeline of a thousand, of which then any reply may be the one: a link that failed
// with p on each reply would let no long pipeline through. The same seed casts the
// same dice.
func (l *Link) LoseRate(p float64, seed uint64, names ...string) {
	dice := rand.New(rand.NewPCG(seed, 0))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = func(e exchange) bool {
		if !e.Is(names...) {
			return false
		}
		if !e.conn.isCast {
			e.conn.isCast, e.conn.loseAfter = true, -1
			if dice.Float64() < p {
				e.conn.loseAfter = dice.IntN(1 + e.conn.countWaiting(names))
			}
		}
		e.conn.loseAfter--
		return e.conn.loseAfter == -1
	}
}

// loses decides over one reply and counts it.
func (l *Link) loses(e exchange) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lose == nil || !l.lose(e) {
		return false
	}
	l.stats.Lost++
	l.stats.Cut++
	delete(l.conns, e.conn) // so that Cut does not count it again
	return true
}
