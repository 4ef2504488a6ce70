package subscriber

import (
	_ "embed"
	"fmt"
	"strconv"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// The contract of each script stands on top of its file.
var (
	//go:embed hold.lua
	holdSource string
	//go:embed restore.lua
	restoreSource string
	//go:embed ack.lua
	ackSource string
	//go:embed prepare.lua
	prepareSource string
	//go:embed release.lua
	releaseSource string
	//go:embed bury.lua
	burySource string
	//go:embed take.lua
	takeSource string
	//go:embed standby.lua
	standbySource string
	//go:embed sweep.lua
	sweepSource string
	//go:embed info.lua
	infoSource string
	//go:embed own.lua
	ownSource string
	//go:embed peek.lua
	peekSource string

	holdScript    = server.NewScript(holdSource)
	restoreScript = server.NewScript(restoreSource)
	ackScript     = server.NewScript(ackSource)
	prepareScript = server.NewScript(prepareSource)
	releaseScript = server.NewScript(releaseSource)
	buryScript    = server.NewScript(burySource)
	takeScript    = server.NewScript(takeSource)
	standbyScript = server.NewScript(standbySource)
	sweepScript   = server.NewScript(sweepSource)
	infoScript    = server.NewScript(infoSource)
	ownScript     = server.NewScript(ownSource)
	peekScript    = server.NewScript(peekSource)
)

// The helpers below read replies of scripts and commands. What has another shape than
// the contract says is an error, never a panic.

func list(reply any, least int) ([]any, error) {
	l, ok := reply.([]any)
	if !ok || len(l) < least {
		return nil, fmt.Errorf("unexpected reply %T of the server", reply)
	}
	return l, nil
}

func texts(reply any) ([]string, error) {
	l, err := list(reply, 0)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(l))
	for i, v := range l {
		s, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("unexpected %T in a reply of the server", v)
		}
		out[i] = s
	}
	return out, nil
}

func set(ids []string) map[string]bool {
	if len(ids) == 0 {
		return nil
	}
	m := make(map[string]bool, len(ids))
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// pending is an entry of which only the ID and its delivery count are known.
type pending struct {
	name  string
	id    server.ID
	count int
}

// pairs reads ID, delivery count, ID, delivery count.
func pairs(reply any) ([]pending, error) {
	l, err := list(reply, 0)
	if err != nil {
		return nil, err
	}
	out := make([]pending, 0, len(l)/2)
	for i := 0; i+1 < len(l); i += 2 {
		p, err := newPending(l[i], l[i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func newPending(name, count any) (p pending, err error) {
	p.name, _ = name.(string)
	if p.id, err = server.ParseID(p.name); err != nil {
		return p, err
	}
	switch n := count.(type) {
	case int64:
		p.count = int(n)
	case string:
		p.count, err = strconv.Atoi(n)
	default:
		err = fmt.Errorf("unexpected delivery count %T", count)
	}
	return p, err
}

// isNoGroup reports that the stream or its group is gone.
func isNoGroup(err error) bool { return hasPrefix(err, "NOGROUP") }
