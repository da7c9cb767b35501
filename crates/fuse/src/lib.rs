//! The FUSE front end: decode, call the FileSystem, encode
