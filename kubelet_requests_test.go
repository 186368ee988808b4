package frond_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateGolden = flag.Bool("update", false, "write golden files and generated tables")

// kubeletRequests is the golden file of all requests that the kubelet inside edgecore may send to an apiserver.
const kubeletRequests = "edged/kubelet/testdata/kubelet-requests.txt"

const (
	typedClients = "k8s.io/client-go/kubernetes/typed/"
	informers    = "k8s.io/client-go/informers/"
)

// TestKubeletRequestsAreKnown finds the requests of the kubelet's typed clients, informers and list-watches, in every linked
// package, also those that this configuration never reaches. A new Kubernetes version appears here as a difference.
func TestKubeletRequestsAreKnown(t *testing.T) {
	found, err := findRequests(t, "./edged/kubelet")
	if err != nil {
		t.Fatal(err)
	}
	got := "# What the kubelet's code may ask an apiserver for, and which of its packages do. Made by go test . -run KubeletRequests -update\n" +
		strings.Join(found, "\n") + "\n"
	if *updateGolden {
		if err := os.WriteFile(kubeletRequests, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(kubeletRequests)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what the code asks for; run with -update, and give each new line a treatment in leaf/localapi/kubeletrequests.go\ngot:\n%s", kubeletRequests, got)
	}
}

// listed has the fields of `go list` that are read here.
type listed struct {
	ImportPath, Dir, Export string
	Standard                bool
	GoFiles, Imports        []string
}

// finder collects requests, and the packages that make each of them.
type finder struct {
	fset   *token.FileSet
	lookup map[string]string // export data by import path
	in     types.Importer
	found  map[string]map[string]bool
}

func findRequests(t *testing.T, root string) ([]string, error) {
	t.Helper()
	packages, err := closure(t, root)
	if err != nil {
		return nil, err
	}
	f := &finder{fset: token.NewFileSet(), lookup: map[string]string{}, found: map[string]map[string]bool{}}
	for _, p := range packages {
		f.lookup[p.ImportPath] = p.Export
	}
	f.in = importer.ForCompiler(f.fset, "gc", func(path string) (io.ReadCloser, error) {
		if f.lookup[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(f.lookup[path])
	})
	for _, p := range packages {
		if !asks(p) {
			continue
		}
		if err := f.read(p); err != nil {
			return nil, fmt.Errorf("%s: %w", p.ImportPath, err)
		}
	}
	asked, idle := f.lines(false), f.lines(true)
	return slices.Concat(asked, []string{"", "# Linked with the kubelet, which takes helpers from these packages, and run by no kubelet."}, idle), nil
}

// idlePackages are packages of other programs, which the kubelet does not run.
func idlePackages() []string {
	return []string{
		"pkg/scheduler", "pkg/controller", "pkg/volume/util/recyclerclient", "k8s.io/apiserver/pkg/admission", "k8s.io/apiserver/pkg/server",
		"k8s.io/apiserver/pkg/util/flowcontrol", "k8s.io/apiserver/pkg/authentication/request/headerrequest", "k8s.io/controller-manager",
		"k8s.io/dynamic-resource-allocation/resourceslice/tracker", "k8s.io/client-go/dynamic", "k8s.io/client-go/tools/events",
	}
}

// lines returns the requests found and the packages that make them, of idle packages or of the others.
func (f *finder) lines(idle bool) []string {
	var lines []string
	for request, by := range f.found {
		var names []string
		for name := range by {
			of := slices.ContainsFunc(idlePackages(), func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") })
			if of == idle {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			lines = append(lines, request+"  ("+strings.Join(names, ", ")+")")
		}
	}
	slices.Sort(lines)
	return lines
}

// closure lists a package and all its dependencies, compiled as the product is.
func closure(t *testing.T, root string) ([]listed, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,Standard,GoFiles,Imports", root)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false -tags=grpcnotrace")
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, talk.Bytes())
	}
	var all []listed
	for from := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := from.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// asks reports whether a package may use a client. The generated client packages themselves are excluded.
func asks(p listed) bool {
	if p.Standard || strings.HasPrefix(p.ImportPath, "k8s.io/client-go/kubernetes") || strings.HasPrefix(p.ImportPath, "k8s.io/client-go/informers") ||
		strings.HasPrefix(p.ImportPath, "k8s.io/client-go/listers") || strings.HasPrefix(p.ImportPath, "k8s.io/client-go/applyconfigurations") {
		return false
	}
	return slices.ContainsFunc(p.Imports, func(path string) bool {
		return strings.HasPrefix(path, "k8s.io/client-go/kubernetes") || strings.HasPrefix(path, informers) || path == "k8s.io/client-go/informers" ||
			path == "k8s.io/client-go/dynamic" || path == "k8s.io/client-go/metadata" || path == "k8s.io/client-go/tools/cache" || path == "k8s.io/client-go/rest"
	})
}

// read type-checks one package from its source and finds its requests.
func (f *finder) read(p listed) error {
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(f.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Uses: map[*ast.Ident]types.Object{}}
	if _, err := (&types.Config{Importer: f.in}).Check(p.ImportPath, f.fset, files, info); err != nil {
		return err
	}
	by := p.ImportPath
	for _, prefix := range []string{"k8s.io/kubernetes/", "github.com/frond-edge/frond/"} {
		by = strings.TrimPrefix(by, prefix)
	}
	for _, imported := range []string{"k8s.io/client-go/dynamic", "k8s.io/client-go/metadata"} {
		if slices.Contains(p.Imports, imported) {
			f.note(by, "any kind, by "+imported)
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				f.call(by, info, n)
			case *ast.CompositeLit:
				f.sink(by, info.TypeOf(n))
			}
			return true
		})
	}
	return nil
}

