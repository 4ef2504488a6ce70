// Package deadletter works on the dead letters of a topic: it lists, shows, replays and drops
// them.
//
// The subscriber moves an entry that it gives up on to the stream
// subscriber.DeadLetterTopic(topic), together with why. Once the cause is mended, a replay
// publishes the letter to its topic again and removes it from the dead letters:
//
//	letters, err := deadletter.New(deadletter.Config{Client: client})
//	result, err := letters.Replay(ctx, "orders", deadletter.Replay{
//		Publisher: pub,
//		Filter:    deadletter.Filter{Group: "billing", Reason: subscriber.ReasonMaxDeliveries},
//		By:        "anna",
//	})
//
// A replay is a new attempt of its event, so it is not refused as a duplicate of the event's
// first publish; but each letter is one attempt. What was replayed before, because the reply
// was lost or the program died before it removed the letter, is recognised: a replay can be
// repeated until it is through. This needs a [publisher.Publisher] with the same ProducerID
// each time, and holds for as long as the topic's window.
//
// The entry reaches every group of the topic. The handling middleware runs it where the event
// was not handled before and skips it elsewhere.
package deadletter
