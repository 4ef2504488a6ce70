// Package window says how large a topic's window should be: how long, and for how many keys,
// the server must remember so that a retry is caught.
//
// [Advise] is a pure function of what was observed. inspect.Inspector.Observe makes an
// [Observation] of a topic on a server. How old retries are no server can tell: it counts
// duplicates, and not how late they came. That comes from the publishers, by [Ages]; and from the
// stream itself, for those retries that the window has missed.
package window