func (f *finder) note(by string, requests ...string) {
	for _, request := range requests {
		if f.found[request] == nil {
			f.found[request] = map[string]bool{}
		}
		f.found[request][by] = true
	}
}

// sink finds recorders of events, which pass a client to client-go.
func (f *finder) sink(by string, made types.Type) {
	named, ok := made.(*types.Named)
	if ok && named.Obj().Name() == "EventSinkImpl" && strings.HasPrefix(named.Obj().Pkg().Path(), typedClients) {
		of := f.groupVersion(named.Obj().Pkg()) + " events "
		f.note(by, of+"create", of+"update", of+"patch")
	}
}

// call finds the request of one call, if any.
func (f *finder) call(by string, info *types.Info, call *ast.CallExpr) {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	if function, ok := info.Uses[selector.Sel].(*types.Func); ok && function.Name() == "NewListWatchFromClient" {
		f.note(by, f.listWatch(info, call)...)
		return
	}
	selection := info.Selections[selector]
	if selection == nil {
		return
	}
	if selection.Recv().String() == "*k8s.io/client-go/rest.Request" {
		f.raw(by, info, call, selector)
		return
	}
	named, ok := types.Unalias(selection.Recv()).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return
	}
	pkg, method := named.Obj().Pkg(), selector.Sel.Name
	switch path := pkg.Path(); {
	case path == "k8s.io/client-go/discovery" && strings.HasPrefix(method, "Server"):
		f.note(by, "discovery get")
	case strings.HasPrefix(path, informers) && (method == "Informer" || method == "Lister"):
		if resource := accessor(pkg, named); resource != "" {
			of := f.groupVersion(pkg) + " " + resource + " "
			f.note(by, of+"list", of+"watch")
		}
	case strings.HasPrefix(path, typedClients) && accessor(pkg, named) != "":
		if request := requestOf(info, method, accessor(pkg, named), call); request != "" {
			f.note(by, f.groupVersion(pkg)+" "+request)
		}
	}
}

// raw finds a request without a typed client: client.Post().Resource("resource"). Its version depends on the origin of the client.
func (f *finder) raw(by string, info *types.Info, call *ast.CallExpr, selector *ast.SelectorExpr) {
	inner, ok := ast.Unparen(selector.X).(*ast.CallExpr)
	if !ok || selector.Sel.Name != "Resource" || len(call.Args) != 1 {
		return
	}
	verb, ok := inner.Fun.(*ast.SelectorExpr)
	if ok && slices.Contains([]string{"Get", "Post", "Put", "Patch", "Delete"}, verb.Sel.Name) {
		f.note(by, "any version "+constantText(info, call.Args[0])+" "+strings.ToLower(verb.Sel.Name))
	}
}

