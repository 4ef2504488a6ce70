package connect

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/internal/redact"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Redis is a server that has answered.
type Redis struct {
	redis.UniversalClient
	// Where is its address, without a password.
	Where string
	// Product is its name and version, "redis 8.6.3"; empty if the user may not ask.
	Product string
}

// What an operator is told about a server that can't be used.
const (
	hintAddress = "Correct --redis (or IDEMCTL_REDIS), or start the server. `idemctl help connection` lists the forms of an address."
	hintLogin   = "Give user and password in the URL, best by the environment: IDEMCTL_REDIS=redis://USER:PASSWORD@HOST:PORT"
)

// quiet keeps go-redis from writing to the terminal: what fails is returned as an error.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// OpenRedis dials, and returns once the server has answered. A URL with master_name is of
// Sentinels, one with addr of a cluster; what else is a cluster's node is recognised by what
// it says of itself.
func (s Settings) OpenRedis(ctx context.Context) (*Redis, error) {
	redis.SetLogger(quiet{})
	r, err := s.parse()
	if err != nil {
		return nil, err
	}
	bounded, cancel := s.Bounded(ctx)
	defer cancel()
	if err := s.reach(bounded, r); err != nil {
		_ = r.Close()
		return nil, err
	}
	if name, version, err := server.Version(bounded, r.UniversalClient, "idemctl"); err == nil && version != "" {
		r.Product = name + " " + version
	}
	single, ok := r.UniversalClient.(*redis.Client)
	if !ok || strings.Contains(s.Redis, "master_name=") {
		return r, nil
	}
	// A user who may not ask gets a plain client, and learns of redirections.
	info, err := server.InfoSection(bounded, single, "idemctl", "cluster")
	if err != nil || info["cluster_enabled"] != "1" {
		return r, nil
	}
	cluster := s
	cluster.Cluster = true
	all, err := cluster.parse()
	_ = r.Close()
	if err != nil {
		return nil, err
	}
	if err := s.reach(bounded, all); err != nil {
		_ = all.Close()
		return nil, err
	}
	all.Product = r.Product
	return all, nil
}

// parse makes the client.
func (s Settings) parse() (*Redis, error) {
	text := s.Redis
	if !strings.Contains(text, "://") {
		text = "redis://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, badURL(s.Redis, err)
	}
	r := &Redis{Where: cmp.Or(u.Host, u.Path, "localhost:6379")}
	query := u.Query()
	switch {
	case query.Has("master_name"):
		var o *redis.FailoverOptions
		if o, err = redis.ParseFailoverURL(text); err == nil {
			s.times(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
			o.ContextTimeoutEnabled, o.PoolSize = true, poolSize
			r.Where = query.Get("master_name") + " of the Sentinels at " + strings.Join(o.SentinelAddrs, ", ")
			r.UniversalClient = redis.NewFailoverClient(o)
		}
	case query.Has("addr") || s.Cluster:
		var o *redis.ClusterOptions
		if o, err = redis.ParseClusterURL(text); err == nil {
			s.times(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
			o.ContextTimeoutEnabled, o.PoolSize = true, poolSize
			r.Where = "the cluster of " + strings.Join(o.Addrs, ", ")
			r.UniversalClient = redis.NewClusterClient(o)
		}
	default:
		var o *redis.Options
		if o, err = redis.ParseURL(text); err == nil {
			s.times(&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout)
			o.ContextTimeoutEnabled, o.PoolSize = true, poolSize
			r.UniversalClient = redis.NewClient(o)
		}
	}
	if err != nil {
		return nil, badURL(s.Redis, err)
	}
	return r, nil
}

// poolSize is far above what the program uses, so that Check finds nothing to say of a
// pool that is not the service's. Connections are made when they are needed.
const poolSize = 1000

// times fills in what the URL does not say.
func (s Settings) times(all ...*time.Duration) {
	for _, d := range all {
		if *d == 0 {
			*d = s.Timeout
		}
	}
}

func badURL(text string, err error) error {
	return exit.Errorf(exit.Usage, "--redis %q is no address: %s", redact.Clean(text), redact.Clean(err.Error())).
		Do("The forms are redis://USER:PASSWORD@HOST:PORT/DB, rediss://… with TLS, and unix:///path/to/socket; see `idemctl help connection`.")
}

// reach asks for a sign of life.
func (s Settings) reach(ctx context.Context, r *Redis) error {
	err := r.Ping(ctx).Err()
	var reply redis.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"), errors.As(err, &reply) && strings.Contains(err.Error(), "AUTH"):
		return exit.Errorf(exit.Refused, "Redis at %s does not let the user in: %s", r.Where, redact.Clean(err.Error())).Do(hintLogin)
	case server.IsRefusedByACL(err): // a user who may not PING is in
		return nil
	case errors.As(err, &reply):
		return exit.Errorf(exit.Refused, "Redis at %s refuses: %s", r.Where, redact.Clean(err.Error()))
	}
	return exit.Errorf(exit.Unreachable, "Redis at %s can't be reached: %s", r.Where, redact.Clean(err.Error())).Do(hintAddress)
}
