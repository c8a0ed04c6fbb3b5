//! Locks a mutex whose state is complete after each statement: a thread that panicked with the lock left no partial
//! change.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
