// Package render makes the objects of an EdgeApplication: template and targets in, objects out. It is a pure function, which cloudcore and
// the frond program share, with KubeEdge's semantics. The same input gives the same objects in the same order.
//
// What is wrong with one target, one manifest or one overrider concerns the objects that it is about, and no others; it is returned as a Fault
// that names the field. An object that cannot be made has its identity nevertheless wherever that is known, so that its last version
// is kept.
package render
