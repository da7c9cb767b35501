//! Tests of the server as a whole.
//!
//! [`model`] drives a server with random requests and checks it against a map. `real` does that on
//! real files, `sim` on simulated disks that lose power, fail, fill up and rot; `tcp` reaches it
//! through a connection.

mod model;
mod real;
mod sim;
mod tcp;
