package config_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/kubeversion"
)

func TestCloudCore_ImpersonationIsOneOfTwo(t *testing.T) {
	for value, valid := range map[kubeversion.Impersonation]bool{"": true, kubeversion.Constrained: true, kubeversion.Classic: true, "users": false} {
		err := config.CloudCore{Impersonation: value}.Validate()
		if named := err != nil && strings.Contains(err.Error(), "impersonation: "); named == valid {
			t.Errorf("%q: %v", value, err)
		}
	}
}
