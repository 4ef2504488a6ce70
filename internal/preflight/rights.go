package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// Right is that to a command on keys.
type Right struct {
	// Args is the command in a form that does nothing.
	Args []any
	// Keys is the pattern of the keys that it is used with.
	Keys string
}

// noGroup is a consumer group that nobody has.
const noGroup = "idempotent-check"

// harmless has, for each command that this library uses, arguments behind the key with which
// it does nothing: it only reads a little, or the server refuses them, and does so after
// it has looked at the rights. So no transaction is needed, which a user may lack the right
// to. No entry is read, since it may be large.
var harmless = map[string][]any{
	"xadd":               {"nomkstream", "0-0", "f", "v"},
	"xrange":             {"not an ID", "+"},
	"xrevrange":          {"not an ID", "-"},
	"xdel":               {"not an ID"},
	"xlen":               {},
	"xcfgset":            {"not an option", 1},
	"xinfo stream":       {"not an option"},
	"xinfo groups":       {},
	"xinfo consumers":    {noGroup},
	"xgroup create":      {noGroup, "not an ID"},
	"xgroup destroy":     {noGroup},
	"xgroup delconsumer": {noGroup, "c"},
	"xpending":           {noGroup},
	"xclaim":             {noGroup, "c", "not a number", "0-1"},
	"xack":               {noGroup, "not an ID"},
	"xackdel":            {noGroup, "not an option", "ids", 1, "0-1"},
	"hgetall":            {},
	"hmget":              {"f"},
	"hset":               {"f", "v", "f"},
	"hincrby":            {"f", "not a number"},
	"exists":             {},
	"get":                {},
	"set":                {"v", "not an option"},
	"pttl":               {},
	"pexpire":            {"not a number"},
	"watch":              {},
}

// harmlessWhole are those whose key, where they have one, does not come first.
var harmlessWhole = map[string]func(key string) []any{
	"xread": func(key string) []any { return []any{"xread", "streams", key, "not an ID"} },
	"xreadgroup": func(key string) []any {
		return []any{"xreadgroup", "group", noGroup, "c", "streams", key, "not an ID"}
	},
	"eval":    func(key string) []any { return []any{"eval", "return 1", 1, key} },
	"evalsha": func(key string) []any { return []any{"evalsha", strings.Repeat("0", 40), 1, key} },
	"del":     func(key string) []any { return []any{"del", key} }, // for a key that never is
	"wait":    func(string) []any { return []any{"wait", "not a number", 1} },
	"time":    func(string) []any { return []any{"time"} },
	"unwatch": func(string) []any { return []any{"unwatch"} },
	"exec":    func(string) []any { return []any{"exec"} }, // without MULTI
	"multi":   func(string) []any { return []any{"multi"} },
}

// Uses returns the rights to commands on a key. keys is the pattern that stands for it in the
// rules of a user.
func Uses(key, keys string, commands ...string) []Right {
	rights := make([]Right, len(commands))
	for i, name := range commands {
		rights[i].Keys = keys
		if whole, ok := harmlessWhole[name]; ok {
			rights[i].Args = whole(key)
			continue
		}
		behind, ok := harmless[name]
		if !ok {
			panic("no harmless form of " + name)
		}
		for _, word := range strings.Fields(name) {
			rights[i].Args = append(rights[i].Args, word)
		}
		rights[i].Args = append(append(rights[i].Args, key), behind...)
	}
	return rights
}

// Missing names what the user lacks of the rights: commands, such as "XGROUP CREATE", and
// patterns of keys, such as "~orders". It asks the master of key over a connection of its
// own, so that what a MULTI begins does not get into the pool. Where the client is of a kind
// that can't be asked for a connection, it warns that the rights were not checked.
func Missing(ctx context.Context, client redis.UniversalClient, key, on string, rights []Right, warn Warn) (missing []string, err error) {
	node, err := server.Node(ctx, client, key)
	if err != nil {
		return nil, err
	}
	single, ok := node.(*redis.Client)
	if !ok {
		warn("The user's rights on %s were not checked, which needs a *redis.Client or *redis.ClusterClient.", on)
		return nil, nil
	}
	apart := alone(single)
	defer func() { _ = apart.Close() }()
	conn := apart.Conn()
	defer func() { _ = conn.Close() }()

	// MULTI last: what follows it would not be answered.
	rights = slices.Clone(rights)
	slices.SortStableFunc(rights, func(a, b Right) int { return rank(a) - rank(b) })
	cmds := make([]redis.Cmder, len(rights))
	for i, r := range rights {
		cmds[i] = server.NewCommand(ctx, 0, r.Args...)
	}
	_, err = conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd) // only queues
		}
		return nil
	})
	for i, cmd := range cmds {
		// Those behind a lost connection have its error, and so has the pipeline.
		if name := missingOf(cmd, rights[i]); name != "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	var reply redis.Error
	if err != nil && !errors.As(err, &reply) {
		return nil, fmt.Errorf("ask for rights: %w", err)
	}
	return missing, nil
}

func rank(r Right) int {
	if r.Args[0] == "multi" {
		return 1
	}
	return 0
}

func missingOf(cmd redis.Cmder, r Right) string {
	err := cmd.Err()
	switch {
	case redis.IsExecAbortError(err) && cmd.Name() == "exec": // how EXEC wraps it
		return "EXEC"
	case !server.IsRefusedByACL(err):
		return ""
	case strings.Contains(err.Error(), "to run the"):
		name := cmd.Name()
		if name == "xinfo" || name == "xgroup" {
			name = fmt.Sprint(r.Args[0], " ", r.Args[1])
		}
		return strings.ToUpper(name)
	default:
		return "~" + r.Keys
	}
}

// Lacks is the error of a user who lacks rights for something.
func Lacks(missing []string, something string) error {
	return fmt.Errorf("the user lacks %s for %s: grant it with ACL SETUSER", strings.Join(missing, ", "), something)
}
