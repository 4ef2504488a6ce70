package connect

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// Each form of an address makes the client that it is for, and no password is shown.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:6379":                                                 "localhost:6379",
		"redis://svc:hunter2@redis:6380/3":                               "redis:6380",
		"rediss://svc:hunter2@redis":                                     "redis",
		"unix:///run/redis.sock?db=1":                                    "/run/redis.sock",
		"redis://svc:hunter2@a:1?addr=b:2":                               "the cluster of a:1, b:2",
		"redis://a:1?addr=b:2&master_name=m&username=u&password=hunter2": "m of the Sentinels at a:1, b:2",
	} {
		r, err := Settings{Redis: text, Timeout: time.Second}.parse()
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if r.Where != want {
			t.Errorf("%s is at %s, want %s", text, r.Where, want)
		}
		_, isCluster := r.UniversalClient.(*redis.ClusterClient)
		if isCluster != strings.Contains(want, "cluster") {
			t.Errorf("%s makes a %T", text, r.UniversalClient)
		}
		_ = r.Close()
	}
	for _, text := range []string{"http://host", "redis://u:hunter2@host/x", "redis://u:hunter2@host:port", "redis://u:hunter2@host?nonsense=1", "%zz"} {
		_, err := Settings{Redis: text}.parse()
		if exit.Of(err) != exit.Usage || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
	r, err := Settings{Redis: "redis://a:1", Cluster: true}.parse()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, ok := r.UniversalClient.(*redis.ClusterClient); !ok {
		t.Errorf("--cluster makes a %T", r.UniversalClient)
	}
}

func TestDSNs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a shop.db")
	for text, want := range map[string]source{
		"postgres://svc:hunter2@db:5432/shop?sslmode=disable": {driver: "pgx", where: "db:5432/shop", dialect: sqlstore.Postgres},
		"host=db user=svc password=hunter2 dbname=shop":       {driver: "pgx", where: "host=db user=svc password=*** dbname=shop", dialect: sqlstore.Postgres},
		"mysql://svc:hunter2@db/shop":                         {driver: "mysql", where: "db:3306/shop", dialect: sqlstore.MySQL},
		"mysql://svc:h%40nter2@db:3307/shop?tls=false":        {driver: "mysql", where: "db:3307/shop", dialect: sqlstore.MySQL},
		"svc:hunter2@tcp(db:3306)/shop":                       {driver: "mysql", where: "db:3306/shop", dialect: sqlstore.MySQL},
		"sqlite:" + file:                                      {driver: "sqlite", where: file, dialect: sqlstore.SQLite},
		"sqlite://" + file:                                    {driver: "sqlite", where: file, dialect: sqlstore.SQLite},
		"file:" + file + "?_pragma=busy_timeout(1)":           {driver: "sqlite", where: file, dialect: sqlstore.SQLite},
	} {
		got, err := parseDSN(text, false)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got.driver != want.driver || got.where != want.where || got.dialect != want.dialect {
			t.Errorf("%s is %+v", text, got)
		}
		if got.driver == "sqlite" && !strings.Contains(got.dsn, "mode=rw") {
			t.Errorf("%s would make a new file: %s", text, got.dsn)
		}
	}
	for _, text := range []string{"oracle://svc:hunter2@db/x", "shop", "postgres://svc:hunter2@db:port/shop", "mysql://svc:hunter2@db/shop?timeout=x", "sqlite:", "svc:hunter2@tcp(db"} {
		_, err := parseDSN(text, false)
		if exit.Of(err) != exit.Usage || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
