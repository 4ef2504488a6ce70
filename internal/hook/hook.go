// Package hook calls what users have hooked in.
package hook

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill"
)

// Call calls the hook that pick chooses from each set, where the set has it. One that
// panics is logged and no more: it runs in our goroutines, where nobody would recover,
// and after the fact, so that a panic that went on would make a success look like a
// failure.
func Call[S, E any](logger watermill.LoggerAdapter, sets []S, pick func(S) func(E), event E) {
	for _, set := range sets {
		if hook := pick(set); hook != nil {
			call(logger, hook, event)
		}
	}
}

func call[E any](logger watermill.LoggerAdapter, hook func(E), event E) {
	defer func() {
		if p := recover(); p != nil {
			logger.Error("A hook panicked", fmt.Errorf("%v", p), watermill.LogFields{
				"event": fmt.Sprintf("%T", event), "value": fmt.Sprintf("%+v", event), "stack": string(debug.Stack()),
			})
		}
	}()
	hook(event)
}
