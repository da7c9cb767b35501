//! Runs one study with many parameters, on all processors.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The results of `study` for each of `of`, in their order, with any number of processors. `done`
/// is called after each one.
#[expect(clippy::disallowed_methods, reason = "studies run beside each other, and share nothing")]
pub fn sweep<P: Sync, R: Send>(of: &[P], study: impl Fn(&P) -> R + Sync, done: impl Fn() + Sync) -> Vec<R> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(of.len())));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = of.get(at) else { return };
            let result = study(one);
            found.lock().expect("no study panics with it").push((at, result));
            done();
        }
    };
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(of.len());
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().expect("no study panics with it");
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_in_the_order_of_what_was_asked() {
        let (asked, told): (Vec<u64>, _) = ((0..100).collect(), AtomicUsize::new(0));
        let tell = || {
            told.fetch_add(1, Ordering::Relaxed);
        };
        let found = sweep(&asked, |n| n * n, tell);
        assert_eq!(found, asked.iter().map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(told.into_inner(), asked.len());
        assert!(sweep(&[], |n: &u64| *n, || ()).is_empty());
    }
}
