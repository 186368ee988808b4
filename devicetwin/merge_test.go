package devicetwin_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/devicetwin"
)

// drawSamples draws samples of few values and times, so that they meet.
func drawSamples(t *rapid.T, label string) map[string]devicetwin.Sample {
	return rapid.MapOfN(rapid.SampledFrom([]string{"temp", "speed", "mode"}), rapid.Custom(drawSample), 0, 3).Draw(t, label)
}

func drawSample(t *rapid.T) devicetwin.Sample {
	s := devicetwin.Sample{
		Value: rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "value"), Type: rapid.SampledFrom([]string{"", "int"}).Draw(t, "type"),
		Time: rapid.Int64Range(1, 3).Draw(t, "time"), Deleted: rapid.Bool().Draw(t, "deleted"),
	}
	s.Order = devicetwin.Order{Time: rapid.Int64Range(1, 3).Draw(t, "order"), Sequence: rapid.Uint64Range(1, 3).Draw(t, "sequence")}
	return s
}

// drawRecord draws a part of a record. The desired values are those of their generation.
func drawRecord(t *rapid.T) devicetwin.Record {
	r := devicetwin.Record{
		UID: "u", Generation: rapid.Int64Range(0, 3).Draw(t, "generation"),
		Reported: drawSamples(t, "reported"), Observed: drawSamples(t, "observed"), LastOnline: rapid.Int64Range(0, 3).Draw(t, "online"),
	}
	if rapid.Bool().Draw(t, "has state") {
		r.State = drawSample(t)
	}
	if rapid.Bool().Draw(t, "is required") {
		r.Required = map[string]bool{rapid.SampledFrom([]string{"temp", "speed"}).Draw(t, "required"): true}
	}
	if r.Generation > 0 {
		r.Desired = map[string]devicetwin.Desired{"temp": {Value: fmt.Sprint(r.Generation)}}
	}
	return r
}

// encoded compares records as the store has them: an empty map is none.
func encoded(t testing.TB, r devicetwin.Record) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMerge_AnyOrderAndTwice: the same parts in any order, each any number of times, with the record stored and read again between two of them.
func TestMerge_AnyOrderAndTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		parts := rapid.SliceOfN(rapid.Custom(drawRecord), 1, 6).Draw(rt, "parts")
		want := devicetwin.Record{}
		for _, p := range parts {
			want = devicetwin.Merge(want, p)
		}
		again := append(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 4).Draw(rt, "repeated"), parts...)
		got := devicetwin.Record{}
		for _, p := range rapid.Permutation(again).Draw(rt, "order") {
			got = devicetwin.Merge(got, p)
			var restored devicetwin.Record
			if err := json.Unmarshal([]byte(encoded(t, got)), &restored); err != nil {
				t.Fatal(err)
			}
			got = restored
		}
		if diff := cmp.Diff(encoded(t, want), encoded(t, got)); diff != "" {
			rt.Fatalf("another order gives another record (-want +got):\n%s", diff)
		}
	})
}

func TestMerge_IsAssociative(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b, c := drawRecord(rt), drawRecord(rt), drawRecord(rt)
		left, right := devicetwin.Merge(devicetwin.Merge(a, b), c), devicetwin.Merge(a, devicetwin.Merge(b, c))
		if diff := cmp.Diff(encoded(t, left), encoded(t, right)); diff != "" {
			rt.Fatalf("(a b) c and a (b c) differ:\n%s", diff)
		}
	})
}

// TestMerge_OlderNeverReplacesNewer compares with the newest of all samples, found by hand.
func TestMerge_OlderNeverReplacesNewer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		samples := rapid.SliceOfN(rapid.Custom(drawSample), 1, 8).Draw(rt, "samples")
		var record devicetwin.Record
		var newest devicetwin.Order
		for _, s := range samples {
			record = devicetwin.Merge(record, devicetwin.Record{Reported: map[string]devicetwin.Sample{"temp": s}})
			if s.Order.Time > newest.Time || s.Order.Time == newest.Time && s.Order.Sequence > newest.Sequence {
				newest = s.Order
			}
		}
		if got := record.Reported["temp"].Order; got != newest {
			rt.Fatalf("the record has %+v, the newest sample is %+v", got, newest)
		}
	})
}

// TestAdmit_LateMessages feeds one device's messages, with the device's times, in any order: the last value by the device's clock wins.
func TestAdmit_LateMessages(t *testing.T) {
	spec := newSpec(t, property("temp", ""))
	now := time.UnixMilli(1_000_000)
	rapid.Check(t, func(rt *rapid.T) {
		times := rapid.SliceOfNDistinct(rapid.Int64Range(1, 1_000_000), 1, 8, rapid.ID[int64]).Draw(rt, "times")
		record, stale, latest := spec.Fragment(), 0, int64(0)
		for _, at := range times {
			a, err := spec.Admit(record, devicetwin.Update{Time: at, Properties: actual("temp", fmt.Sprint(at))}, devicetwin.Reception{Time: now})
			if err != nil {
				rt.Fatal(err)
			}
			if a.Stale != asInt(at < latest) {
				rt.Fatalf("a value of %d after one of %d: %d are counted as stale", at, latest, a.Stale)
			}
			record, stale, latest = devicetwin.Merge(record, a.Fragment), stale+a.Stale, max(latest, at)
		}
		if got := record.Reported["temp"]; got.Value != fmt.Sprint(latest) || got.Time != latest {
			rt.Fatalf("reported is %+v, the newest message was of %d", got, latest)
		}
	})
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
