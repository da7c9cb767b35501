//! The client side of storage servers, shared by every writer and reader of logs: clients, managers and the cleaner.
//!
//! - [`Stripe`]: put a segment by the commit rule, read with degraded reads, delete, recover a log's tail, scrub.
//! - [`LogWriter`]: one log's order: names segments, keeps several in flight, acknowledges in order.
