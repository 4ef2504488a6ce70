package server

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// CheckClient returns what is wrong with a configured client, nil if nothing is. others is
// what the servers of a ring don't do: "know their groups".
func CheckClient(client redis.UniversalClient, others string) error {
	switch client := client.(type) {
	case nil:
		return errors.New("Client is nil") //nolint:staticcheck // the name of the field
	case *redis.Ring:
		//nolint:staticcheck // the name of the field
		return fmt.Errorf("Client is a *redis.Ring, which moves keys to servers that don't %s; use a ClusterClient", others)
	default:
		if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("Client is a nil %T", client) //nolint:staticcheck // the name of the field
		}
	}
	return nil
}

// ClientOptions are those of a client that matter here.
type ClientOptions struct {
	PoolSize                  int
	ReadTimeout, WriteTimeout time.Duration // 0: none
}

// OptionsOf returns the options of a client; false if they are not known.
func OptionsOf(client redis.UniversalClient) (ClientOptions, bool) {
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		return ClientOptions{o.PoolSize, o.ReadTimeout, o.WriteTimeout}, true
	case *redis.ClusterClient:
		o := c.Options()
		return ClientOptions{o.PoolSize, o.ReadTimeout, o.WriteTimeout}, true
	}
	return ClientOptions{}, false
}
