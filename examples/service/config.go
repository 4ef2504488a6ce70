package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// config comes from the environment; README.md has the table.
type config struct {
	httpAddr, adminAddr string
	redis               *redis.Options // nil: embedded
	databaseURL         string         // empty: a file that is removed at the end
	logLevel            slog.Level
	drainDelay          time.Duration
	stopTimeout         time.Duration
	takeoverAfter       time.Duration
}

// minStopTimeout leaves the handlers that run the time to end. minTakeoverAfter is longer than a
// process that lives should stand still.
const (
	minStopTimeout   = time.Second
	minTakeoverAfter = time.Second
)

// readConfig reads all settings. The error has everything that is wrong with them, and no
// passwords.
func readConfig(getenv func(string) string) (config, error) {
	var cfg config
	var faults []error
	read := func(name, fallback string, parse func(string) error) {
		value := getenv(name)
		if value == "" {
			value = fallback
		}
		if err := parse(value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", name, err))
		}
	}
	read("HTTP_ADDR", ":8080", address(&cfg.httpAddr))
	read("ADMIN_ADDR", ":8081", address(&cfg.adminAddr))
	read("REDIS_ADDR", "", func(v string) (err error) {
		cfg.redis, err = redisOptions(v)
		return err
	})
	read("DATABASE_URL", "", func(v string) error {
		cfg.databaseURL = v
		return checkDatabaseURL(v)
	})
	read("LOG_LEVEL", "info", func(v string) error { return cfg.logLevel.UnmarshalText([]byte(v)) })
	read("DRAIN_DELAY", "0s", duration(&cfg.drainDelay, 0))
	read("STOP_TIMEOUT", "30s", duration(&cfg.stopTimeout, minStopTimeout))
	read("TAKEOVER_AFTER", "30s", duration(&cfg.takeoverAfter, minTakeoverAfter))
	if len(faults) > 0 {
		return config{}, fmt.Errorf("settings that can't be used:\n%w", errors.Join(faults...))
	}
	return cfg, nil
}

func address(to *string) func(string) error {
	return func(v string) error {
		*to = v
		if _, _, err := net.SplitHostPort(v); err != nil {
			return fmt.Errorf("%q is not host:port, such as :8080", v)
		}
		return nil
	}
}

func duration(to *time.Duration, least time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not a duration, such as 30s", v)
		case d < least:
			return fmt.Errorf("%v is less than %v", d, least)
		}
		*to = d
		return nil
	}
}

func redisOptions(v string) (*redis.Options, error) {
	if v == "" {
		return nil, nil //nolint:nilnil // no options: the embedded server
	}
	if !strings.Contains(v, "://") {
		if _, _, err := net.SplitHostPort(v); err != nil {
			return nil, fmt.Errorf("%q is neither host:port nor redis://…", v)
		}
		return &redis.Options{Addr: v}, nil
	}
	o, err := redis.ParseURL(v)
	if whole := (*url.Error)(nil); errors.As(err, &whole) { // it has the URL, with its password
		err = whole.Err
	}
	return o, err
}

const sqlitePrefix = "sqlite:"

func checkDatabaseURL(v string) error {
	scheme, _, _ := strings.Cut(v, ":")
	switch {
	case v == "":
		return nil
	case strings.HasPrefix(v, sqlitePrefix):
		if v == sqlitePrefix {
			return errors.New("sqlite: has no file name behind it")
		}
		return nil
	case scheme == "postgres" || scheme == "postgresql":
		_, err := pgx.ParseConfig(v) // its errors leave the password out
		return err
	default:
		return errors.New("it is neither postgres://… nor sqlite:FILE")
	}
}
