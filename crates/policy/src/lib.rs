//! Pure decisions: which segment to clean, what to evict, how far to read ahead
