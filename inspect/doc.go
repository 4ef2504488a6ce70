// Package inspect looks at topics on a server: for operators and their tools. It writes
// nothing.
//
//	look, err := inspect.New(inspect.Config{Client: client})
//	for topic, err := range look.Topics(ctx, inspect.TopicFilter{}) { … }
//	topic, err := look.Topic(ctx, "orders")
//	found, err := look.Duplicates(ctx, "orders", inspect.Scan{})
package inspect
