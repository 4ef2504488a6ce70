package metrics_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func add(t *testing.T, client redis.UniversalClient, topic, id string) {
	t.Helper()
	if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, ID: id, Values: []string{"a", "1"}}).Err(); err != nil {
		t.Fatal(err)
	}
}

// Of a group that has read one of three entries, an hour after they were added, the scrape says
// how far it is, in a process that has nothing to do with it.
func TestGroupThatIsBehind(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic := s.Client(), testserver.Topic(t)
		hourAgo := time.Now().Add(-time.Hour).UnixMilli()
		for i := range 3 {
			add(t, client, topic, fmt.Sprintf("%d-%d", hourAgo, i+1))
		}
		add(t, client, subscriber.DeadLetterTopic(topic), "*")
		for _, group := range []string{"billing", "shipping", "zebra"} {
			if err := client.XGroupCreate(t.Context(), topic, group, "0").Err(); err != nil {
				t.Fatal(err)
			}
		}
		err := client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "billing", Consumer: "one", Streams: []string{topic, ">"}, Count: 1}).Err()
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewPedanticRegistry()
		addStreams(t, registry, metrics.StreamsConfig{Client: client, Topics: []string{topic}, MaxGroups: 2})
		at := func(name, group string) string { return fmt.Sprintf("%s{group=%q,topic=%q}", name, group, topic) }
		of := func(name string) string { return fmt.Sprintf("%s{topic=%q}", name, topic) }
		all := wantSoon(t, registry, scraped{
			of("stream_up"): 1, of("stream_length"): 3, of("stream_groups"): 3, of("stream_dead_letters"): 1, of("stream_entries_added_total"): 3,
			of("stream_last_entry_timestamp_seconds"): float64(hourAgo) / 1000,
			at("stream_group_lag", "billing"):         2, at("stream_group_pending", "billing"): 1, at("stream_group_consumers", "billing"): 1,
			at("stream_group_lag", "shipping"): 3, at("stream_group_pending", "shipping"): 0, at("stream_group_oldest_pending_seconds", "shipping"): 0,
		})
		if oldest := all[at("stream_group_oldest_pending_seconds", "billing")]; oldest < 3600 || oldest > 3600+60 {
			t.Errorf("the oldest pending entry is %v s old", oldest)
		}
		for series := range all {
			if strings.Contains(series, "zebra") {
				t.Errorf("more than MaxGroups: %s", series)
			}
		}
	})
}

// What can't be asked about one topic leaves the others alone. A topic without a stream is none
// that can't be asked.
func TestTopicThatIsNoStream(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	client, topic, wrong, missing := s.Client(), testserver.Topic(t), testserver.Topic(t), testserver.Topic(t)
	add(t, client, topic, "*")
	if err := client.Set(t.Context(), wrong, "text", 0).Err(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	addStreams(t, registry, metrics.StreamsConfig{Client: client, Topics: []string{wrong, missing, topic}})
	of := func(name, topic string) string { return fmt.Sprintf("%s{topic=%q}", name, topic) }
	all := wantSoon(t, registry, scraped{
		of("stream_up", wrong): 0, of("stream_up", missing): 1, of("stream_length", missing): 0, of("stream_groups", missing): 0,
		of("stream_up", topic): 1, of("stream_length", topic): 1,
	})
	if _, ok := all[of("stream_length", wrong)]; ok {
		t.Error("a string has a length as a stream")
	}
}

// A user with the rights of the README sees all, and nothing else is asked.
func TestRightsOfStreams(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	admin, topic := s.Client(), testserver.Topic(t)
	add(t, admin, topic, "*")
	if err := admin.XGroupCreate(t.Context(), topic, "billing", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "billing", Consumer: "one", Streams: []string{topic, ">"}}).Err(); err != nil {
		t.Fatal(err)
	}
	rule := []any{"ACL", "SETUSER", "scraper", "on", ">secret", "~" + topic, "~" + subscriber.DeadLetterTopic(topic),
		"+xinfo|stream", "+xinfo|groups", "+xpending", "+xlen"}
	if err := admin.Do(t.Context(), rule...).Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "scraper", Password: "secret"})
	defer client.Close()
	registry := prometheus.NewPedanticRegistry()
	addStreams(t, registry, metrics.StreamsConfig{Client: client, Topics: []string{topic}})
	wantSoon(t, registry, scraped{
		fmt.Sprintf("stream_up{topic=%q}", topic): 1, fmt.Sprintf("stream_dead_letters{topic=%q}", topic): 0,
		fmt.Sprintf("stream_group_pending{group=%q,topic=%q}", "billing", topic): 1,
	})
}

// The topics of a scrape may be on different nodes.
func TestStreamsOfACluster(t *testing.T) {
	c := testserver.StartCluster(t, testserver.Redis86)
	client := c.ClusterClient()
	registry, want := prometheus.NewPedanticRegistry(), make(scraped)
	var topics []string
	for i := range 12 {
		topic := fmt.Sprint(testserver.Topic(t), i)
		add(t, client, topic, "*")
		if err := client.XGroupCreate(t.Context(), topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "billing", Consumer: "one", Streams: []string{topic, ">"}}).Err(); err != nil {
			t.Fatal(err)
		}
		topics = append(topics, topic)
		want[fmt.Sprintf("stream_up{topic=%q}", topic)] = 1
		want[fmt.Sprintf("stream_length{topic=%q}", topic)] = 1
		want[fmt.Sprintf("stream_group_pending{group=\"billing\",topic=%q}", topic)] = 1
	}
	addStreams(t, registry, metrics.StreamsConfig{Client: client, Topics: topics})
	wantSoon(t, registry, want)
}
