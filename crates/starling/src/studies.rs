//! `starling sim`: policies, tried on traces.

mod cooperative;

use crate::args::SimCommand;
use std::process::ExitCode;

/// Does what `starling sim` is asked for.
pub fn run(command: SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Cooperative(asked) => cooperative::run(&asked),
    }
}
