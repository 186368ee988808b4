package edged

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/kubelet/server"
)

// Serve starts serving, and returns what it serves with and its certificate for programs of this machine.
func Serve(ctx context.Context, cfg Config, file string, kube kubernetes.Interface, log *zap.Logger) (*tls.Config, *x509.Certificate, error) {
	s, err := newServing(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	config := s.config(&server.TLSOptions{CertFile: file, KeyFile: file})
	s.start(ctx, kube)
	return config, s.local.Leaf, nil
}

// AwaitServing is Serve for a certificate alone: it starts to ask for one, and returns what waits for it and what stores it.
func AwaitServing(ctx context.Context, cfg Config, file string, kube kubernetes.Interface, log *zap.Logger) (
	await func(context.Context) error, update func(cert, key []byte) error, err error,
) {
	s, err := newServing(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	s.config(&server.TLSOptions{CertFile: file, KeyFile: file})
	s.start(ctx, kube)
	return s.await, func(cert, key []byte) error {
		_, err := s.store.Update(cert, key)
		return err
	}, nil
}
