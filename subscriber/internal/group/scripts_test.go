package group

import (
	"strings"
	"testing"
)

// Every script begins with its contract.
func TestScriptsHaveTheirContract(t *testing.T) {
	for name, source := range map[string]string{
		"renew": renewSource, "ack": ackSource, "prepare": prepareSource, "release": releaseSource,
		"deadletter": deadLetterSource, "take": takeSource, "activate": activateSource, "sweep": sweepSource,
		"own": ownSource, "info": infoSource, "restore": restoreSource, "peek": peekSource,
	} {
		for _, part := range []string{"-- KEYS[1]", "-- ARGV[1", "-- Returns", "-- Errors"} {
			if !strings.Contains(source, part) {
				t.Errorf("%s.lua has no %q", name, part)
			}
		}
	}
}
