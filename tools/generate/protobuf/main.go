// Command protobuf writes the Go code of .proto files beside them. It compiles them itself, so no protoc is needed, and runs the two plugins
// that go.mod pins. The arguments are the root of the repository and paths from there.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protobuf ROOT FILE...")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protobuf:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, paths []string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	files, err := generate(ctx, paths)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.FromSlash(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the Go files for .proto files, by path.
func generate(ctx context.Context, paths []string) (map[string]string, error) {
	request, err := compile(ctx, paths)
	if err != nil {
		return nil, err
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request for the plugins: %w", err)
	}
	files := map[string]string{}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := runPlugin(ctx, plugin, input, files); err != nil {
			return nil, fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return files, nil
}

// compile returns the files, after all that they import, as protoc passes them to its plugins.
func compile(ctx context.Context, paths []string) (*pluginpb.CodeGeneratorRequest, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, paths...)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: paths, Parameter: new("paths=source_relative")}
	added := map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if added[file.Path()] {
			return
		}
		added[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		request.ProtoFile = append(request.ProtoFile, protoOf(file))
	}
	for _, file := range files {
		add(file)
	}
	return request, nil
}

// protoOf returns the descriptor of a file, with its comments if it was compiled here.
func protoOf(file protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if compiled, ok := file.(interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}); ok {
		return compiled.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(file)
}

// runPlugin adds what a plugin generates to files.
func runPlugin(ctx context.Context, plugin string, input []byte, files map[string]string) error {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile=tools/generate/go.mod", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("decode its answer: %w", err)
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.GetFile() {
		files[file.GetName()] = file.GetContent()
	}
	return nil
}
