// Package stores has examples of the transactional stores, in its tests. They are here
// and not beside the stores since database drivers would get into their modules.
package stores
