// Package chart renders deploy/chart/frond with helm, and installs it on a real kube-apiserver.
package chart
