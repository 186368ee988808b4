// Package powercut gives tests a file system that knows which bytes a power cut would leave: those that were synced, and
// of the others any that chance has written back.
//
// It is a real mount (FUSE), so the code under test is unchanged and its system calls are real. An image may be taken at any
// moment, while writers go on; it is what the disk held if the power went at that moment. All that lies on one mount is
// cut at once, so several servers with folders on it lose their power together.
//
// The model is a journalling file system (ext4, XFS, F2FS): names, renames and removals become durable in their order, at the
// latest with the next sync of any file or folder; a file's bytes with a sync of that file; of other bytes, page by page, any.
package powercut
