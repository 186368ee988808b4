package reduction_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/devicetwin/reduction"
)

var began = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func TestRule_Keep(t *testing.T) {
	changeOnly := reduction.Rule{ChangeOnly: true}
	half := reduction.Rule{Deadband: 0.5}
	both := reduction.Rule{Deadband: 0.5, ChangeOnly: true, MaxInterval: time.Minute}
	for name, tt := range map[string]struct {
		rule   reduction.Rule
		last   string
		value  string
		after  time.Duration
		wanted bool
	}{
		"no rule, equal":                    {reduction.Rule{}, "1", "1", time.Second, true},
		"an interval alone keeps all":       {reduction.Rule{MaxInterval: time.Hour}, "1", "1", time.Second, true},
		"change only, equal":                {changeOnly, "on", "on", time.Hour, false},
		"change only, another":              {changeOnly, "on", "off", 0, true},
		"change only, written differently":  {changeOnly, "1", "1.0", time.Second, true},
		"change only, empty":                {changeOnly, "", "", time.Second, false},
		"within the deadband":               {half, "20", "20.4", time.Second, false},
		"at its edge":                       {half, "20", "20.5", time.Second, false},
		"beyond it":                         {half, "20", "20.51", time.Second, true},
		"below it":                          {half, "20", "19.4", time.Second, true},
		"written differently in a deadband": {half, "20", "2e1", time.Second, false},
		"a text, equal":                     {half, "broken", "broken", time.Second, false},
		"a text, another":                   {half, "broken", "fine", time.Second, true},
		"a text after a number":             {half, "20", "broken", time.Second, true},
		"a number after a text":             {half, "broken", "20", time.Second, true},
		"NaN after NaN":                     {half, "NaN", "NaN", time.Second, false},
		"a number after NaN":                {half, "NaN", "1", time.Second, true},
		"infinity after infinity":           {half, "Inf", "+Inf", time.Second, true},
		"before the interval":               {both, "20", "20", time.Minute - 1, false},
		"after the interval":                {both, "20", "20", time.Minute, true},
		"late":                              {both, "20", "20", -time.Second, true},
	} {
		if got := tt.rule.Keep(reduction.Sample{Value: tt.last, Time: began}, reduction.Sample{Value: tt.value, Time: began.Add(tt.after)}); got != tt.wanted {
			t.Errorf("%s: kept %t, want %t", name, got, tt.wanted)
		}
	}
}

func TestParse(t *testing.T) {
	types := map[string]string{"temp": "FLOAT", "mode": "STRING", "raw": "", "a.b": "INT"}
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        map[string]reduction.Rule
		fault       string
	}{
		"none":   {map[string]string{"other.io/deadband.temp": "x", "frond.io/deadband": "x"}, map[string]reduction.Rule{}, ""},
		"all":    {map[string]string{"frond.io/deadband.temp": "0.5", "frond.io/change-only.temp": "true", "frond.io/max-interval.temp": "10m"}, map[string]reduction.Rule{"temp": {ChangeOnly: true, Deadband: 0.5, MaxInterval: 10 * time.Minute}}, ""},
		"dotted": {map[string]string{"frond.io/deadband.a.b": "2"}, map[string]reduction.Rule{"a.b": {Deadband: 2}}, ""},
		"several": {
			map[string]string{"frond.io/change-only.mode": "true", "frond.io/deadband.raw": "1e-3", "frond.io/change-only.temp": "false"},
			map[string]reduction.Rule{"mode": {ChangeOnly: true}, "raw": {Deadband: 1e-3}, "temp": {}},
			"",
		},
		"durability": {
			map[string]string{"frond.io/durability.temp": "flow", "frond.io/durability.mode": "exact", "frond.io/durability.raw": "flow", "frond.io/change-only.raw": "true"},
			map[string]reduction.Rule{"temp": {Flow: true}, "mode": {}, "raw": {Flow: true, ChangeOnly: true}},
			"",
		},
		"another durability":          {map[string]string{"frond.io/durability.temp": "fast"}, nil, `frond.io/durability.temp: "fast" is neither exact nor flow`},
		"one of them is wrong":        {map[string]string{"frond.io/change-only.mode": "true", "frond.io/deadband.raw": "much"}, nil, `frond.io/deadband.raw: "much" is not a number above 0`},
		"no such property":            {map[string]string{"frond.io/deadband.tmep": "1"}, nil, "frond.io/deadband.tmep: the Device has no such property"},
		"no property":                 {map[string]string{"frond.io/deadband.": "1"}, nil, "no such property"},
		"deadband of a text":          {map[string]string{"frond.io/deadband.mode": "1"}, nil, "the type of the property is STRING"},
		"deadband 0":                  {map[string]string{"frond.io/deadband.temp": "0"}, nil, "above 0"},
		"negative":                    {map[string]string{"frond.io/deadband.temp": "-1"}, nil, "above 0"},
		"NaN":                         {map[string]string{"frond.io/deadband.temp": "NaN"}, nil, "above 0"},
		"infinite":                    {map[string]string{"frond.io/deadband.temp": "Inf"}, nil, "above 0"},
		"neither true nor false":      {map[string]string{"frond.io/change-only.temp": "yes"}, nil, "neither true nor false"},
		"no unit":                     {map[string]string{"frond.io/change-only.temp": "true", "frond.io/max-interval.temp": "10"}, nil, "not a duration"},
		"too short":                   {map[string]string{"frond.io/change-only.temp": "true", "frond.io/max-interval.temp": "10ms"}, nil, "not a duration of 1s or more"},
		"an interval without a limit": {map[string]string{"frond.io/max-interval.temp": "10m"}, nil, "needs"},
	} {
		got, err := reduction.Parse(tt.annotations, types)
		switch {
		case tt.fault == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault) || got != nil):
			t.Errorf("%s: %v, %v; want the fault %q", name, got, err, tt.fault)
		}
		if diff := cmp.Diff(tt.want, got); tt.fault == "" && diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Whatever the values: what is left out is as near to the sample kept before as the rule says, and not later than its interval.
