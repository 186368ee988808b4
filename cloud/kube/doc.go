// Package kube is cloudcore's access to the Kubernetes API: its clients, which one process makes once, and what every
// part may need of it.
//
// EventRecorder writes warnings for operators, VersionReader follows the API's version, TokenKeyPublisher publishes the
// keys of service-account tokens. The retrying transport makes reads wait for an apiserver that is down or starting.
package kube
