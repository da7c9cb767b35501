//! The simulated disk gives the same answers as the real one.

use bytes::Bytes;
use host::real::RealDisk;
use host::sim::{Sim, SimDisk};
use host::{Disk, File};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Open(usize, bool),
    Remove(usize),
    Rename(usize, usize),
    List,
    Read(usize, u64, usize),
    Write(usize, u64, Vec<usize>, bool),
    Len(usize),
    SetLen(usize, u64),
    Allocate(usize, u64),
}

const NAMES: [&str; 4] = ["a", "b", "c", "not/flat"];

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    let offset = || 0u64..20_000;
    prop_oneof![
        (name(), any::<bool>()).prop_map(|(name, create)| Step::Open(name, create)),
        name().prop_map(Step::Remove),
        (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        Just(Step::List),
        (name(), offset(), 0usize..10_000).prop_map(|(name, at, len)| Step::Read(name, at, len)),
        (name(), offset(), proptest::collection::vec(0usize..5000, 0..4), any::<bool>())
            .prop_map(|(name, at, lens, sync)| Step::Write(name, at, lens, sync)),
        name().prop_map(Step::Len),
        (name(), offset()).prop_map(|(name, len)| Step::SetLen(name, len)),
        (name(), 1u64..20_000).prop_map(|(name, len)| Step::Allocate(name, len)),
    ]
}

/// Does the steps and returns each answer. Handles stay open over renames and removals.
async fn answers(disk: Arc<dyn Disk>, steps: Vec<Step>) -> Vec<String> {
    let mut open: BTreeMap<usize, Arc<dyn File>> = BTreeMap::new();
    let mut answers = Vec::new();
    for (number, step) in (1u8..).zip(steps) {
        let answer = one_answer(&disk, &mut open, number, step).await;
        answers.push(format!("{:?}", answer.map_err(|error| error.kind())));
    }
    answers
}

async fn one_answer(
    disk: &Arc<dyn Disk>,
    open: &mut BTreeMap<usize, Arc<dyn File>>,
    number: u8,
    step: Step,
) -> io::Result<String> {
    let file = |name: usize| open.get(&name).cloned().ok_or(io::Error::from(ErrorKind::Other));
    let done = |()| "done".to_owned();
    match step {
        Step::Open(name, create) => {
            open.insert(name, disk.open(NAMES[name], create).await?);
            Ok("opened".to_owned())
        }
        Step::Remove(name) => disk.remove(NAMES[name]).await.map(done),
        Step::Rename(from, to) => disk.rename(NAMES[from], NAMES[to]).await.map(done),
        Step::List => disk.list().await.map(|names| names.join(" ")),
        Step::Read(name, offset, len) => file(name)?.read_at(offset, len).await.map(|bytes| format!("{bytes:?}")),
        Step::Write(name, offset, lens, sync) => {
            let pieces: Vec<Bytes> = lens.into_iter().map(|len| vec![number; len].into()).collect();
            let file = file(name)?;
            let written = if sync {
                file.write_and_sync(vec![(offset, pieces.clone()), (offset / 2, pieces)]).await
            } else {
                file.write_at(offset, pieces).await
            };
            written.map(done)
        }
        Step::Len(name) => file(name)?.len().await.map(|len| len.to_string()),
        Step::SetLen(name, len) => file(name)?.set_len(len).await.map(done),
        Step::Allocate(name, len) => file(name)?.allocate(len).await.map(done),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn model_simulated_disk_answers_as_the_real_one(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let real = runtime.block_on(answers(RealDisk::open(folder.path()).unwrap(), steps.clone()));

        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30).mount(&sim.machine("one"));
        let simulated = sim.block_on(answers(disk, steps));
        prop_assert_eq!(real, simulated);
    }
}
