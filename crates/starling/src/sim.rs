//! `starling sim` simulates policies on traces; `starling advise` does that for a user's settings.
//!
//! - One module per study; `papers` runs all of them.
//! - `output` writes their results; `plot` draws their figures.

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

/// Runs `starling sim`.
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

/// Machines of the core, as they are by default.
#[derive(Clone, Copy)]
struct Has {
    client_cache: u64,
    server_cache: u64,
    block: u64,
    segment: u64,
    technology: &'static str,
}

impl Has {
    /// Starling's defaults, on machines of today.
    const PRODUCT: Has = Has {
        client_cache: defaults::MEMORY_BYTES,
        server_cache: 0,
        block: defaults::BLOCK_BYTES as u64,
        segment: (defaults::STORES - defaults::PARITIES as u16) as u64 * FRAGMENT_LEN_MAX as u64,
        technology: "nvme-25g",
    };

    /// The thesis's machines.
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

    /// The machines that `--rules` names, with the other options applied.
    fn of(asked: &Machines) -> anyhow::Result<Has> {
        let has = named("rules", &asked.rules, [("product", Has::PRODUCT), ("paper", Has::paper())])?;
        let (client_cache, block) = (asked.client_cache.unwrap_or(has.client_cache), asked.block.unwrap_or(has.block));
        Ok(Has { client_cache, block, ..has })
    }
}

/// How many blocks `bytes` hold; fails if they are fewer than `least`.
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

/// The choice called `asked`; the error lists all names.
fn named<T: Copy, const N: usize>(option: &str, asked: &str, all: [(&str, T); N]) -> anyhow::Result<T> {
    let found = all.iter().find(|(name, _)| *name == asked).map(|(_, one)| *one);
    let names = || all.map(|(name, _)| name).join(", ");
    found.ok_or_else(|| usage(format!("unknown --{option} {asked:?}; choose one of: {}", names())))
}

/// An error about the option that `fault` begins with.
fn wrong(fault: impl std::fmt::Display) -> anyhow::Error {
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
