// Package imagepull pulls images through a container runtime's image service (CRI), with the credentials of a pull Secret as a kubelet would choose them.
// It keeps no credentials, runs no other program, and passes the name of an image to the runtime as it is.
package imagepull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
)

// statusTimeout limits the requests that transfer no image.
const statusTimeout = 30 * time.Second

// Puller pulls images. Its methods may be called concurrently.
type Puller struct {
	// Endpoint is the runtime's endpoint, as in the kubelet's configuration.
	Endpoint string
}

// connect calls do with a connection of its own: pulls are rare, and a runtime may restart between them.
func (p Puller) connect(do func(runtimeapi.ImageServiceClient) error) error {
	conn, err := grpc.NewClient(p.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial runtime: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return do(runtimeapi.NewImageServiceClient(conn))
}

// Pull pulls an image, and checks that it has the digest that its name demands. secret has the credentials of registries; nil: there are none. If
// several credentials match the registry, each is tried.
func (p Puller) Pull(ctx context.Context, image string, secret *corev1.Secret) error {
	auths, err := credentialsFor(image, secret)
	if err != nil {
		return err
	}
	return p.connect(func(client runtimeapi.ImageServiceClient) error {
		var failures []error
		for _, auth := range auths {
			_, err := client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}, Auth: auth})
			if err == nil {
				return checkDigest(ctx, client, image)
			}
			failures = append(failures, err)
			if ctx.Err() != nil {
				break
			}
		}
		return errors.Join(failures...)
	})
}

// Has reports whether the runtime has an image that is named by its digest. What a tag names may have changed.
func (p Puller) Has(ctx context.Context, image string) bool {
	return digestOf(image) != "" && p.connect(func(client runtimeapi.ImageServiceClient) error { return checkDigest(ctx, client, image) }) == nil
}

// Mountpoint returns where the file system of the images is mounted, or a folder in it.
func (p Puller) Mountpoint(ctx context.Context) (mountpoint string, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err = p.connect(func(client runtimeapi.ImageServiceClient) error {
		info, err := client.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err != nil {
			return fmt.Errorf("file system of images: %w", err)
		}
		if len(info.GetImageFilesystems()) == 0 {
			return errors.New("file system of images: the runtime names none")
		}
		mountpoint = info.GetImageFilesystems()[0].GetFsId().GetMountpoint()
		return nil
	})
	return mountpoint, err
}

// digestOf returns the digest in the name of an image, "" if there is none.
func digestOf(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}

// checkDigest returns an error unless the runtime has the image under the digest that its name demands.
func checkDigest(ctx context.Context, client runtimeapi.ImageServiceClient, image string) error {
	want := digestOf(image)
	if want == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	found, err := client.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	if err != nil {
		return fmt.Errorf("look for the image: %w", err)
	}
	if !slices.ContainsFunc(found.GetImage().GetRepoDigests(), func(d string) bool { return strings.HasSuffix(d, "@"+want) }) {
		return fmt.Errorf("the runtime has no image with the digest %s: it has %v", want, found.GetImage().GetRepoDigests())
	}
	return nil
}

// credentialsFor returns the credentials to try; one nil if there are none for the registry of the image.
func credentialsFor(image string, secret *corev1.Secret) ([]*runtimeapi.AuthConfig, error) {
	if secret == nil {
		return []*runtimeapi.AuthConfig{nil}, nil
	}
	if secret.Type != corev1.SecretTypeDockerConfigJson && secret.Type != corev1.SecretTypeDockercfg {
		return nil, fmt.Errorf("pull secret %s/%s has the type %s, not %s", secret.Namespace, secret.Name, secret.Type, corev1.SecretTypeDockerConfigJson)
	}
	keyring, err := secrets.MakeDockerKeyring([]corev1.Secret{*secret}, &credentialprovider.BasicDockerKeyring{})
	if err != nil { // its text may repeat the content
		return nil, fmt.Errorf("pull secret %s/%s has no readable credentials of registries", secret.Namespace, secret.Name)
	}
	found, _ := keyring.Lookup(repositoryOf(image))
	auths := make([]*runtimeapi.AuthConfig, 0, len(found))
	for _, c := range found {
		auths = append(auths, &runtimeapi.AuthConfig{
			Username: c.Username, Password: c.Password, Auth: c.Auth, ServerAddress: c.ServerAddress, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
		})
	}
	if len(auths) == 0 {
		return []*runtimeapi.AuthConfig{nil}, nil
	}
	return auths, nil
}

// repositoryOf returns the name of an image without tag and digest, with the registry that is meant where none is named: as a kubelet looks for
// credentials.
func repositoryOf(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		name = name[:at]
	}
	first, _, several := strings.Cut(name, "/")
	switch {
	case !several:
		return "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + name
	}
	return name
}
