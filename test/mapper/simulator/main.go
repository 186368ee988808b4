// Command simulator is a Modbus TCP device for tests, at the address of its argument. Holding register 0 counts its readings; all other registers and
// coils have what was written to them. Each write is printed.
package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/simonvetter/modbus"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: simulator ADDRESS")
		os.Exit(2)
	}
	server, err := modbus.NewServer(&modbus.ServerConfiguration{URL: "tcp://" + os.Args[1], Timeout: 30 * time.Second, MaxClients: 64},
		&device{holding: map[uint16]uint16{}, coils: map[uint16]bool{}})
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
	fmt.Println("listening")
	select {} // until it is killed
}

// device has the registers.
type device struct {
	mu      sync.Mutex // guards both
	holding map[uint16]uint16
	coils   map[uint16]bool
}

// HandleHoldingRegisters implements modbus.RequestHandler.
func (d *device) HandleHoldingRegisters(r *modbus.HoldingRegistersRequest) ([]uint16, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var values []uint16
	for i := range r.Quantity {
		at := r.Addr + i
		switch {
		case r.IsWrite:
			d.holding[at] = r.Args[i]
			fmt.Printf("unit %d: holding register %d = %d\n", r.UnitId, at, r.Args[i])
		case at == 0:
			d.holding[at]++
		}
		values = append(values, d.holding[at])
	}
	return values, nil
}

// HandleCoils implements modbus.RequestHandler.
func (d *device) HandleCoils(r *modbus.CoilsRequest) ([]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var values []bool
	for i := range r.Quantity {
		at := r.Addr + i
		if r.IsWrite {
			d.coils[at] = r.Args[i]
			fmt.Printf("unit %d: coil %d = %t\n", r.UnitId, at, r.Args[i])
		}
		values = append(values, d.coils[at])
	}
	return values, nil
}

// errNone is the answer for registers that it does not have.
var errNone = modbus.ErrIllegalFunction

// HandleDiscreteInputs implements modbus.RequestHandler.
func (*device) HandleDiscreteInputs(*modbus.DiscreteInputsRequest) ([]bool, error) {
	return nil, errNone
}

// HandleInputRegisters implements modbus.RequestHandler.
func (*device) HandleInputRegisters(*modbus.InputRegistersRequest) ([]uint16, error) {
	return nil, errNone
}
