//go:build race

package subscriber_test

// raceEnabled: the suite's TestReconnect appends what was published to a slice on one
// goroutine and reads it on another without waiting (watermill v1.5.1,
// pubsub/tests/test_pubsub.go, lines 1086 and 1120), which the race detector reports. It
// runs without the detector, by `make test-reconnect`; TestRestartUnderTraffic is our own
// test of the same under the detector.
const raceEnabled = true
