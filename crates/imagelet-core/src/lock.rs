//! Locks a mutex even after a thread panicked with the lock: the caller accepts a change that stopped halfway.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
