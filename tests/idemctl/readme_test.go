package idemctl_test

import (
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/tests/testserver"
	"github.com/onceward/watermill-idempotent/window"
)

var update = flag.Bool("update", false, "write what the commands print into the documents of idemctl")

// Each ```console block of the tool's documents is run against the shop, in order, and prints what
// stands there, but for times, numbers and IDs. `go test ./idemctl -run TestDocuments -update` in tests
// writes the documents anew.
func TestDocuments(t *testing.T) {
	for _, name := range []string{"README.md", "JSON.md"} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, testserver.Redis86)
			o := at(t, s.Addr())
			o.dir = t.TempDir()
			retryAges(t, filepath.Join(o.dir, "ages.json"))
			file := filepath.Join("..", "..", "cmd", "idemctl", name)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d := document{tool: o, address: s.Addr(), dead: deadLetters(o, "--key", "pay:9001")[0].ID}
			blocks := 0
			written := regexp.MustCompile("(?s)```console\n.*?```").ReplaceAllStringFunc(string(text), func(block string) string {
				blocks++
				return d.block(block)
			})
			if blocks < 7 {
				t.Errorf("%d blocks", blocks)
			}
			if !*update {
				return
			}
			if err := os.WriteFile(file, []byte(written), 0o644); err != nil {
				t.Fatal(err)
			}
			if picture, err := os.ReadFile(filepath.Join(o.dir, "ages.svg")); err == nil {
				if err := os.WriteFile(filepath.Join(filepath.Dir(file), "ages.svg"), picture, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// retryAges are what a publisher could have collected: most retries come in seconds, some after a
// deploy.
func retryAges(t *testing.T, file string) {
	t.Helper()
	var ages window.Ages
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same ones each time
	for range 4000 {
		ages.Add(time.Duration(math.Exp(random.NormFloat64()*1.3) * 3 * float64(time.Second)))
	}
	for range 600 {
		ages.Add(time.Duration(math.Exp(random.NormFloat64()*0.6) * 12 * float64(time.Minute)))
	}
	text, err := json.Marshal(ages.Distribution())
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// document runs the commands of one.
type document struct {
	tool
	address string
	dead    string // the ID of the dead letter that the documents replay
}

var entryID = regexp.MustCompile(`\b\d{13}-\d+\b`)

func (d document) block(block string) string {
	d.t.Helper()
	body := strings.TrimSuffix(strings.TrimPrefix(block, "```console\n"), "```")
	var written strings.Builder
	written.WriteString("```console\n")
	for _, part := range strings.Split("\n"+body, "\n$ ")[1:] {
		line, want, _ := strings.Cut(part, "\n")
		line = entryID.ReplaceAllString(line, d.dead)
		r := d.run(words(line)[1:]...)
		got := strings.ReplaceAll(r.out+r.err, d.address, "localhost:6379")
		if shape(got) != shape(want) && !*update {
			d.t.Errorf("$ %s\nprints\n%s\nand not\n%s", line, got, want)
		}
		written.WriteString("$ " + line + "\n" + got)
		if got != "" && !strings.HasSuffix(got, "\n") {
			written.WriteString("\n")
		}
		written.WriteString("\n")
	}
	return strings.TrimSuffix(written.String(), "\n") + "```"
}

// words splits a command line as a shell does, as far as the documents need it.
func words(line string) (all []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|(\S+)`).FindAllStringSubmatch(line, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}

// What differs from run to run.
var volatile = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{64}\b`), "HEX"},
	{entryID, "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d(T|\s+)\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`<?(\d+(\.\d+)?(d|h|ms|m|s|µs))+`), "SPAN"},
	{regexp.MustCompile(`[\d,.]+( \w?B\b)?( (a second|a minute|an hour)\b)?`), "N"},
	{regexp.MustCompile(`─+`), "─"},
	{regexp.MustCompile(`\S*…`), "…"}, // where a line is cut goes by the length of an ID
	{regexp.MustCompile(`\s+`), " "},
}

func shape(text string) string {
	for _, v := range volatile {
		text = v.what.ReplaceAllString(text, v.by)
	}
	return strings.TrimSpace(text)
}
