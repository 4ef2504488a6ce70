package ledger

// suspects are the entries that may have killed the process that held them.
type suspects struct {
	out      int  // with workers
	alone    int  // of those that others wait for
	cautious bool // until one entry of a dead consumer is settled
}

// mustBeAlone tells that no other suspect may be in flight with e. An entry that was
// in flight when a process died may have killed it. One that was not, as far as
// known, is suspected only until it is seen that such entries do no harm; with a
// single delivery allowed even one unjust count would be a sentence.
func (s *suspects) mustBeAlone(e *Entry, maxDeliveries int) bool {
	return e.counts.deliveries > 0 || s.cautious || maxDeliveries == 1
}

func (s *suspects) mayGo(e *Entry, maxDeliveries int) bool {
	return s.alone == 0 && (s.out == 0 || !s.mustBeAlone(e, maxDeliveries))
}
