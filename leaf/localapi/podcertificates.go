package localapi

import "context"

// SavePodCertificate stores the newest key and certificates of one projection of a pod, until the pod is gone. Both are
// PEM. Saving what is already stored costs no write.
func (s *Server) SavePodCertificate(ctx context.Context, namespace, pod, uid, projection string, key, chain []byte) error {
	return s.podCertificates.Save(ctx, namespace, pod, uid, projection, key, chain)
}

// LastPodCertificate returns the last saved key and certificates, expired or not, for use while the cloud cannot issue new
// ones. As with tokens, the pod has no better ones, and must run.
func (s *Server) LastPodCertificate(namespace, uid, projection string) (key, chain []byte, ok bool) {
	if s.isOnline() {
		return nil, nil, false
	}
	return s.podCertificates.Last(namespace, uid, projection)
}
