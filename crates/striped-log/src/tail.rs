//! The verdict on a log's tail.
