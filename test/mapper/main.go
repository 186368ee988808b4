// Command mapper is a mapper on KubeEdge's published mapper framework, with virtual devices, which have the values that were last written to
// them, and devices behind Modbus TCP. Tests run it against edgecore; simulator is a Modbus device for them. The framework's template of a device panel is not part of its module; panel is one that starts and ends as that one does.
//
// It is a module of its own with the versions of gRPC that the framework names: those are what users' mappers have.
package main

import (
	"fmt"
	"os"

	"github.com/kubeedge/mapper-framework/pkg/config"
	"github.com/kubeedge/mapper-framework/pkg/grpcclient"
	"github.com/kubeedge/mapper-framework/pkg/grpcserver"
	"github.com/kubeedge/mapper-framework/pkg/httpserver"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mapper:", err)
		os.Exit(1)
	}
}

// run registers, starts the devices and only then listens, as each mapper of the framework.
func run() error {
	cfg, err := config.Parse()
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	devices, models, err := grpcclient.RegisterMapper(true)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	p := newPanel()
	if err := p.DevInit(devices, models); err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	go p.DevStart()
	if cfg.Common.HTTPPort != "0" {
		go httpserver.NewRestServer(p, cfg.Common.HTTPPort).StartServer()
	}
	server := grpcserver.NewServer(grpcserver.Config{SockPath: cfg.GrpcServer.SocketPath, Protocol: cfg.Common.Protocol}, p)
	defer server.Stop()
	return server.Start()
}
