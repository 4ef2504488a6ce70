package delivery

import (
	"context"
	"testing"
	"time"
)

type fake struct{ delayed time.Duration }

func (*fake) Info() Info              { return Info{EntryID: "1-0"} }
func (f *fake) Delay(d time.Duration) { f.delayed = d }
func (*fake) Reject(string, error)    {}
func (*fake) Failed(error)            {}

// The bond reaches through contexts that others derive, as Watermill's Router does.
func TestBondTravelsOnTheContext(t *testing.T) {
	if From(context.Background()) != nil {
		t.Error("a delivery on an empty context")
	}
	type other struct{}
	f := &fake{}
	ctx := context.WithValue(With(context.Background(), f), other{}, "x")
	d := From(ctx)
	if d == nil || d.Info().EntryID != "1-0" {
		t.Fatalf("got %v", d)
	}
	d.Delay(time.Second)
	if f.delayed != time.Second {
		t.Error("Delay did not arrive")
	}
}
