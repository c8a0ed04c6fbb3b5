//! Which events become objects of the cluster, and which only count in a series: a pure state machine.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use imagelet_core::events::EventKind;
use tokio::time::Instant;

/// A series is sent again after this time at the earliest.
const UPDATE_EVERY: Duration = Duration::from_mins(1);
/// A series without an event for this long has ended; the next such event is a new object.
const ENDS_AFTER: Duration = Duration::from_mins(10);
const SERIES_MAX: usize = 64;
/// New objects at once, and the time in which one more is permitted.
const BURST: f64 = 10.0;
const REFILL: Duration = Duration::from_mins(1);

/// Equal events are one series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventText {
    pub(super) kind: EventKind,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

/// What is sent to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventAction {
    /// A new object, whose name ends in this number.
    Create { id: u64, text: EventText, at: SystemTime },
    /// A series of so many events.
    Update { id: u64, text: EventText, count: u32, last: SystemTime },
}

#[derive(Debug)]
struct Series {
    id: u64,
    count: u32,
    count_sent: u32,
    sent: Instant,
    last: (SystemTime, Instant),
}

#[derive(Debug)]
pub(super) struct SeriesTable {
    series: HashMap<EventText, Series>,
    /// New objects that are permitted now, and since when this is so.
    permits: (f64, Instant),
}

impl SeriesTable {
    pub(super) fn new(now: Instant) -> Self {
        Self { series: HashMap::new(), permits: (BURST, now) }
    }

    /// One more event. `None`: it only counts, or is beyond the rate.
    pub(super) fn observe(&mut self, text: EventText, at: SystemTime, now: Instant) -> Option<EventAction> {
        self.forget_ended(now);
        if let Some(series) = self.series.get_mut(&text) {
            series.count = series.count.saturating_add(1);
            series.last = (at, now);
            return series.update(&text, now);
        }
        if self.series.len() >= SERIES_MAX || !self.permit(now) {
            return None;
        }
        let nanoseconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let id = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        self.series.insert(text.clone(), Series { id, count: 1, count_sent: 1, sent: now, last: (at, now) });
        Some(EventAction::Create { id, text, at })
    }

    /// The series with events that were not sent yet.
    pub(super) fn due(&mut self, now: Instant) -> Vec<EventAction> {
        let due = self.series.iter_mut().filter_map(|(text, series)| series.update(text, now)).collect();
        self.forget_ended(now);
        due
    }

    /// The object does not exist: the next such event is a new one.
    pub(super) fn forget(&mut self, text: &EventText) {
        self.series.remove(text);
    }

    fn forget_ended(&mut self, now: Instant) {
        self.series.retain(|_, series| now.saturating_duration_since(series.last.1) < ENDS_AFTER);
    }

    fn permit(&mut self, now: Instant) -> bool {
        let (permits, since) = self.permits;
        let more = now.saturating_duration_since(since).as_secs_f64() / REFILL.as_secs_f64();
        let permits = (permits + more).min(BURST);
        let is_permitted = permits >= 1.0;
        self.permits = (if is_permitted { permits - 1.0 } else { permits }, now);
        is_permitted
    }
}

impl Series {
    fn update(&mut self, text: &EventText, now: Instant) -> Option<EventAction> {
        if self.count == self.count_sent || now.saturating_duration_since(self.sent) < UPDATE_EVERY {
            return None;
        }
        (self.count_sent, self.sent) = (self.count, now);
        Some(EventAction::Update { id: self.id, text: text.clone(), count: self.count, last: self.last.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table {
        table: SeriesTable,
        start: Instant,
    }

    impl Table {
        fn new() -> Self {
            let start = Instant::now();
            Self { table: SeriesTable::new(start), start }
        }

        fn observe(&mut self, seconds: u64, note: &str) -> Option<String> {
            let text = text(note);
            let (after, now) = self.at(seconds);
            self.table.observe(text, after, now).map(shown)
        }

        fn due(&mut self, seconds: u64) -> Vec<String> {
            let (_, now) = self.at(seconds);
            self.table.due(now).into_iter().map(shown).collect()
        }

        fn at(&self, seconds: u64) -> (SystemTime, Instant) {
            let after = Duration::from_secs(seconds);
            (SystemTime::UNIX_EPOCH + after, self.start + after)
        }
    }

    fn text(note: &str) -> EventText {
        EventText { kind: EventKind::Warning, reason: "LookAheadFailed", note: note.into() }
    }

    fn shown(action: EventAction) -> String {
        let seconds = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        match action {
            EventAction::Create { text, at, .. } => format!("create {} at {}", text.note, seconds(at)),
            EventAction::Update { id, text, count, last } => {
                format!("update {} of {}: {count} until {}", text.note, id / 1_000_000_000, seconds(last))
            }
        }
    }

    #[test]
    fn equal_events_are_one_object_whose_series_is_sent_once_a_minute() {
        let mut table = Table::new();
        assert_eq!(table.observe(5, "a").as_deref(), Some("create a at 5"));
        for second in 6..65 {
            assert_eq!(table.observe(second, "a"), None, "{second}");
        }
        assert_eq!(table.observe(65, "a").as_deref(), Some("update a of 5: 61 until 65"));
        assert_eq!(table.observe(70, "a"), None);
        assert_eq!(table.due(100), [""; 0]);
        assert_eq!(table.due(125), ["update a of 5: 62 until 70"]);
        assert_eq!(table.due(999), [""; 0]);
    }

    #[test]
    fn a_series_ends_after_ten_minutes_or_with_its_object_and_the_next_event_is_a_new_one() {
        let mut table = Table::new();
        table.observe(0, "a");
        assert_eq!(table.observe(599, "a").as_deref(), Some("update a of 0: 2 until 599"));
        assert_eq!(table.observe(1199, "a").as_deref(), Some("create a at 1199"));
        table.table.forget(&text("a"));
        assert_eq!(table.observe(1200, "a").as_deref(), Some("create a at 1200"));
    }

    #[test]
    fn new_objects_are_bounded_in_rate_and_number() {
        let mut table = Table::new();
        let created = |table: &mut Table, second, from: usize, count: usize| {
            (from..from + count).filter(|note| table.observe(second, &note.to_string()).is_some()).count()
        };
        assert_eq!(created(&mut table, 0, 0, 100), 10);
        assert_eq!(created(&mut table, 59, 100, 100), 0);
        assert_eq!(created(&mut table, 60, 200, 100), 1);
        assert_eq!(created(&mut table, 180, 300, 100), 2);
        let mut full = Table::new();
        full.table.permits.0 = 1000.0;
        let notes = (0..200).filter(|note: &usize| {
            full.table.permits.0 = BURST;
            full.observe(0, &note.to_string()).is_some()
        });
        assert_eq!(notes.count(), SERIES_MAX);
    }
}
