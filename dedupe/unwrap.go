package dedupe

// Unwrap returns the store that s wraps: one that measures or logs the steps of another has a
// method Unwrap() Store that returns it. A store without that method is returned itself, and
// of several layers the innermost.
//
// Whoever looks at the type of a store looks at that of the unwrapped one. A wrapper should
// have the optional methods of the wrapped store: those of [Admin], and
// Check(context.Context) ([]string, error).
func Unwrap(s Store) Store {
	for {
		wrapper, ok := s.(interface{ Unwrap() Store })
		if !ok {
			return s
		}
		s = wrapper.Unwrap()
	}
}
