package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Replies of Redis 8.6, shortened, in both protocols.
const (
	replyMap = "%6\r\n$6\r\nlength\r\n:1\r\n$17\r\nlast-generated-id\r\n$15\r\n1700000000000-7\r\n" +
		"$13\r\nidmp-duration\r\n:3600\r\n$12\r\nidmp-maxsize\r\n:10000\r\n$11\r\nfirst-entry\r\n" +
		"*2\r\n$15\r\n1700000000000-7\r\n*2\r\n$1\r\na\r\n$12\r\nlength\r\n$1:9\r\n$10\r\niids-added\r\n:5\r\n"
	replyList = "*6\r\n$6\r\nlength\r\n:2\r\n$17\r\nlast-generated-id\r\n$3\r\n1-2\r\n$10\r\nlast-entry\r\n$-1\r\n"
)

func TestStreamInfo(t *testing.T) {
	info, err := parseStreamInfo([]byte(replyMap))
	want := StreamInfo{Last: streamid.ID{MS: 1700000000000, Seq: 7}, Length: 1, IDMPDuration: 3600, IDMPMaxSize: 10000, IIDsAdded: 5, First: "1700000000000-7"}
	if err != nil || info != want {
		t.Errorf("%+v, %v; want %+v", info, err, want)
	}
	info, err = parseStreamInfo([]byte(replyList))
	if want := (StreamInfo{Last: streamid.ID{MS: 1, Seq: 2}, Length: 2}); err != nil || info != want {
		t.Errorf("%+v, %v; want %+v", info, err, want)
	}
	_, err = parseStreamInfo([]byte("-ERR no such key\r\n"))
	var reply redis.Error
	if !IsMissingKey(err) || !errors.As(err, &reply) || Classify(err) != Final {
		t.Errorf("error reply: %v", err)
	}
	for _, bad := range []string{"", "+OK\r\n", ":1\r\n", "*0\r\n", "%9\r\n", "*x\r\n", strings.TrimSuffix(replyList, replyList[20:])} {
		if _, err := parseStreamInfo([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func FuzzStreamInfo(f *testing.F) {
	f.Add([]byte(replyMap))
	f.Add([]byte(replyList))
	f.Add([]byte("*2\r\n*1000000000\r\n*1000000000\r\n"))
	f.Fuzz(func(_ *testing.T, reply []byte) {
		_, _ = parseStreamInfo(reply)
	})
}
