// Package faultfs gives tests a file system that knows which bytes survive a power cut: the synced ones, and of the others a random part.
//
// It is a real mount (FUSE), so the code under test is unchanged and its system calls are real. An image may be taken at any moment, while
// writers continue; it is the content of the disk if the power failed at that moment. Everything on one mount is cut at once, so several
// servers with folders on it lose their power together.
//
// The model is a journalling file system (ext4, XFS, F2FS): names, renames and removals become durable in their order, at the latest with
// the next sync of any file or folder. A file's bytes become durable with a sync of that file; of other bytes, any pages may.
package faultfs
