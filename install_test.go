package idempotent_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const modulePath = "github.com/onceward/watermill-idempotent"

// A program that uses every module that is for installing.
const installed = `package main

import (
	"fmt"

	"` + modulePath + `/dedupe/pgxstore"
	"` + modulePath + `/dedupe/redisstore"
	"` + modulePath + `/dedupe/sqlstore"
	"` + modulePath + `/metrics"
	"` + modulePath + `/middleware"
	"` + modulePath + `/otelhooks"
	"` + modulePath + `/publisher"
	"` + modulePath + `/subscriber"
)

func main() {
	_, err := pgxstore.New(pgxstore.Config{})
	fmt.Println(err, redisstore.Config{}, sqlstore.Postgres, metrics.Config{}.MaxTopics, otelhooks.Config{}.MaxTopics, middleware.Config{}.Lease, publisher.ModeAuto, subscriber.Config{}.Group)
}
`

// program is a module of a user's, in a folder and with a module cache of its own: what is
// tagged here must not get into the real one. The other modules come from that.
type program struct {
	t   *testing.T
	dir string
	env []string
}

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{t: t, dir: t.TempDir()}
	env := p.run("go", "env", "GOMODCACHE", "GOPROXY")
	cache, proxy, _ := strings.Cut(strings.TrimSpace(env), "\n")
	p.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+filepath.ToSlash(cache)+"/cache/download,"+proxy, "GOSUMDB=off", "GOPRIVATE=github.com/onceward/*", "GOTOOLCHAIN=local")
	if err := os.WriteFile(filepath.Join(p.dir, "main.go"), []byte(installed), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run("go", "mod", "init", "example.com/first")
	return p
}

func (p *program) run(name string, args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), name, args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		p.t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

// Every module that is for installing installs by `go get` once it is tagged, in the order
// that docs/releasing.md says.
func TestInstall(t *testing.T) {
	documents(t)
	if testing.Short() {
		t.Skip("builds a program with a module cache of its own")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: ", err)
	}
	file, err := os.ReadFile("dedupe/pgxstore/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(modulePath + ` (v\S+)`).FindSubmatch(file)
	if version == nil {
		t.Fatal("pgxstore does not require the root")
	}
	t.Parallel()
	p := newProgram(t)
	clone := filepath.Join(t.TempDir(), "clone.git")
	p.run("git", "clone", "--quiet", "--bare", root, clone)
	for _, tag := range []string{string(version[1]), "dedupe/pgxstore/" + string(version[1]), "metrics/" + string(version[1]), "otelhooks/" + string(version[1]), "cmd/idemctl/" + string(version[1])} {
		p.run("git", "-C", clone, "tag", tag, "HEAD")
	}
	p.env = append(p.env, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(clone)+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+modulePath)
	p.run("go", "get", modulePath+"/dedupe/pgxstore@"+string(version[1])) // alone: what it requires must be there
	p.run("go", "get", modulePath+"@"+string(version[1]))
	p.run("go", "get", modulePath+"/metrics@"+string(version[1]))
	p.run("go", "get", modulePath+"/otelhooks@"+string(version[1]))
	p.run("go", "build", "-trimpath", "-o", os.DevNull, ".") // so that the next run finds it in the cache
	p.env = append(p.env, "GOBIN="+p.dir)
	p.run("go", "install", "-trimpath", modulePath+"/cmd/idemctl@"+string(version[1]))
	if says := p.run(filepath.Join(p.dir, "idemctl"), "--version"); !strings.Contains(says, string(version[1])) {
		t.Errorf("idemctl says that it is %s, want %s", says, version[1])
	}
}

// README's way without tags, with every replacement that it needs.
func TestInstallFromAClone(t *testing.T) {
	documents(t)
	if testing.Short() {
		t.Skip("builds a program with a module cache of its own")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	edit := regexp.MustCompile(`(?m)^go mod edit (?:.*\\\n)*.*$`).Find(readme)
	if edit == nil {
		t.Fatal("README.md has no `go mod edit`")
	}
	t.Parallel()
	p := newProgram(t)
	words := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(string(edit), "\\\n", " "), "=../watermill-idempotent", "="+root))
	p.run(words[0], words[1:]...)
	p.run("go", "mod", "tidy")
	p.run("go", "build", "-trimpath", "-o", os.DevNull, ".") // so that the next run finds it in the cache
}
