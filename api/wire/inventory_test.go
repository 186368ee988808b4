package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestInventory_DependsOnContentNotOnOrder(t *testing.T) {
	a, b := wire.Key{Resource: "pods", Namespace: "x", Name: "a"}, wire.Key{Resource: "pods", Namespace: "x", Name: "b"}
	sum := func(add func(c *wire.Inventory)) wire.Inventory {
		var c wire.Inventory
		add(&c)
		return c
	}
	one := sum(func(c *wire.Inventory) { c.Add(a, "u", "1"); c.Add(b, "u", "2") })
	for name, other := range map[string]wire.Inventory{
		"versions swapped": sum(func(c *wire.Inventory) { c.Add(a, "u", "2"); c.Add(b, "u", "1") }),
		"another uid":      sum(func(c *wire.Inventory) { c.Add(a, "v", "1"); c.Add(b, "u", "2") }),
		"one less":         sum(func(c *wire.Inventory) { c.Add(a, "u", "1") }),
	} {
		if other == one {
			t.Errorf("%s: no difference", name)
		}
	}
	for name, same := range map[string]wire.Inventory{
		"in another order": sum(func(c *wire.Inventory) { c.Add(b, "u", "2"); c.Add(a, "u", "1") }),
		"after a change": sum(func(c *wire.Inventory) {
			c.Add(a, "u", "1")
			c.Add(b, "u", "1")
			c.Remove(b, "u", "1")
			c.Add(b, "u", "2")
		}),
	} {
		if same != one {
			t.Errorf("%s: %+v, want %+v", name, same, one)
		}
	}
	data, err := json.Marshal(wire.Heartbeat{Inventory: &one})
	if err != nil {
		t.Fatal(err)
	}
	var back wire.Heartbeat
	if err := json.Unmarshal(data, &back); err != nil || *back.Inventory != one {
		t.Errorf("%s became %+v, %v", data, back.Inventory, err)
	}
}
