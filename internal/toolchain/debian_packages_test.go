package toolchain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/internal/toolchain/cache"
)

// Scripts in place of apt-get, which knows no package before an update, and of dpkg-deb, which unpacks a file as Debian 12 has it.
const (
	fakeAptGet = `#!/bin/sh
case $2 in
update) : > lists;;
download) test -e lists && : > busybox-static_1_all.deb;;
esac
`
	fakeDpkgDeb = `#!/bin/sh
mkdir "$3/bin" && echo static > "$3/bin/busybox"
`
)

func TestPackageInstaller_DownloadsBusyboxOnce(t *testing.T) {
	bin, system := t.TempDir(), os.Getenv("PATH")
	c := cache.Cache{Dir: t.TempDir()}
	t.Setenv("PATH", bin)
	_, err := toolchain.EnsureBusybox(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "busybox-static") || !strings.Contains(err.Error(), "What to do") {
		t.Errorf("without apt-get: %v, want what to do", err)
	}

	writeTree(t, bin, map[string]string{"apt-get": fakeAptGet, "dpkg-deb": fakeDpkgDeb})
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if err := os.Chmod(filepath.Join(bin, program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+system)
	program, err := toolchain.EnsureBusybox(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(program); err != nil || string(content) != "static\n" {
		t.Errorf("in the cache: %q, %v", content, err)
	}

	t.Setenv("PATH", t.TempDir())
	if _, err := toolchain.EnsureBusybox(t.Context(), c); err != nil {
		t.Errorf("a second time, without apt-get: %v", err)
	}
}
