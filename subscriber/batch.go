package subscriber

// batchSize decides how many entries the reader asks for. How large they are shows only
// when they are there, and a reply that takes longer than the client's read time-out brings
// none: so it begins with one, doubles with each batch that came full, is halved by a reply
// that was lost, and grows by one at a time from there on.
type batchSize struct {
	size      int
	doublesTo int // what was lost is not doubled to again; 0: nothing was lost
}

// atMost is the number to ask for where there is room for so many.
func (b *batchSize) atMost(room int) int { return min(max(b.size, 1), room) }

// came notes that so many came of those that were asked for.
func (b *batchSize) came(asked, got int) {
	switch {
	case got < asked || asked < b.size:
		// It says nothing about a larger batch.
	case b.doublesTo > 0 && b.size >= b.doublesTo:
		b.size++
	default:
		b.size = max(2*b.size, 2)
	}
}

// noReply notes that a reply did not come, or not in time.
func (b *batchSize) noReply(asked int) {
	b.size = max(asked/2, 1)
	b.doublesTo = b.size
}
