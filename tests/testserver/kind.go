package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Kind is a server product and release series.
type Kind string

// The kinds that `make servers` brings.
const (
	Redis86  Kind = "redis-8.6" // the only one with XADD IDMP
	Redis80  Kind = "redis-8.0"
	Redis70  Kind = "redis-7.0"
	Valkey81 Kind = "valkey-8.1"
	Valkey91 Kind = "valkey-9.1"
)

// Kinds returns all of them, for tests that must behave the same on each.
func Kinds() []Kind { return []Kind{Redis86, Redis80, Redis70, Valkey81, Valkey91} }

// HasIDMP reports whether servers of this kind know XADD IDMP.
func (k Kind) HasIDMP() bool { return k == Redis86 }

// Folder is the name of the environment variable that points to other binaries.
const Folder = "IDEMPOTENT_SERVERS"

// file is the server's program in the folder of servers.
func (k Kind) file() string {
	product, _, _ := strings.Cut(string(k), "-")
	return filepath.Join(string(k), product+"-server")
}

// find returns the path of a program in the folder of servers.
func find(program string) (string, error) {
	if dir := os.Getenv(Folder); dir != "" {
		return isProgram(filepath.Join(dir, program))
	}
	root, err := checkout()
	if err != nil {
		return "", err
	}
	return isProgram(filepath.Join(root, ".servers", program))
}

func isProgram(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s is no program", path)
	}
	return filepath.Abs(path)
}

// checkout looks upwards for the folder of the workspace: tests run in the folder of
// their package.
func checkout() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside a checkout: no go.work above this folder")
		}
		dir = parent
	}
	return "", err
}

// program returns the server's program. Without one the test fails in CI, where a
// skipped test would go unseen, and is skipped elsewhere.
func (k Kind) program(t testing.TB) string {
	t.Helper()
	return Program(t, k.file())
}

// Program returns the path of a program that `make servers` brings, by its name in the
// folder of servers, such as "postgres-15/postgres". A missing one fails the test in CI
// and skips it elsewhere.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := find(name)
	if err == nil {
		return path
	}
	const hint = "%s is missing (%v): `make servers` brings it on Debian; elsewhere set %s to a folder that holds %s"
	args := []any{filepath.Dir(name), err, Folder, name}
	if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
		t.Fatalf(hint, args...)
	}
	t.Skipf(hint, args...)
	return ""
}
