package hollow

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageSize is the reported size of each image: a small busybox.
const imageSize = 2 << 20

// missingRepository is the last part of a repository that does not exist, for tests of pull errors.
const missingRepository = "missing"

type image struct {
	id        string // sha256:…, derived from the reference
	reference string // as written by a user, with tag or digest
}

func (i *image) repoDigest() string { return repositoryOf(i.reference) + "@" + i.id }

type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	*Runtime
}

// normaliseReference adds the implied tag to a reference.
func normaliseReference(reference string) string {
	if strings.Contains(reference, "@") || strings.Contains(path.Base(reference), ":") {
		return reference
	}
	return reference + ":latest"
}

func repositoryOf(reference string) string {
	name, _, _ := strings.Cut(reference, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return name
}

// findImage accepts a reference, an id, or a digest reference as CRI callers do. The caller holds mu.
func (r *Runtime) findImage(reference string) *image {
	if found, ok := r.images[normaliseReference(reference)]; ok {
		return found
	}
	for _, one := range r.images {
		if one.id == reference || one.repoDigest() == reference || strings.TrimPrefix(one.id, "sha256:") == reference {
			return one
		}
	}
	return nil
}

// PullImage adds an image at once.
func (s *imageService) PullImage(_ context.Context, req *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	reference := normaliseReference(req.GetImage().GetImage())
	if path.Base(repositoryOf(reference)) == missingRepository {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: failed to resolve reference %q: not found", reference, reference)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.PullImageResponse{ImageRef: s.addImage(reference).id}, nil
}

// addImage adds an image unless it exists. The caller holds mu.
func (r *Runtime) addImage(reference string) *image {
	sum := sha256.Sum256([]byte(reference))
	img := &image{id: "sha256:" + hex.EncodeToString(sum[:]), reference: reference}
	r.images[reference] = img
	return img
}

// localImagePrefix is the repository of images that a development cluster imports and never pulls: the hollow runtime has them all.
const localImagePrefix = "localhost/frond/"

// ImageStatus returns no image for one that was not pulled, except local ones.
func (s *imageService) ImageStatus(_ context.Context, req *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reference := req.GetImage().GetImage()
	img := s.findImage(reference)
	if img == nil && strings.HasPrefix(reference, localImagePrefix) && path.Base(repositoryOf(reference)) != missingRepository {
		img = s.addImage(normaliseReference(reference))
	}
	if img == nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: img.toImage()}, nil
}

func (i *image) toImage() *runtimeapi.Image {
	out := &runtimeapi.Image{Id: i.id, RepoDigests: []string{i.repoDigest()}, Size: imageSize, Spec: &runtimeapi.ImageSpec{Image: i.reference}}
	if !strings.Contains(i.reference, "@") {
		out.RepoTags = []string{i.reference}
	}
	return out
}

// ListImages lists the pulled images, by name.
func (s *imageService) ListImages(_ context.Context, req *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	images := []*runtimeapi.Image{}
	if want := req.GetFilter().GetImage().GetImage(); want != "" {
		if img := s.findImage(want); img != nil {
			images = append(images, img.toImage())
		}
		return &runtimeapi.ListImagesResponse{Images: images}, nil
	}
	for _, img := range s.images {
		images = append(images, img.toImage())
	}
	slices.SortFunc(images, func(a, b *runtimeapi.Image) int { return cmp.Compare(a.GetSpec().GetImage(), b.GetSpec().GetImage()) })
	return &runtimeapi.ListImagesResponse{Images: images}, nil
}

// RemoveImage removes an image. An unknown image is not an error.
func (s *imageService) RemoveImage(_ context.Context, req *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if img := s.findImage(req.GetImage().GetImage()); img != nil {
		delete(s.images, img.reference)
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo reports Config.Dir as the file system of images and containers.
func (s *imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	usage := []*runtimeapi.FilesystemUsage{s.filesystemUsage(uint64(len(s.images)) * imageSize)}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}

func (r *Runtime) filesystemUsage(bytes uint64) *runtimeapi.FilesystemUsage {
	return &runtimeapi.FilesystemUsage{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: r.cfg.Dir},
		UsedBytes:  &runtimeapi.UInt64Value{Value: bytes},
		InodesUsed: &runtimeapi.UInt64Value{},
	}
}
