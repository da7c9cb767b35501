//! Managers: who controls which file, where its blocks are, and who may cache or modify it (design, section 3.3).
//!
//! - [`api`]: what clients and cleaners ask of a manager.
//! - [`map`]: which manager serves which file.
//! - [`extents`]: a file's map from blocks to log addresses; clients use it too.
//! - [`tokens`]: who holds which token.

pub mod api;
pub mod extents;
pub mod map;
pub mod tokens;
