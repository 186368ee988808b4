package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/kubelet/server"
)

// ServeCert starts serving, and returns its TLS configuration and its certificate for programs of this machine.
func ServeCert(ctx context.Context, cfg ServingCertConfig, file string, kube kubernetes.Interface, log *zap.Logger) (*tls.Config, *x509.Certificate, error) {
	s, err := NewServingCert(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	config := s.tlsConfig(&server.TLSOptions{CertFile: file, KeyFile: file})
	s.startRenewal(ctx, kube)
	return config, s.Local(), nil
}

// AwaitServingCert is ServeCert for a certificate alone: it starts to request one, and returns the function that waits for
// it and the one that stores it.
func AwaitServingCert(ctx context.Context, cfg ServingCertConfig, file string, kube kubernetes.Interface, log *zap.Logger) (
	await func(context.Context) error, update func(cert, key []byte) error, err error,
) {
	s, err := NewServingCert(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	s.tlsConfig(&server.TLSOptions{CertFile: file, KeyFile: file})
	s.startRenewal(ctx, kube)
	return s.Await, func(cert, key []byte) error {
		_, err := s.store.Update(cert, key)
		return err
	}, nil
}
