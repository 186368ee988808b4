package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/jsm.go/natscontext"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/hubconf"
	"github.com/frond-edge/frond/internal/install"
)

// contextName is the name of the nats CLI's context.
const contextName = "frond-dev"

// WriteHub writes the configuration files of the hub's servers and the nats CLI's contexts. It returns the names of the
// servers whose file has changed.
func WriteHub(l folder.Layout, s folder.State, files install.Files) (changed []string, err error) {
	hubs := folder.Names("hub", s.Spec.Hubs)
	base := hubconf.Config{Cells: cells, Partitions: s.Spec.Partitions}
	if base.Issuer, base.Users, err = install.HubKeys(files); err != nil {
		return nil, err
	}
	if len(hubs) > 1 {
		for _, h := range hubs {
			base.Routes = append(base.Routes, "nats-route://"+folder.Loopback(s.Ports[h+"-cluster"]))
		}
	}
	for i, h := range hubs {
		in := func(entry string) string { return l.SecretFile(install.FolderHub(i), entry) }
		conf := base
		conf.Name, conf.Store = h, l.Path(h, "data")
		conf.CA, conf.Cert, conf.Key = in(install.EntryBundle), in(install.EntryCert), in(install.EntryKey)
		conf.Client, conf.Leaf = folder.Loopback(s.Ports[h]), folder.Loopback(s.Ports[h+"-leaf"])
		if len(hubs) > 1 {
			conf.Cluster = folder.Loopback(s.Ports[h+"-cluster"])
		}
		data, err := conf.Render()
		if err != nil {
			return nil, err
		}
		data = append([]byte("# Made by \"frond dev up\"; written again by each of them.\n"), data...)
		if old, err := os.ReadFile(l.HubConfig(h)); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := folder.WriteFile(l.HubConfig(h), data, 0o600); err != nil {
			return nil, err
		}
		changed = append(changed, h)
	}
	return changed, writeContexts(l, s)
}

// writeContexts writes contexts for the nats CLI into the folder of XDG_CONFIG_HOME=DIR, and the admin's context once more as
// nats/context.json.
func writeContexts(l folder.Layout, s folder.State) error {
	in := func(entry string) string { return l.SecretFile(install.FolderAdmin, entry) }
	for name, seed := range map[string]string{contextName: install.EntryAdminSeed, contextName + "-sys": install.EntrySysSeed} {
		c, err := natscontext.New(name, false,
			natscontext.WithServerURL(strings.Join(hubURLs(s), ",")),
			natscontext.WithDescription("Frond development cluster in "+l.Dir),
			natscontext.WithNKey(in(seed)),
			natscontext.WithCA(in(install.EntryBundle)),
			natscontext.WithCertificate(in(install.EntryCert)),
			natscontext.WithKey(in(install.EntryKey)))
		if err != nil {
			return fmt.Errorf("make nats context: %w", err)
		}
		data, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			return fmt.Errorf("encode nats context: %w", err)
		}
		paths := []string{l.Path("nats", "context", name+".json")}
		if name == contextName {
			paths = append(paths, l.Path("nats", "context.json"))
		}
		for _, path := range paths {
			if err := folder.WriteFile(path, data, 0o600); err != nil {
				return err
			}
		}
	}
	return folder.WriteFile(l.Path("nats", "context.txt"), []byte(contextName), 0o600)
}

// hubURLs are the client addresses of the hub's servers.
func hubURLs(s folder.State) []string {
	var urls []string
	for _, h := range folder.Names("hub", s.Spec.Hubs) {
		urls = append(urls, "nats://"+folder.Loopback(s.Ports[h]))
	}
	return urls
}
