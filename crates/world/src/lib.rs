//! The simulated world: every role of the core on simulated disks, network and clock, checked against MemFs
