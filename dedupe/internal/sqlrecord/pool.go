package sqlrecord

import "fmt"

// PoolTaken is the error of a claim that found no connection in a pool of this size.
func PoolTaken(size int) error {
	return fmt.Errorf("running handlers hold all connections of the pool of %d but the one that is kept for what they ask outside of their "+
		"transactions: make the pool larger than all MaxInFlight together, or find out what they wait for", size)
}

// PoolWarning is what Check says about a pool of this size; empty: nothing.
func PoolWarning(size, maxInFlight int) string {
	if size <= 0 || maxInFlight <= 0 || size > maxInFlight {
		return ""
	}
	return fmt.Sprintf("The pool has at most %d connections, and MaxInFlight is %d: each running handler holds one, and one is kept for what "+
		"handlers ask outside of their transactions, so messages wait for connections. Make the pool larger than MaxInFlight.", size, maxInFlight)
}
