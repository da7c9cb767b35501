//! `starling sim`: policies, tried on traces; and `starling advise`, which does that for a user.
//!
//! - A module for each study; `papers`: all of them; `output`: what they write; `plot`: how it is
//!   drawn.

pub mod advise;
mod availability;
mod cleaning;
mod cooperative;
mod locality;
mod mobile;
mod output;
mod papers;
mod plot;

use crate::args::{Machines, SimCommand};
use crate::usage;
use policy::defaults;
use std::process::ExitCode;
use striped_log::fragment::FRAGMENT_LEN_MAX;
use studies::cooperative::BlocksError;
use studies::cooperative::experiments::Setup;

/// Does what `starling sim` is asked for.
pub fn run(command: SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Cooperative(asked) => cooperative::run(&asked),
        SimCommand::Mobile(asked) => mobile::run(&asked),
        SimCommand::Cleaning(asked) => cleaning::run(&asked),
        SimCommand::Locality(asked) => locality::run(&asked),
        SimCommand::Availability(asked) => availability::run(&asked),
        SimCommand::Papers(asked) => papers::run(&asked),
    }
}

/// What the machines of the core have where nothing is set.
#[derive(Clone, Copy)]
struct Has {
    client_cache: u64,
    server_cache: u64,
    block: u64,
    segment: u64,
    technology: &'static str,
}

impl Has {
    /// Starling's, on machines of today.
    const PRODUCT: Has = Has {
        client_cache: defaults::MEMORY_BYTES,
        server_cache: 0,
        block: defaults::BLOCK_BYTES as u64,
        segment: (defaults::STORES - defaults::PARITIES as u16) as u64 * FRAGMENT_LEN_MAX as u64,
        technology: "nvme-25g",
    };

    /// The thesis's.
    fn paper() -> Has {
        let Setup { block_bytes, client_blocks, server_blocks, .. } = Setup::thesis(0, 0);
        Has {
            client_cache: u64::from(client_blocks) * block_bytes,
            server_cache: u64::from(server_blocks) * block_bytes,
            block: block_bytes,
            segment: studies::cleaning::Parameters::default().segment_bytes,
            technology: "atm",
        }
    }

    /// What is there, with what was said of it.
    fn of(asked: &Machines) -> anyhow::Result<Has> {
        let has = named("rules", &asked.rules, [("product", Has::PRODUCT), ("paper", Has::paper())])?;
        let (client_cache, block) = (asked.client_cache.unwrap_or(has.client_cache), asked.block.unwrap_or(has.block));
        Ok(Has { client_cache, block, ..has })
    }
}

/// So many bytes in blocks, of which there must be at least so many.
fn blocks_of(name: &str, bytes: u64, block_bytes: u64, least: u64) -> anyhow::Result<u32> {
    if block_bytes == 0 {
        return Err(usage("--block: a block has at least one byte"));
    }
    let blocks = bytes / block_bytes;
    if blocks < least {
        return Err(usage(format!(
            "--{name}: {bytes} bytes hold no block of {block_bytes}: give more, or a smaller --block"
        )));
    }
    u32::try_from(blocks).map_err(|_| usage(format!("--{name}: {blocks} blocks are more than can be simulated")))
}

/// The one that has this name.
fn named<T: Copy, const N: usize>(option: &str, asked: &str, all: [(&str, T); N]) -> anyhow::Result<T> {
    let found = all.iter().find(|(name, _)| *name == asked).map(|(_, one)| *one);
    let names = || all.map(|(name, _)| name).join(", ");
    found.ok_or_else(|| usage(format!("--{option}: {asked:?} is none: there are {}", names())))
}

/// What is wrong with what is set, by the option's name.
fn wrong(fault: String) -> anyhow::Error {
    usage(format!("--{fault}"))
}

/// Why this trace cannot be simulated.
fn refused(path: &std::path::Path, error: BlocksError<anyhow::Error>) -> anyhow::Error {
    match error {
        BlocksError::Trace(error) => error,
        BlocksError::TooMany(what, record) => {
            usage(format!("{}: record {record}: more {what} than can be simulated", path.display()))
        }
    }
}
