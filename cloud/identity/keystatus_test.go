package identity

import "testing"

func TestIsNodeName(t *testing.T) {
	for name, want := range map[string]bool{
		"gw-1": true, "gw.site.example": true, "": false, "GW": false, "a_b": false, "a b": false, "a.*": false, ">": false,
		"UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4": false,
	} {
		if got := IsNodeName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
