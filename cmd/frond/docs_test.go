package main

import (
	"testing"

	"github.com/frond-edge/frond/test/kit/clitest"
)

// documented is this program as the documents name it.
var documented = clitest.Program{Name: "frond", Root: newRoot, Tree: "../..", Except: "dev"}

func TestDocs_NamedCommandsExist(t *testing.T) { documented.CheckNamed(t, 60) }

func TestDocs_CommandsAreDocumented(t *testing.T) { documented.CheckDocumented(t) }