func FuzzRule_Keep(f *testing.F) {
	f.Add("1,1.2,2,2,x,x,3", 0.5, true, int64(3))
	f.Add("NaN,Inf,-Inf,0,1e308,-1e308", 1.0, false, int64(0))
	f.Fuzz(func(t *testing.T, values string, deadband float64, changeOnly bool, interval int64) {
		if deadband < 0 || math.IsNaN(deadband) || math.IsInf(deadband, 0) || interval < 0 || interval > 1000 {
			t.Skip()
		}
		rule := reduction.Rule{Deadband: deadband, ChangeOnly: changeOnly, MaxInterval: time.Duration(interval) * time.Second}
		var last reduction.Sample
		for i, value := range strings.Split(values, ",") {
			s := reduction.Sample{Value: value, Time: began.Add(time.Duration(i) * time.Second)}
			if i == 0 || rule.Keep(last, s) {
				last = s
				continue
			}
			if rule.MaxInterval > 0 && s.Time.Sub(last.Time) >= rule.MaxInterval {
				t.Errorf("%+v left out %q after %s", rule, value, s.Time.Sub(last.Time))
			}
			x, errX := strconv.ParseFloat(last.Value, 64)
			y, errY := strconv.ParseFloat(value, 64)
			if near := errX == nil && errY == nil && math.Abs(x-y) <= deadband; value != last.Value && (deadband == 0 || !near) {
				t.Errorf("%+v left out %q after %q", rule, value, last.Value)
			}
			if !changeOnly && deadband == 0 {
				t.Errorf("%q was left out without a rule", value)
			}
		}
	})
}

// Each text of an annotation is a rule that can be followed, or a fault that names it.
func FuzzParse(f *testing.F) {
	f.Add("frond.io/deadband.temp", "0.5", "frond.io/max-interval.temp", "1m")
	f.Add("frond.io/change-only.temp", "true", "frond.io/deadband.", "\xff")
	f.Fuzz(func(t *testing.T, key, value, other, otherValue string) {
		rules, err := reduction.Parse(map[string]string{key: value, other: otherValue}, map[string]string{"temp": "FLOAT", "": "STRING"})
		if err != nil && (rules != nil || err.Error() == "") {
			t.Errorf("%v, %v", rules, err)
		}
		for _, r := range rules {
			if r.Deadband < 0 || math.IsNaN(r.Deadband) || math.IsInf(r.Deadband, 0) || r.MaxInterval != 0 && r.MaxInterval < time.Second {
				t.Errorf("%+v", r)
			}
		}
	})
}
