//! The traces for the papers' studies: as large as the papers' own, or small parts of them for a
//! quick report.

use std::convert::Infallible;
use studies::cleaning::classic::Classic;
use studies::cooperative::experiments::{BLOCK_BYTES, calibration, worst};
use studies::cooperative::{Blocks, BlocksError};
use studies::locality::accesses::Accesses;
use studies::mobile::study::Grid;
use studies::mobile::{Activity, ActivityError, Parameters};
use trace::Record;
use trace::synth::auspex::{self, Auspex};
use trace::synth::office::Office;
use trace::synth::sprite::{self, Sprite};
use trace::synth::stress::Stress;
use trace::synth::week::Week;

/// Years to simulate for availability.
const YEARS: f64 = 2000.0;
/// A quick report takes one in `QUICK` accesses of the servers' traces, and one in `QUICK_WEEK` of
/// the users'.
const QUICK: u64 = 100;
const QUICK_WEEK: u64 = 16;

/// Which traces to make.
pub struct Traces {
    /// The same seed gives the same report.
    pub seed: u64,
    /// Make small parts only.
    pub quick: bool,
}

impl Traces {
    fn of(&self, count: u64) -> u64 {
        if self.quick { count / QUICK } else { count }
    }

    /// The workload that is calibrated to be like Sprite's trace.
    pub fn sprite(&self) -> Sprite {
        let of = Sprite::default();
        Sprite { accesses: self.of(of.accesses), seed: self.seed, ..of }
    }

    /// Number of traces like Sprite's to draw.
    pub fn sprite_draws(&self) -> usize {
        if self.quick { 2 } else { calibration::DRAWS }
    }

    pub fn sprite_warm_up(&self) -> u64 {
        self.of(sprite::WARM_UP)
    }

    pub fn auspex(&self) -> Auspex {
        let of = Auspex::default();
        // One in 500: this trace is seven times as large as Sprite's.
        let accesses = if self.quick { of.accesses / (5 * QUICK) } else { of.accesses };
        Auspex { accesses, seed: self.seed, ..of }
    }

    pub fn auspex_warm_up(&self) -> u64 {
        if self.quick { auspex::WARM_UP / (5 * QUICK) } else { auspex::WARM_UP }
    }

    pub fn worst_case(&self) -> worst::Setup {
        let of = worst::Setup::default();
        worst::Setup { requests: if self.quick { 10_000 } else { of.requests }, seed: self.seed }
    }

    pub fn classic(&self) -> Classic {
        let of = Classic { seed: self.seed, ..Classic::default() };
        match self.quick {
            true => Classic { segments: 60, segment_blocks: 32, warm_up_turnovers: 2, turnovers: 1, ..of },
            false => of,
        }
    }

    pub fn trial_years(&self) -> f64 {
        if self.quick { YEARS / QUICK as f64 } else { YEARS }
    }

    fn week(&self, of: Week) -> Week {
        let Week { active_h, requests, files, unique_bytes, read_bytes, written_bytes, .. } = of;
        let part = |count: u64| if self.quick { count / QUICK_WEEK } else { count };
        Week {
            active_h: if self.quick { active_h / QUICK_WEEK as f64 } else { active_h },
            requests: part(requests),
            files: part(files),
            unique_bytes: part(unique_bytes),
            read_bytes: part(read_bytes),
            written_bytes: part(written_bytes),
            seed: self.seed,
            ..of
        }
    }

    pub fn office(&self) -> Office {
        Office(self.week(Office::default().0))
    }

    pub fn stress(&self) -> Stress {
        Stress(self.week(Stress::default().0))
    }

    pub fn mobile_grid(&self) -> Grid {
        let of = Grid::paper();
        let base = Parameters { seed: self.seed, ..of.base };
        match self.quick {
            true => Grid { base, caches_bytes: vec![1 << 20, 10 << 20], slow: vec![9600, 14_400, 57_600], ..of },
            false => Grid { base, ..of },
        }
    }
}

fn all(records: impl Iterator<Item = Record>) -> impl Iterator<Item = Result<Record, Infallible>> {
    records.map(Ok)
}

fn refused(error: BlocksError<Infallible>) -> anyhow::Error {
    match error {
        BlocksError::Trace(never) => match never {},
        BlocksError::TooMany(what, record) => anyhow::anyhow!("record {record}: more {what} than can be simulated"),
    }
}

/// The trace as accesses of blocks.
pub fn blocks(records: impl Iterator<Item = Record>) -> anyhow::Result<Blocks> {
    Blocks::of(all(records), BLOCK_BYTES).map_err(refused)
}

/// The trace as accesses of blocks of files.
pub fn accesses(records: impl Iterator<Item = Record>) -> anyhow::Result<Accesses> {
    Accesses::of(all(records), BLOCK_BYTES).map_err(refused)
}

/// The trace as one user's activity.
pub fn activity(records: impl Iterator<Item = Record>) -> anyhow::Result<Activity> {
    Activity::of(all(records)).map_err(|error| match error {
        ActivityError::Trace(never) => match never {},
        ActivityError::Unsorted(record) => anyhow::anyhow!("record {record} is earlier than the one before it"),
        ActivityError::TooMany(what, record) => anyhow::anyhow!("record {record}: more {what} than can be simulated"),
    })
}
