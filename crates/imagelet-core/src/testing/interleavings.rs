//! Runs the tasks of a small story in every order of their steps, or in random orders of a seed.
//!
//! A step is one poll of one task. Tasks that the story spawns on the runtime run together, as one more task. Code
//! between two `.await`s is not interrupted, so races between two locks in such code and the memory order of atomics
//! are not tested.

use std::{
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, task::yield_now, time};

use super::dice::Dice;

/// The virtual time after which a story without a runnable task is stuck. Longer than each timer of a story.
const STUCK_AFTER: Duration = Duration::from_hours(24);

/// Tasks whose orders are explored, and their invariants.
pub struct InterleavedStory {
    pub tasks: Vec<BoxFuture<'static, ()>>,
    /// Checked after each step.
    pub invariant: Box<dyn FnMut() -> Result<(), String> + Send>,
    /// Checked after the last step of all tasks, including spawned tasks.
    pub at_end: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

/// The failure of a story, with the choices that repeat the failure.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{violation}, after the choices {choices:?}")]
pub struct InterleavingError {
    pub violation: String,
    /// The chosen index at each step at which several tasks could run.
    pub choices: Vec<usize>,
}

/// Runs a story in all orders of its steps, and returns their number. Needs a single-threaded runtime with paused time.
///
/// # Errors
/// The first order that violates an invariant or never ends.
pub async fn explore_all_orders(mut story: impl FnMut() -> InterleavedStory) -> Result<usize, InterleavingError> {
    let mut order = Order { taken: Vec::new(), next: 0, dice: None };
    for orders in 1.. {
        order.run(story()).await?;
        if !order.advance() {
            return Ok(orders);
        }
    }
    unreachable!("the numbers do not end")
}

/// Runs a story in one random order of this seed. Errors are those of [`explore_all_orders`].
pub async fn explore_random_order(story: InterleavedStory, seed: u64) -> Result<(), InterleavingError> {
    Order { taken: Vec::new(), next: 0, dice: Some(Dice(seed)) }.run(story).await
}

/// Ends a step of the calling task.
pub async fn step() {
    let mut is_over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The choices of one run: the chosen index and the number of runnable tasks.
struct Order {
    taken: Vec<(usize, usize)>,
    next: usize,
    dice: Option<Dice>,
}

struct WokenTask {
    is_woken: AtomicBool,
    explorer: Waker,
}

impl Wake for WokenTask {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.explorer.wake_by_ref();
    }
}

impl Order {
    fn choose(&mut self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        if self.next == self.taken.len() {
            let first = self.dice.as_mut().map_or(0, |dice| dice.below(of));
            self.taken.push((first, of));
        }
        self.next += 1;
        self.taken[self.next - 1].0
    }

    /// Turns to the next order, depth first. Returns false after the last order.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((taken, of)) = self.taken.pop() {
            if taken + 1 < of {
                self.taken.push((taken + 1, of));
                return true;
            }
        }
        false
    }

    async fn run(&mut self, story: InterleavedStory) -> Result<(), InterleavingError> {
        self.steps(story).await.map_err(|violation| InterleavingError {
            violation,
            choices: self.taken[..self.next].iter().map(|(taken, _)| *taken).collect(),
        })
    }

    async fn steps(&mut self, mut story: InterleavedStory) -> Result<(), String> {
        let explorer = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        let woken = || Arc::new(WokenTask { is_woken: AtomicBool::new(true), explorer: explorer.clone() });
        let mut tasks: Vec<_> = story.tasks.drain(..).map(|task| (task, woken())).collect();
        // `true`: since the last step of the story's tasks, the spawned tasks have had their step.
        let mut is_runtime_idle = false;
        while !tasks.is_empty() {
            let is_ready = |(_, woken): &(_, Arc<WokenTask>)| woken.is_woken.load(Ordering::SeqCst);
            let ready: Vec<usize> = (0..tasks.len()).filter(|at| is_ready(&tasks[*at])).collect();
            let runtime = usize::from(!is_runtime_idle && spawned() > 0);
            if ready.len() + runtime == 0 {
                let woken = poll_fn(|_| if tasks.iter().any(is_ready) { Poll::Ready(()) } else { Poll::Pending });
                time::timeout(STUCK_AFTER, woken).await.map_err(|_| "no task can go on".to_owned())?;
                continue;
            }
            let choice = self.choose(ready.len() + runtime);
            is_runtime_idle = choice == ready.len();
            if is_runtime_idle {
                yield_now().await;
            } else {
                let (task, woken) = &mut tasks[ready[choice]];
                woken.is_woken.store(false, Ordering::SeqCst);
                let waker = Waker::from(Arc::clone(woken));
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    drop(tasks.remove(ready[choice]));
                }
            }
            (story.invariant)()?;
        }
        for _ in 0..STUCK_AFTER.as_secs() {
            if spawned() == 0 {
                return (story.at_end)();
            }
            time::sleep(Duration::from_secs(1)).await;
        }
        Err("a spawned task never ends".to_owned())
    }
}

