// Package tests holds what is checked on real servers.
package tests
