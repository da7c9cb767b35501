//! Managers: who controls which file, where its blocks are, and who may cache or modify it (design, section 3.3).
//!
//! What others use:
//! - [`api`]: what clients and cleaners ask of a manager.
//! - [`map`]: which manager serves which file.
//! - [`extents`]: a file's map from blocks to log addresses; clients use it too.
//!
//! Decisions, pure:
//! - [`tokens`]: who holds which token.
//! - [`frontier`]: which index numbers were handed out.
//! - [`index_node`], [`imap`], [`usage`]: a manager's knowledge of files, of where that is stored, and of live bytes.
//! - [`record`]: the records of a manager's own log.

pub mod api;
pub mod extents;
pub mod frontier;
pub mod imap;
pub mod index_node;
pub mod map;
pub mod record;
pub mod tokens;
pub mod usage;
