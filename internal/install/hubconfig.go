package install

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/hubconf"
)

// The folder of each Secret of the hub's servers in their pods, named after the Secret, and the volume.
const (
	hubFolders = "/etc/frond"
	hubStore   = "/data"
)

// The ports of the hub in the cluster, as in deploy/cloud: NATS' defaults, except for WebSocket, which has none.
const (
	portClient    = 4222
	portCluster   = 6222
	portLeaf      = 7422
	portWebsocket = 7443
	portHealth    = 8222
)

// HubKeys returns the public keys in the hub's configuration: the issuer of cloudcore's answers, and the users.
func HubKeys(f Files) (issuer string, users hubconf.Users, err error) {
	var faults []error
	for file, public := range map[string]*string{
		FolderCloudcore + "/" + EntryIssuerSeed: &issuer,
		FolderCloudcore + "/" + EntryHubSeed:    &users.Cloudcore,
		FolderCloudcore + "/" + EntryAuthSeed:   &users.Callout,
		FolderCloudcore + "/" + EntrySysSeed:    &users.Kicker,
		FolderAdmin + "/" + EntryAdminSeed:      &users.Admin,
		FolderAdmin + "/" + EntrySysSeed:        &users.System,
	} {
		var fault error
		*public, fault = f.PublicKey(file)
		faults = append(faults, fault)
	}
	return issuer, users, errors.Join(faults...)
}

// renderHubConfigs renders the configuration of each server of the hub into its folder, and lists the changed files.
func renderHubConfigs(f, have Files, s Settings) ([]Change, error) {
	issuer, users, err := HubKeys(f)
	if err != nil {
		return nil, err
	}
	var changes []Change
	servers := s.Servers()
	for i, server := range servers {
		in := func(entry string) string { return path.Join(hubFolders, FolderHub(i), entry) }
		conf := hubconf.Config{
			Name: server.Name, Store: hubStore, Cells: s.Cells, Partitions: s.Partitions, Issuer: issuer, Users: users,
			Client: anyAddress(portClient), Leaf: anyAddress(portLeaf), Websocket: anyAddress(portWebsocket),
			Health: anyAddress(portHealth), CA: in(EntryBundle), Cert: in(EntryCert), Key: in(EntryKey),
		}
		if len(servers) > 1 {
			at := func(server string) string { return serviceHost(server) + ":" + strconv.Itoa(portCluster) }
			conf.Cluster, conf.Advertise = anyAddress(portCluster), at(server.Name)
			for _, peer := range servers {
				conf.Routes = append(conf.Routes, "nats-route://"+at(peer.Name))
			}
		}
		text, err := conf.Render()
		if err != nil {
			return nil, err
		}
		file := FolderHub(i) + "/" + EntryConfig
		switch old := have[file]; {
		case len(old) == 0:
			changes = append(changes, Change{file, ReasonMissing})
		case string(old) != string(text):
			changes = append(changes, Change{file, "the hub changed"})
		}
		f[file] = text
	}
	return changes, nil
}

func anyAddress(port int) string { return "0.0.0.0:" + strconv.Itoa(port) }

// serviceHost is the DNS name of a server of the hub within the cluster.
func serviceHost(server string) string {
	return fmt.Sprintf("%s.%s.%s.svc", server, hubService, names.Namespace)
}
