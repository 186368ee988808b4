// Command cloudcore is the cloud part of Frond. It publishes the desired state of each gateway from Kubernetes and applies the
// gateways' reports to Kubernetes. Any number of equal replicas may run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/logging"
	"github.com/frond-edge/frond/internal/program"
)

func main() {
	cloudcore := program.Program{Name: "cloudcore", Short: "The cloud part of Frond", Serve: serveCloudcore}
	os.Exit(cloudcore.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func serveCloudcore(ctx context.Context, data []byte) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find this host's name: %w", err)
	}
	cfg, err := config.ParseCloudCore(data, hostname)
	if err != nil {
		return err
	}
	log, err := logging.New(cfg.LogLevel)
	if err != nil {
		return err
	}
	ctrl.SetLogger(logging.Bridge(log.Named("kubernetes")))
	kube, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	c, err := cloud.New(cfg, kube, program.Metrics(), log)
	if err != nil {
		return err
	}
	log.Info("cloudcore starting", zap.String("version", buildinfo.Version()), zap.String("id", cfg.ID))
	err = c.Start(ctx)
	if err == nil {
		log.Info("cloudcore stopped")
	}
	if errors.Is(err, cloud.ErrRestored) {
		log.Warn("starting again", zap.Error(err))
		return replaceProcess()
	}
	return err
}

// replaceProcess replaces this process by a new one with the same id, so that its supervisor sees no exit.
func replaceProcess() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ()) // returns only if it failed
	}
	return fmt.Errorf("restart: %w", err)
}
