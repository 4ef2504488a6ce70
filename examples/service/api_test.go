package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
)

func TestAnswers(t *testing.T) {
	i := launch(t)
	for _, c := range []struct {
		name, key, body string
		code            int
		want            string
	}{
		{"new", "", `{"order_id":"1","customer":"ann","amount":5}`, 201, `"order_id":"1","customer":"ann","amount":5,"placed_at":"`},
		{"the same", "", `{"order_id":"1","customer":"ann","amount":5}`, 200, `"order_id":"1"`},
		{"another amount", "", `{"order_id":"1","customer":"ann","amount":6}`, 422, "the same request was made with another order"},
		{"another customer", "", `{"order_id":"1","customer":"bob","amount":5}`, 422, "another order"},
		{"its ID under a key", "k1", `{"order_id":"1","customer":"ann","amount":5}`, 409, "another order with this order_id"},
		{"new by key", "k2", `{"order_id":"2","customer":"ann","amount":5}`, 201, `"order_id":"2"`},
		{"the same by key", "k2", `{"order_id":"2","customer":"ann","amount":5}`, 200, `"order_id":"2"`},
		{"the same by key, without its ID", "k2", `{"customer":"ann","amount":5}`, 200, `"order_id":"2"`},
		{"another ID under the key", "k2", `{"order_id":"3","customer":"ann","amount":5}`, 422, "another order"},
		{"the refused one is not there", "", `{"order_id":"3","customer":"ann","amount":5}`, 201, `"order_id":"3"`},
		{"no key", "", `{"customer":"ann","amount":5}`, 400, "send an Idempotency-Key, or an order_id"},
		{"no customer", "k", `{"amount":5}`, 400, "customer is missing"},
		{"no amount", "k", `{"customer":"ann"}`, 400, "amount is missing"},
		{"unknown field", "k", `{"customer":"ann","amount":5,"amont":6}`, 400, `unknown field \"amont\"`},
		{"no JSON", "k", `customer=ann`, 400, "the body is not an order"},
		{"long key", strings.Repeat("k", 201), `{"customer":"ann","amount":5}`, 400, "200 bytes at most"},
		{"long body", "k", `{"customer":"` + strings.Repeat("a", maxBody) + `","amount":5}`, 400, "too large"},
	} {
		code, text, header := request(t, http.MethodPost, i.api+"/orders", c.key, c.body)
		if code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %d with %s", c.name, code, text, c.code, c.want)
		}
		if replayed := header.Get("Idempotency-Replayed") == "true"; replayed != (code == http.StatusOK) {
			t.Errorf("%s: Idempotency-Replayed %v", c.name, replayed)
		}
	}
	if code, text, _ := request(t, http.MethodGet, i.api+"/orders/none", "", ""); code != http.StatusNotFound {
		t.Errorf("%d %s", code, text)
	}
}

// Many who send one request at once have one order.
func TestTheSameRequestAtOnce(t *testing.T) {
	i := launch(t)
	var mu sync.Mutex
	ids, codes := make(map[string]int), make(map[int]int)
	var sending sync.WaitGroup
	for range 20 {
		sending.Go(func() {
			code, text, _ := request(t, http.MethodPost, i.api+"/orders", "k", `{"customer":"ann","amount":5}`)
			var placed order
			if err := json.Unmarshal([]byte(text), &placed); err != nil {
				t.Errorf("%d %q: %v", code, text, err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[placed.ID]++
			codes[code]++
		})
	}
	sending.Wait()
	if len(ids) != 1 || codes[http.StatusCreated] != 1 || codes[http.StatusOK] != 19 {
		t.Errorf("IDs %v, codes %v", ids, codes)
	}
}
