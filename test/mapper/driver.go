package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/kubeedge/mapper-framework/pkg/common"
	"github.com/simonvetter/modbus"
)

// driver is the connection to a device.
type driver interface {
	// write gives a property a value of the model's type.
	write(property string, visitors visitors, value any) error
	read(property string, visitors visitors) (any, error)
	close()
}

// visitors are how a property is reached: of Modbus its register, as KubeEdge's own Modbus mapper has them. Count makes a property of the virtual
// driver a number that rises with each report.
type visitors struct {
	Count    bool    `json:"count"`
	Register string  `json:"register"`
	Offset   float64 `json:"offset"`
}

// The kinds of registers.
const (
	coilRegister    = "CoilRegister"
	holdingRegister = "HoldingRegister"
)

// decode reads configData, which the framework wraps.
func decode[T any](text []byte) (T, error) {
	var wrapped struct {
		ConfigData T `json:"configData"`
	}
	if err := json.Unmarshal(text, &wrapped); err != nil {
		return wrapped.ConfigData, fmt.Errorf("configData: %w", err)
	}
	return wrapped.ConfigData, nil
}

// openDriver connects to a device as its protocol says.
func openDriver(protocol common.ProtocolConfig) (driver, error) {
	if protocol.ProtocolName != "modbus" {
		return &virtualDriver{values: map[string]any{}}, nil
	}
	cfg, err := decode[struct {
		Address string  `json:"address"`
		SlaveID float64 `json:"slaveID"`
	}](protocol.ConfigData)
	if err != nil {
		return nil, err
	}
	client, err := modbus.NewClient(&modbus.ClientConfiguration{URL: "tcp://" + cfg.Address, Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("modbus: %w", err)
	}
	if err := client.SetUnitId(uint8(cfg.SlaveID)); err != nil {
		return nil, fmt.Errorf("modbus: %w", err)
	}
	return &modbusDriver{client: client}, nil
}

// virtualDriver is a device that has the values that were written to it.
type virtualDriver struct {
	mu     sync.Mutex // guards both
	values map[string]any
	closed bool
}

func (d *virtualDriver) write(property string, _ visitors, value any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.values[property] = value
	return nil
}

func (d *virtualDriver) read(property string, v visitors) (any, error) {
	if v.Count {
		return time.Now().UnixMicro(), nil // rises over restarts, too
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.values[property], nil
}

func (d *virtualDriver) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// modbusDriver is a device behind Modbus TCP. It dials for each access, as the device may be away at any time.
type modbusDriver struct {
	mu     sync.Mutex // guards client
	client *modbus.ModbusClient
}

var errRegister = errors.New("the register is neither " + coilRegister + " nor " + holdingRegister)

func (d *modbusDriver) write(_ string, v visitors, value any) error {
	return d.access(func(c *modbus.ModbusClient) error {
		switch v.Register {
		case coilRegister:
			on, err := strconv.ParseBool(fmt.Sprint(value))
			if err != nil {
				return fmt.Errorf("a coil: %w", err)
			}
			return c.WriteCoil(uint16(v.Offset), on)
		case holdingRegister:
			number, err := strconv.ParseUint(fmt.Sprint(value), 10, 16)
			if err != nil {
				return fmt.Errorf("a register: %w", err)
			}
			return c.WriteRegister(uint16(v.Offset), uint16(number))
		}
		return errRegister
	})
}

func (d *modbusDriver) read(_ string, v visitors) (value any, err error) {
	err = d.access(func(c *modbus.ModbusClient) (err error) {
		switch v.Register {
		case coilRegister:
			value, err = c.ReadCoil(uint16(v.Offset))
		case holdingRegister:
			var number uint16
			number, err = c.ReadRegister(uint16(v.Offset), modbus.HOLDING_REGISTER)
			value = int64(number)
		default:
			err = errRegister
		}
		return err
	})
	return value, err
}

func (d *modbusDriver) access(do func(*modbus.ModbusClient) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.client.Open(); err != nil {
		return err
	}
	return errors.Join(do(d.client), d.client.Close())
}

func (*modbusDriver) close() {}