// listWatch reads NewListWatchFromClient(client.RESTClient(), "resource", …).
func (f *finder) listWatch(info *types.Info, call *ast.CallExpr) []string {
	of := "unknown kind"
	if inner, ok := call.Args[0].(*ast.CallExpr); ok {
		if selector, ok := inner.Fun.(*ast.SelectorExpr); ok && info.Selections[selector] != nil {
			if named, ok := info.Selections[selector].Recv().(*types.Named); ok {
				of = f.groupVersion(named.Obj().Pkg())
			}
		}
	}
	of += " " + constantText(info, call.Args[1]) + " "
	return []string{of + "list", of + "watch"}
}

// requestOf returns "resource verb" of a typed client's method, "" for one that makes no request.
func requestOf(info *types.Info, method, resource string, call *ast.CallExpr) string {
	sub := ""
	const patchArguments = 5 // ctx, name, type, data, options
	switch method {
	case "Get", "List", "Watch", "Create", "Update", "Delete", "DeleteCollection", "Apply":
	case "Patch":
		if len(call.Args) > patchArguments {
			sub = constantText(info, call.Args[patchArguments])
		}
	case "UpdateStatus", "PatchStatus", "ApplyStatus":
		method, sub = strings.TrimSuffix(method, "Status"), "status"
	case "CreateToken":
		method, sub = "Create", "token"
	case "Evict", "EvictV1", "EvictV1beta1":
		method, sub = "Create", "eviction"
	case "Bind":
		method, sub = "Create", "binding"
	case "GetLogs":
		method, sub = "Get", "log"
	case "UpdateApproval", "UpdateResize", "UpdateEphemeralContainers":
		method, sub = "Update", strings.ToLower(strings.TrimPrefix(method, "Update"))
	case "Search", "SearchWithContext":
		method = "List"
	case "CreateWithEventNamespace", "CreateWithEventNamespaceWithContext":
		method = "Create"
	case "UpdateWithEventNamespace", "UpdateWithEventNamespaceWithContext":
		method = "Update"
	case "PatchWithEventNamespace", "PatchWithEventNamespaceWithContext":
		method = "Patch"
	case "GetFieldSelector", "GetFieldSelectorWithContext":
		return ""
	default:
		sub = "unknown method " + method
	}
	if sub != "" {
		resource += "/" + sub
	}
	return resource + " " + strings.ToLower(method)
}

func constantText(info *types.Info, e ast.Expr) string {
	if value := info.Types[e].Value; value != nil && value.Kind() == constant.String {
		return constant.StringVal(value)
	}
	return "unknown"
}

// accessor returns the resource name of a client or informer interface: that of the method which returns it.
func accessor(pkg *types.Package, of *types.Named) string {
	for _, name := range pkg.Scope().Names() {
		holder, ok := pkg.Scope().Lookup(name).Type().Underlying().(*types.Interface)
		if !ok || name != "Interface" && !strings.HasSuffix(name, "Getter") {
			continue
		}
		for method := range holder.Methods() {
			results := method.Signature().Results()
			if results.Len() != 1 {
				continue
			}
			result, ok := types.Unalias(results.At(0).Type()).(*types.Named)
			if ok && strings.TrimPrefix(result.Obj().Name(), "Typed") == strings.TrimPrefix(of.Obj().Name(), "Typed") {
				return strings.ToLower(method.Name())
			}
		}
	}
	return ""
}

// groupVersion returns the API of a package of clients or informers; the group's own name is with the types.
func (f *finder) groupVersion(pkg *types.Package) string {
	parts := strings.Split(pkg.Path(), "/")
	group, version := parts[len(parts)-2], parts[len(parts)-1]
	if api, err := f.in.Import("k8s.io/api/" + group + "/" + version); err == nil {
		if name, ok := api.Scope().Lookup("GroupName").(*types.Const); ok {
			group = constant.StringVal(name.Val())
		}
	}
	return strings.TrimPrefix(group+"/"+version, "/")
}
