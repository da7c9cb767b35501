//! Managers: who controls which file, where its blocks are, and who may cache or modify it (design, section 3.3).
//!
//! - [`api`]: what clients and cleaners ask of a manager.

pub mod api;
