package server

import (
	"context"
	"fmt"
	"testing"
)

func TestClassifyReply(t *testing.T) {
	for text, want := range map[string]Class{
		"MISCONF Redis is configured to save RDB snapshots":                                         Refused,
		"NOREPLICAS Not enough good replicas to write.":                                             Refused,
		"OOM command not allowed when used memory > 'maxmemory'. script: 1234, on @user_script:33.": Refused,
		"EXECABORT Transaction discarded because of: OOM command not allowed":                       Refused,
		"EXECABORT Transaction discarded because of: NOPERM no":                                     Final,
		"EXECABORT Transaction discarded because of previous errors.":                               Final,
		"BUSY Redis is busy running a script":                                                       Refused,
		"BUSYGROUP Consumer Group name already exists":                                              Final,
		"BUSYKEY Target key name already exists.":                                                   Final,
		"ERR max number of clients reached":                                                         Refused,
		"ERR max number of clients + cluster connections reached":                                   Refused,
		"ASK 1 127.0.0.1:1": Refused,
		"ERR handle request, slot is not ready, may be offline": Refused,
		"ERR handle request, request is broken":                 Ambiguous,
		"upstream failure":                                      Ambiguous,
		"no upstream host":                                      Refused,
		"ERR Connection timed out":                              Ambiguous,
		"WRONGTYPE Operation against a key":                     Final,
		"NOPERM no":                                             Final,
		"ERR syntax error":                                      Final,
	} {
		if got := Classify(fmt.Errorf("wrapped: %w", ReplyError(text))); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
	if got := Classify(context.DeadlineExceeded); got != Ambiguous {
		t.Errorf("a context's error is %d", got)
	}
}
