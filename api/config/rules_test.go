package config_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

func TestRules_AllowedTargets(t *testing.T) {
	good := config.Rules{AllowedTargets: []string{"10.20.0.0/16", "fd00::/8", "127.0.0.1/32"}}
	if all, err := good.Prefixes(); err != nil || len(all) != 3 || all[0].String() != "10.20.0.0/16" {
		t.Errorf("%v, %v", all, err)
	}
	for _, text := range []string{"10.20.0.1/16", "10.20.0.0", "localhost", ""} {
		if _, err := (config.Rules{AllowedTargets: []string{"10.0.0.0/8", text}}).Prefixes(); err == nil || !strings.Contains(err.Error(), "rules.allowedTargets[1]") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
