package main

import (
	"testing"

	"github.com/frond-edge/frond/test/kit/clitest"
)

// documented is this program as the documents name it.
var documented = clitest.Program{Name: "frond dev", Root: newRoot, Tree: "../..", Except: ""}

func TestDocs_NamedCommandsExist(t *testing.T) { documented.CheckNamed(t, 30) }

func TestDocs_CommandsAreDocumented(t *testing.T) { documented.CheckDocumented(t) }
