package main

var (
	Run   = run
	Names = names
)
