package rediskey

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The check value of CRC-16/XMODEM, and slots as CLUSTER KEYSLOT answers them.
func TestSlotsAreThoseOfRedisCluster(t *testing.T) {
	if got := crc16("123456789"); got != 0x31C3 {
		t.Fatalf("crc16 = %#x, want 0x31C3", got)
	}
	for key, want := range map[string]int{
		"":              0,
		"foo":           12182,
		"bar":           5061,
		"somekey":       11058,
		"foo{hash_tag}": 2515,
		"hash_tag":      2515,
	} {
		if got := Slot(key); got != want {
			t.Errorf("Slot(%q) = %d, want %d", key, got, want)
		}
	}
}

// The cases of the Redis Cluster specification, and the ones around them.
func TestHashTag(t *testing.T) {
	for key, want := range map[string]string{
		"{user1000}.following": "user1000",
		"foo{}{bar}":           "",
		"foo{{bar}}zap":        "{bar",
		"foo{bar}{zap}":        "bar",
		"foo}bar":              "",
		"foo}{bar}":            "bar",
		"foo{bar":              "",
		"a{}b":                 "",
		"x:{eu}:y":             "eu",
		"":                     "",
		"{":                    "",
		"{}":                   "",
		"}{":                   "",
	} {
		if got := hashTag(key); got != want {
			t.Errorf("hashTag(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestEverySlotHasATag(t *testing.T) {
	for want, tag := range tags() {
		if got := Slot("{" + tag + "}"); got != want || strings.ContainsAny(tag, "{}") {
			t.Fatalf("tag %q is for slot %d, hashes to %d", tag, want, got)
		}
	}
}

// fragments make up topics, producers and IDs that look like parts of side keys.
var fragments = []string{"a", "b", "{", "}", ":", "/", "%", "%3A", ".dead", ":idem:", "idem", "layout", "latch", "\x00", "\xff", "ü"}

func hostile() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 8).Draw(t, "fragments"), "")
		}),
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
}

func TestSideKeysAreInTheTopicsSlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic, producer, id := hostile().Draw(t, "topic"), hostile().Draw(t, "producer"), hostile().Draw(t, "id")
		for _, key := range []string{LayoutKey(topic), LatchKey(topic, producer, id), DeadLetter(topic), "{" + Tag(topic) + "}"} {
			if Slot(key) != Slot(topic) {
				t.Fatalf("%q is in slot %d, topic %q in slot %d", key, Slot(key), topic, Slot(topic))
			}
		}
	})
}

// Tools find topics by the keys beside them.
func TestNamesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic, producer, id := hostile().Draw(t, "topic"), hostile().Draw(t, "producer"), hostile().Draw(t, "id")
		if got, ok := TopicOfLayout(LayoutKey(topic)); !ok || got != topic {
			t.Fatalf("%q is the layout record of %q, and not of %q", LayoutKey(topic), topic, got)
		}
		p, i, ok := ParseLatch(topic, LatchKey(topic, producer, id))
		if !ok || p != producer || i != id {
			t.Fatalf("latch %q of %q, %q: read as %q, %q", LatchKey(topic, producer, id), producer, id, p, i)
		}
		if !strings.HasPrefix(LatchKey(topic, producer, id), LatchPrefix(topic)+LatchProducer(producer)) {
			t.Fatalf("%q does not begin with %q", LatchKey(topic, producer, id), LatchPrefix(topic)+LatchProducer(producer))
		}
		if got, ok := TopicOfLayout(topic); ok && LayoutKey(got) != topic {
			t.Fatalf("%q is no layout record, and was taken for that of %q", topic, got)
		}
	})
}

