// Package open has idempotent.Open as an example to run, on an embedded server.
package open