impl fmt::Debug for InterleavedStory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InterleavedStory").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

fn spawned() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, atomic::AtomicU32};

    use futures_util::FutureExt as _;
    use tokio::sync::Notify;

    use super::*;

    fn of(
        tasks: Vec<BoxFuture<'static, ()>>,
        at_end: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> InterleavedStory {
        InterleavedStory { tasks, invariant: Box::new(|| Ok(())), at_end: Box::new(at_end) }
    }

    #[tokio::test(start_paused = true)]
    async fn two_tasks_of_two_steps_have_six_orders_and_each_is_run_once() {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let story = || {
            let text: Arc<Mutex<String>> = Arc::default();
            let task = |name: char| {
                let text = Arc::clone(&text);
                async move {
                    text.lock().unwrap().push(name);
                    step().await;
                    text.lock().unwrap().push(name);
                }
                .boxed()
            };
            let (tasks, seen) = (vec![task('a'), task('b')], Arc::clone(&seen));
            of(tasks, move || {
                seen.lock().unwrap().push(text.lock().unwrap().clone());
                Ok(())
            })
        };
        assert_eq!(explore_all_orders(story).await, Ok(6));
        let seen: Vec<String> = seen.lock().unwrap().drain(..).collect();
        assert_eq!(seen, ["aabb", "abab", "abba", "baab", "baba", "bbaa"]);
    }

    /// Two tasks count to two, and the count is read and written in different steps.
    fn lost_update() -> InterleavedStory {
        let count = Arc::new(AtomicU32::new(0));
        let task = || {
            let count = Arc::clone(&count);
            async move {
                let read = count.load(Ordering::SeqCst);
                step().await;
                count.store(read + 1, Ordering::SeqCst);
            }
            .boxed()
        };
        let tasks = vec![task(), task()];
        of(tasks, move || if count.load(Ordering::SeqCst) == 2 { Ok(()) } else { Err("an update is lost".to_owned()) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_update_is_found_in_all_orders_and_by_a_seed_and_the_choices_are_reported() {
        let error = explore_all_orders(lost_update).await.unwrap_err();
        assert_eq!(error.to_string(), "an update is lost, after the choices [0, 1, 0]");
        let mut found = 0;
        for seed in 0..64 {
            found += u32::from(explore_random_order(lost_update(), seed).await.is_err());
        }
        assert!((16..=56).contains(&found), "{found} of 64 seeds find it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_notification_is_found_as_a_task_that_cannot_go_on() {
        let story = || {
            let (notify, is_there) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
            let waits = {
                let (notify, is_there) = (Arc::clone(&notify), Arc::clone(&is_there));
                async move {
                    if !is_there.load(Ordering::SeqCst) {
                        step().await;
                        notify.notified().await;
                    }
                }
            };
            let wakes = async move {
                is_there.store(true, Ordering::SeqCst);
                // Keeps no permit: only tasks that wait already are woken.
                notify.notify_waiters();
            };
            of(vec![waits.boxed(), wakes.boxed()], || Ok(()))
        };
        let error = explore_all_orders(story).await.unwrap_err();
        assert_eq!(error.violation, "no task can go on");
    }

    #[tokio::test(start_paused = true)]
    async fn spawned_tasks_run_between_the_steps_of_the_story_and_end_before_its_end_is_checked() {
        let story = || {
            let (is_done, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let task = {
                let (is_done, seen) = (Arc::clone(&is_done), Arc::clone(&seen));
                async move {
                    let spawned = Arc::clone(&is_done);
                    drop(tokio::spawn(async move {
                        time::sleep(Duration::from_secs(5)).await;
                        spawned.store(true, Ordering::SeqCst);
                    }));
                    step().await;
                    seen.store(is_done.load(Ordering::SeqCst), Ordering::SeqCst);
                }
            };
            of(vec![task.boxed()], move || match (is_done.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)) {
                (true, false) => Ok(()),
                other => Err(format!("{other:?}")),
            })
        };
        assert_eq!(explore_all_orders(story).await, Ok(2));
    }
}
