package config

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Identity configures the admission of gateways: cloudcore answers the hub's auth callout and records gateways' keys. Without
// IssuerSeedFile it does neither.
type Identity struct {
	// IssuerSeedFile holds the seed of the account nkey whose signature the hub trusts for decisions about links. AuthNkeyFile holds the
	// seed of cloudcore's user in the hub's account AUTH, SysNkeyFile that of its user in SYS.
	IssuerSeedFile string `json:"issuerSeedFile,omitempty"`
	AuthNkeyFile   string `json:"authNkeyFile,omitempty"`
	SysNkeyFile    string `json:"sysNkeyFile,omitempty"`
	// Cells is the number of the hub's cells, as in the configuration of its servers; 0 means 64.
	Cells int `json:"cells,omitempty"`
	// Partitions is the number of streams that hold the desired state of gateways, as in the configuration of the hub's servers; 0 means 1.
	// Cloudcore refuses to start with another number than the streams were built for.
	Partitions int `json:"partitions,omitempty"`
	// KeyLifetime is how long a gateway's key is valid; the default is 720h. A gateway renews it long before.
	KeyLifetime Duration `json:"keyLifetime,omitzero"`
	// RenewWindow is how long after its expiry a gateway may still renew its key; the default is 2160h, and 0s forbids it.
	RenewWindow *Duration `json:"renewWindow,omitempty"`
	// HubURLs are the hub's leaf listeners that gateways are given; none: they keep those they have.
	HubURLs []string `json:"hubURLs,omitempty"`
	// HubCAFile and ClusterCAFile are the CAs that gateways are given to trust; "" of the first means hub.caFile.
	HubCAFile     string `json:"hubCAFile,omitempty"`
	ClusterCAFile string `json:"clusterCAFile,omitempty"`
}

// DefaultRenewWindow is how long after its expiry a key may be renewed, unless Identity.RenewWindow says otherwise.
const DefaultRenewWindow = 90 * 24 * time.Hour

const (
	defaultCells       = 64
	defaultKeyLifetime = 30 * 24 * Duration(time.Hour)
	// minKeyLifetime keeps a gateway from renewing its key all the time.
	minKeyLifetime = 10 * time.Second
)

// Enabled reports whether admission is configured.
func (i Identity) Enabled() bool { return i.IssuerSeedFile != "" }

func (i *Identity) setDefaults(hub Hub) {
	if i.Cells == 0 {
		i.Cells = defaultCells
	}
	if i.Partitions == 0 {
		i.Partitions = 1
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
	if i.Partitions < 0 || i.Partitions > max(i.Cells, 1) {
		faults = append(faults, fmt.Errorf("identity.partitions: %d, choose 1 to identity.cells, %d", i.Partitions, i.Cells))
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