func TestSideKeysAreDistinct(t *testing.T) {
	type name struct{ kind, topic, producer, id string }
	key := func(n name) string {
		switch n.kind {
		case "layout":
			return LayoutKey(n.topic)
		case "dead":
			return DeadLetter(n.topic)
		}
		return LatchKey(n.topic, n.producer, n.id)
	}

	t.Run("every topic of up to four fragments", func(t *testing.T) {
		owner := make(map[string]name)
		check := func(n name) {
			k := key(n)
			if other, taken := owner[k]; taken && other != n {
				t.Fatalf("%+v and %+v share the key %q", n, other, k)
			}
			owner[k] = n
		}
		var topics func(prefix string, left int)
		topics = func(prefix string, left int) {
			check(name{kind: "layout", topic: prefix})
			check(name{kind: "dead", topic: prefix})
			check(name{kind: "layout", topic: Tag(prefix)})
			check(name{"latch", prefix, "a", ":idem:layout"})
			check(name{"latch", prefix, "a:", "idem:layout"})
			check(name{"latch", prefix, "a%3A", "idem:layout"})
			if left == 0 {
				return
			}
			for _, f := range []string{"a", "{", "}", "{a}", ":", "%3A", "/", ".dead", ":idem:layout", ":idem:latch:a"} {
				topics(prefix+f, left-1)
			}
		}
		topics("", 4)
	})

	t.Run("random", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			draw := func(label string) name {
				n := name{kind: rapid.SampledFrom([]string{"layout", "latch", "dead"}).Draw(t, label), topic: hostile().Draw(t, "topic")}
				if n.kind == "latch" {
					n.producer, n.id = hostile().Draw(t, "producer"), hostile().Draw(t, "id")
				}
				return n
			}
			a, b := draw("a"), draw("b")
			if a != b && key(a) == key(b) {
				t.Fatalf("%+v and %+v share the key %q", a, b, key(a))
			}
		})
	})
}

// These names are stored on servers. A change needs a migration.
func TestGoldenNames(t *testing.T) {
	for _, tt := range []struct{ topic, layout, latch, dead string }{
		{"orders", "{orders}:idem:layout", "{orders}:idem:latch:pay:pay:1001:p1", "{orders}.dead"},
		{"a{b", "{a{b}:idem:layout", "{a{b}:idem:latch:pay:pay:1001:p1", "{a{b}.dead"},
		{"x:{eu}:y", "{eu}/x%3A{eu}%3Ay:idem:layout", "{eu}/x%3A{eu}%3Ay:idem:latch:pay:pay:1001:p1", "{eu}/x%3A{eu}%3Ay.dead"},
		{"{orders}", "{orders}/{orders}:idem:layout", "{orders}/{orders}:idem:latch:pay:pay:1001:p1", "{orders}/{orders}.dead"},
		{"a{}b", "{5dc}/a{}b:idem:layout", "{5dc}/a{}b:idem:latch:pay:pay:1001:p1", "{5dc}/a{}b.dead"},
		{"foo}bar", "{ciy}/foo}bar:idem:layout", "{ciy}/foo}bar:idem:latch:pay:pay:1001:p1", "{ciy}/foo}bar.dead"},
	} {
		if got := LayoutKey(tt.topic); got != tt.layout {
			t.Errorf("LayoutKey(%q) = %q, want %q", tt.topic, got, tt.layout)
		}
		if got := LatchKey(tt.topic, "pay", "pay:1001:p1"); got != tt.latch {
			t.Errorf("LatchKey(%q) = %q, want %q", tt.topic, got, tt.latch)
		}
		if got := DeadLetter(tt.topic); got != tt.dead {
			t.Errorf("DeadLetter(%q) = %q, want %q", tt.topic, got, tt.dead)
		}
	}
	if got, want := LatchKey("orders", "eu:pay", "k"), "{orders}:idem:latch:eu%3Apay:k"; got != want {
		t.Errorf("LatchKey with a colon in the producer = %q, want %q", got, want)
	}
}

func TestIsReserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic := hostile().Draw(t, "topic")
		if key := LayoutKey(topic); !IsReserved(key) {
			t.Fatalf("%q is not reserved", key)
		}
		if key := LatchKey(topic, hostile().Draw(t, "producer"), hostile().Draw(t, "id")); !IsReserved(key) {
			t.Fatalf("%q is not reserved", key)
		}
		if key := DeadLetter(topic); IsReserved(key) {
			t.Fatalf("%q is reserved: nobody could read it", key)
		}
	})
	for _, topic := range []string{"", "orders", "{", "}", "{eu}", "x:{eu}:idem:layout", "a:idem:layout", "{eu}:orders", "{eu}/a:b"} {
		if IsReserved(topic) {
			t.Errorf("%q is reserved", topic)
		}
	}
}

func BenchmarkLatchKey(b *testing.B) {
	for _, topic := range []string{"orders", "x:{eu}:y", "a{}b"} {
		b.Run(topic, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = LatchKey(topic, "payment-service", "pay:1001:p9001")
			}
		})
	}
}
