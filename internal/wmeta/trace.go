package wmeta

// traceNames are where the propagators of the W3C write the context of a trace. It is another
// one with each try, so that it takes part in nothing that compares two messages.
var traceNames = [...]string{"traceparent", "tracestate", "baggage"}

// IsTrace tells whether metadata of this name is the context of a trace.
func IsTrace(name string) bool {
	for _, n := range traceNames {
		if name == n {
			return true
		}
	}
	return false
}

// HasTrace tells whether metadata has the context of a trace.
func HasTrace(metadata map[string]string) bool {
	for _, name := range traceNames {
		if _, ok := metadata[name]; ok {
			return true
		}
	}
	return false
}
