package config

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Identity is who comes in: cloudcore answers the hub about links, and records gateways' keys. Without IssuerSeedFile it does
// not.
type Identity struct {
	// IssuerSeedFile holds the seed of the account nkey that the hub believes about links; AuthNkeyFile that of cloudcore's user in
	// the hub's account AUTH, SysNkeyFile that of its user in SYS.
	IssuerSeedFile string `json:"issuerSeedFile,omitempty"`
	AuthNkeyFile   string `json:"authNkeyFile,omitempty"`
	SysNkeyFile    string `json:"sysNkeyFile,omitempty"`
	// Cells is the number of the hub's cells, as in the configuration of its servers; 0 means 64.
	Cells int `json:"cells,omitempty"`
	// KeyLifetime is how long a gateway's key is enough; the default is 720h. A gateway renews it long before.
	KeyLifetime Duration `json:"keyLifetime,omitzero"`
	// RenewWindow is how long after that a gateway may still renew it; the default is 2160h, and 0s is not at all.
	RenewWindow *Duration `json:"renewWindow,omitempty"`
	// HubURLs are the hub's leaf listeners, as gateways shall know them; none: they keep those they have.
	HubURLs []string `json:"hubURLs,omitempty"`
	// HubCAFile and ClusterCAFile are what gateways are told to trust; "" of the first means hub.caFile.
	HubCAFile     string `json:"hubCAFile,omitempty"`
	ClusterCAFile string `json:"clusterCAFile,omitempty"`
}

// DefaultRenewWindow is how long after its end a key may be renewed, unless Identity.RenewWindow says otherwise.
const DefaultRenewWindow = 90 * 24 * time.Hour

const (
	defaultCells       = 64
	defaultKeyLifetime = 30 * 24 * Duration(time.Hour)
	// minKeyLifetime keeps renewals from being all that a gateway does.
	minKeyLifetime = 10 * time.Second
)

// Enabled says that there is one.
func (i Identity) Enabled() bool { return i.IssuerSeedFile != "" }

func (i *Identity) setDefaults(hub Hub) {
	if i.Cells == 0 {
		i.Cells = defaultCells
	}
	if i.KeyLifetime == 0 {
		i.KeyLifetime = defaultKeyLifetime
	}
	if i.RenewWindow == nil {
		window := Duration(DefaultRenewWindow)
		i.RenewWindow = &window
	}
	if i.HubCAFile == "" {
		i.HubCAFile = hub.CAFile
	}
}

func (i Identity) validate() error {
	if !i.Enabled() {
		return nil
	}
	faults := []error{
		requireField("identity.authNkeyFile", i.AuthNkeyFile), requireField("identity.sysNkeyFile", i.SysNkeyFile),
		requireField("identity.clusterCAFile", i.ClusterCAFile),
	}
	if i.Cells < 0 {
		faults = append(faults, errors.New("identity.cells: negative"))
	}
	if life := time.Duration(i.KeyLifetime); life != 0 && life < minKeyLifetime {
		faults = append(faults, fmt.Errorf("identity.keyLifetime: %s is less than %s", life, minKeyLifetime))
	}
	if i.RenewWindow != nil && *i.RenewWindow < 0 {
		faults = append(faults, errors.New("identity.renewWindow: negative"))
	}
	for n, u := range i.HubURLs {
		if parsed, err := url.Parse(u); err != nil || parsed.Host == "" {
			faults = append(faults, fmt.Errorf("identity.hubURLs[%d]: %q is not scheme://host:port", n, u))
		}
	}
	return errors.Join(faults...)
}
