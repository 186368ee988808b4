package dmi

import "github.com/frond-edge/frond/devicetwin/dmi/dmipb"

// Service is what answers mappers, for calls of peers that a test cannot be.
func (s *Server) Service() dmipb.DeviceManagerServiceServer { return s.service }
