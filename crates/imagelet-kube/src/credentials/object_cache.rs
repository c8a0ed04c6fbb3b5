//! A cache of objects by name. Each object is read once for all readers and cached for a minute.

use std::{collections::HashMap, sync::Arc, time::Duration};

use imagelet_core::{bounded_map::make_room, lock::locked};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{sync::Mutex, time::Instant};

use crate::api_error::ApiError;

/// The lifetime of a cached object, as in the kubelet's own cache of secrets.
const AGE_MAX: Duration = Duration::from_mins(1);
/// The lifetime of a cached failure. The images of one pod are requested together, so they share the failure.
const FAILURE_AGE_MAX: Duration = Duration::from_secs(10);
const IDLE_MAX: Duration = Duration::from_mins(5);
/// Maximum number of cached objects. An object has at most 1 MB.
const OBJECTS_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectName {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl ObjectName {
    pub(crate) fn path(&self, kind: &str) -> String {
        let [namespace, name] = [&self.namespace, &self.name].map(|text| utf8_percent_encode(text, NON_ALPHANUMERIC));
        format!("/api/v1/namespaces/{namespace}/{kind}/{name}")
    }
}

pub(super) type ReadResult<T> = Result<Arc<T>, Arc<str>>;
type LastRead<T> = Option<(Instant, ReadResult<T>)>;

pub(super) struct ObjectCache<T>(pub(super) std::sync::Mutex<HashMap<ObjectName, Slot<T>>>);

pub(super) struct Slot<T> {
    used_at: Instant,
    /// Locked during a read, so that other readers wait for the result.
    cell: Arc<Mutex<LastRead<T>>>,
}

impl<T> ObjectCache<T> {
    pub(super) async fn get(
        &self,
        name: &ObjectName,
        read: impl AsyncFnOnce() -> Result<T, ApiError>,
    ) -> ReadResult<T> {
        let cell = {
            let (mut slots, now) = (locked(&self.0), Instant::now());
            slots.retain(|_, slot| now.saturating_duration_since(slot.used_at) < IDLE_MAX);
            make_room(&mut slots, name, OBJECTS_MAX, |slot| slot.used_at);
            let slot = slots.entry(name.clone()).or_insert_with(|| Slot { used_at: now, cell: Arc::default() });
            slot.used_at = now;
            Arc::clone(&slot.cell)
        };
        let mut cached = cell.lock().await;
        if let Some((at, result)) = &*cached
            && at.elapsed() < if result.is_ok() { AGE_MAX } else { FAILURE_AGE_MAX }
        {
            return result.clone();
        }
        let result: ReadResult<T> = read().await.map(Arc::new).map_err(|error| error.to_string().into());
        *cached = Some((Instant::now(), result.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName { namespace: "shop".into(), name: name.into() }
    }

    /// Reads an object that is a count of the reads, and fails those of these numbers.
    struct Counted {
        cache: ObjectCache<usize>,
        reads: AtomicUsize,
        failing: Vec<usize>,
    }

    impl Counted {
        fn failing(failing: &[usize]) -> Self {
            let (reads, failing) = (AtomicUsize::new(0), failing.to_vec());
            Self { cache: ObjectCache(std::sync::Mutex::default()), reads, failing }
        }

        async fn get(&self, object: &str) -> Result<usize, String> {
            let read = async || {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let number = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
                if self.failing.contains(&number) {
                    let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
                    return Err(kube::Error::Api(Box::new(status)).into());
                }
                Ok(number)
            };
            self.cache.get(&name(object), read).await.map(|object| *object).map_err(|error| error.to_string())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_at_once_share_one_read_and_the_next_one_is_after_a_minute() {
        let counted = Counted::failing(&[]);
        assert_eq!(tokio::join!(counted.get("a"), counted.get("a")), (Ok(1), Ok(1)));
        assert_eq!(counted.get("b").await, Ok(2));
        // The read of the second object took a second.
        tokio::time::advance(AGE_MAX.saturating_sub(Duration::from_secs(2))).await;
        assert_eq!(counted.get("a").await, Ok(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(counted.get("a").await, Ok(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_repeated_for_ten_seconds_and_then_read_again() {
        let counted = Counted::failing(&[1]);
        let failure = Err("the API server answered 403: no".to_owned());
        assert_eq!(counted.get("a").await, failure);
        tokio::time::advance(FAILURE_AGE_MAX.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(counted.get("a").await, failure);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(counted.get("a").await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn objects_are_bounded_and_those_without_a_reader_are_dropped() {
        let counted = Counted::failing(&[]);
        for object in 0..OBJECTS_MAX + 10 {
            counted.get(&object.to_string()).await.unwrap();
        }
        assert_eq!(counted.cache.0.lock().unwrap().len(), OBJECTS_MAX);
        assert!(!counted.cache.0.lock().unwrap().contains_key(&name("0")));
        tokio::time::advance(IDLE_MAX).await;
        counted.get("new").await.unwrap();
        assert_eq!(counted.cache.0.lock().unwrap().len(), 1);
    }
}
