// Package permanent knows the errors that another try can't mend.
package permanent

// Is reports whether err is permanent: it, or an error that it wraps, has a method
// Permanent() bool that says so, or is one of the targets. An error with that method speaks
// for what it wraps; of several errors that are joined, one is enough.
func Is(err error, targets ...error) bool {
	if err == nil {
		return false
	}
	if marked, ok := err.(interface{ Permanent() bool }); ok {
		return marked.Permanent()
	}
	matcher, _ := err.(interface{ Is(target error) bool })
	for _, target := range targets {
		if err == target || matcher != nil && matcher.Is(target) { //nolint:errorlint // as above
			return true
		}
	}
	switch u := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		return Is(u.Unwrap(), targets...)
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if Is(e, targets...) {
				return true
			}
		}
	}
	return false
}
