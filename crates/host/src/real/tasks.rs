//! Tasks on threads: those of a tokio runtime, and those that write to disks.
//!
//! Waking another thread costs tens of microseconds on processors that sleep deeply, which is much
//! of a small fsync. So the thread that has a task starts it, and the thread that ends a short
//! task's wait goes on with it.
//!
//! A started task belongs to no runtime. It ends when it is done, or when nothing is left that
//! could wake it; the end of a runtime does not end it.

use crate::Tasks;
use async_task::Runnable;
use std::cell::OnceCell;
use tokio::runtime::Handle;
use types::BoxFuture;

thread_local! {
    /// The runtime that this thread alone runs, if it is a disk's thread.
    static LOCAL: OnceCell<Handle> = const { OnceCell::new() };
}

/// Lends this thread, which runs `runtime` and nothing else: short tasks that are woken on it go on
/// on it.
pub(super) fn lend_thread(runtime: Handle) {
    LOCAL.with(|local| drop(local.set(runtime)));
}

/// Runs tasks on a tokio runtime.
pub struct TokioTasks(pub Handle);

impl TokioTasks {
    fn begin(&self, task: BoxFuture<()>, wake: impl Fn(&Handle, Runnable) + Send + Sync + 'static) {
        let handle = self.0.clone();
        let (runnable, running) = async_task::spawn(task, move |runnable| wake(&handle, runnable));
        running.detach();
        // Tasks that it starts, and its timers, belong to the runtime.
        let _entered = self.0.enter();
        runnable.run();
    }
}

impl Tasks for TokioTasks {
    fn spawn(&self, task: BoxFuture<()>) {
        drop(self.0.spawn(task));
    }

    fn start(&self, task: BoxFuture<()>) {
        self.begin(task, |runtime, runnable| {
            drop(runtime.spawn(async move {
                runnable.run();
            }));
        });
    }

    fn start_short(&self, task: BoxFuture<()>) {
        self.begin(task, |runtime, runnable| {
            // It cannot run at once: the waking code may hold locks.
            let local = LOCAL.try_with(|local| local.get().cloned()).unwrap_or_default();
            let entered = runtime.clone();
            drop(local.as_ref().unwrap_or(runtime).spawn(async move {
                let _entered = entered.enter();
                runnable.run();
            }));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::task::Poll;
    use std::thread::{self, ThreadId};
    use std::time::Duration;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;

    fn here() -> ThreadId {
        thread::current().id()
    }

    type Start = fn(&TokioTasks, BoxFuture<()>);

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    }

    #[test]
    fn tasks_start_here_with_their_runtime_at_hand() {
        for start in [TokioTasks::start as Start, TokioTasks::start_short] {
            let background = runtime();
            let (tell, told) = channel();
            let task = Box::pin(async move {
                tell.send((here(), Handle::current().id())).unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                tell.send((here(), Handle::current().id())).unwrap();
            });
            start(&TokioTasks(background.handle().clone()), task);
            let [(before, first), (after, second)] = [told.recv().unwrap(), told.recv().unwrap()];
            assert_eq!(before, here());
            assert_ne!(after, here());
            assert_eq!([first, second], [background.handle().id(); 2]);
        }
    }

    /// True if a task goes on on the lent thread that wakes it, while that thread holds a lock that
    /// the task needs.
    fn goes_on_where_it_is_woken(start: Start) -> bool {
        let background = runtime();
        let lock = Arc::new(Mutex::new(()));
        let (wake, woken) = oneshot::channel::<()>();
        let (tell, told) = channel();
        let locked = lock.clone();
        let task = Box::pin(async move {
            woken.await.unwrap();
            drop(locked.lock());
            tell.send(here()).unwrap();
        });
        start(&TokioTasks(background.handle().clone()), task);
        let lent = thread::spawn(move || {
            let runtime = Builder::new_current_thread().build().unwrap();
            lend_thread(runtime.handle().clone());
            runtime.block_on(async move {
                let held = lock.lock();
                wake.send(()).unwrap();
                drop(held);
                tokio::task::yield_now().await;
            });
            here()
        });
        let lent = lent.join().unwrap();
        told.recv().unwrap() == lent
    }

    #[test]
    fn only_a_short_task_goes_on_where_it_is_woken() {
        assert!(goes_on_where_it_is_woken(TokioTasks::start_short));
        assert!(!goes_on_where_it_is_woken(TokioTasks::start));
    }

    #[test]
    fn task_that_wakes_itself_runs_to_its_end() {
        let background = runtime();
        let (tell, told) = channel();
        let mut polls = 0;
        TokioTasks(background.handle().clone()).start_short(Box::pin(async move {
            poll_fn(|context| {
                polls += 1;
                context.waker().wake_by_ref();
                if polls < 10 { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            tell.send(polls).unwrap();
        }));
        assert_eq!(told.recv().unwrap(), 10);
    }
}
