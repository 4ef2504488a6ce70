// Package rediskey names the side keys of a topic: the layout record, latches and the
// dead-letter stream.
//
// A Redis Cluster spreads keys over 16,384 slots and runs a script or transaction
// only on keys of one slot. The slot is a hash of the key or, where the key has a
// hash tag, of the tag: what stands between the first { and the first } after it,
// if that is not empty (Redis Cluster specification, "Hash tags"). Every side key
// begins with a hash tag that puts it into the topic's slot.
package rediskey

import (
	"strconv"
	"strings"
	"sync"
)

// Slots is the number of slots of a cluster.
const Slots = 16384

// Slot is the slot of a key.
func Slot(key string) int {
	if tag := hashTag(key); tag != "" {
		key = tag
	}
	return int(crc16(key)) % Slots
}

// hashTag is the hash tag of a key, "" if it has none.
func hashTag(key string) string {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if size := strings.IndexByte(key[open+1:], '}'); size > 0 {
			return key[open+1 : open+1+size]
		}
	}
	return ""
}

// Tag is a text without } that, as a hash tag, hashes to the slot of the topic: the
// topic's own hash tag, else the topic itself, else a looked-up one.
func Tag(topic string) string {
	if tag := hashTag(topic); tag != "" {
		return tag
	}
	// Without a tag all of the topic is hashed, and it still is when put into
	// braces, unless it has a } itself, which would end the tag too early.
	if isPlain(topic) {
		return topic
	}
	return tags()[Slot(topic)]
}

// isPlain tells whether {topic} has the topic as its hash tag.
func isPlain(topic string) bool { return topic != "" && !strings.Contains(topic, "}") }

// tags finds a short tag for each slot. The search order is part of the key
// names: another order would give other names to the side keys of existing topics.
var tags = sync.OnceValue(func() *[Slots]string {
	var table [Slots]string
	for n, found := 0, 0; found < Slots; n++ {
		tag := strconv.FormatInt(int64(n), 36)
		if s := Slot(tag); table[s] == "" {
			table[s] = tag
			found++
		}
	}
	return &table
})

// crcTable is the table of CRC-16/XMODEM, the checksum that Redis Cluster uses.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^s[i]]
	}
	return crc
}
