//! One program has these tests: to build one for each takes longer than to run them.

mod behind;
mod conformance;
mod durability;
mod full;
mod idle;
mod maps;
mod moves;
mod old_copies;
mod remote_managers;
mod rounds;
mod scrub;
mod several;
