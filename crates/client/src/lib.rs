//! The core's client: one log, directories as hashed entry blocks, caches, the FileSystem over managers and stripes
