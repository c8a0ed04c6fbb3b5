//! The circuit breaker of registries: rejects pulls for a while after failures; pure functions.
//!
//! A thousand pods that need images of a failed registry send it one probe at a time. A circuit is kept per registry
//! and failure scope; scopes that depend on credentials or the image have a circuit for each, so that no client suffers
//! for another. It opens after [`OPENS_AFTER`] failures in a row, or at once where the registry names a time. After its
//! window one pull is the probe; the others wait until it succeeds, or for [`PROBE_MAX`].

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    manager::remove_oldest,
    runtime::{ErrorClass, Fault, RuntimeErrorKind, Stage},
};

const OPENS_AFTER: u32 = 3;
/// The longest window without a registry's request: a recovered registry should not wait for long.
const WINDOW_MAX: Duration = Duration::from_mins(1);
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);
/// After this another probe is permitted: the first is slow, or hangs.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// Beyond this the circuits that opened first are dropped.
const CIRCUITS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CircuitKey {
    pub(crate) registry: String,
    pub(crate) credentials: Vec<String>,
    pub(crate) image: String,
}

/// A scope, and only the parts of a key that it depends on.
type ScopedKey = (CircuitScope, CircuitKey);

#[derive(Clone, Debug)]
struct Circuit {
    failures: u32,
    window: Duration,
    /// `None`: closed.
    until: Option<Instant>,
    probe: Option<Instant>,
    touched: Instant,
    class: ErrorClass,
}

/// A registry with an open circuit. Names no image: tenants share circuits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("circuit open for registry `{registry}` after {failures} failures ({class}); {}", next_attempt(*.remaining))]
pub struct OpenCircuit {
    /// Host and port.
    pub registry: String,
    /// The pulls that wait.
    pub scope: CircuitScope,
    /// The class of the last failure.
    pub class: ErrorClass,
    /// Failures in a row; of several circuits in this scope the most.
    pub failures: u32,
    /// Until the next attempt; zero during a probe.
    pub remaining: Duration,
}

fn next_attempt(remaining: Duration) -> String {
    if remaining.is_zero() {
        "a probe is under way".to_owned()
    } else {
        format!("next attempt in {} s", remaining.as_secs() + 1)
    }
}

impl OpenCircuit {
    /// The text of the event when it has just opened. The number of failures would make each event another one.
    pub(crate) fn opening(&self, hop: Stage) -> String {
        let Self { registry, scope, class, remaining, .. } = self;
        let (scope, seconds) = (scope.name(), remaining.as_secs());
        format!("circuit opened for registry `{registry}` ({scope}) for {seconds} s: {class} at {hop}")
    }

    pub(crate) fn kind(&self) -> RuntimeErrorKind {
        match self.scope {
            CircuitScope::AllPulls | CircuitScope::Credentials => RuntimeErrorKind::RegistryUnavailable,
            CircuitScope::Images => RuntimeErrorKind::Denied,
        }
    }
}

/// The pulls that wait for a registry. A failure of a later scope proves that the registry answers, which ends the
/// failures of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CircuitScope {
    /// All of them: the registry is unreachable or broken.
    AllPulls,
    /// Those with some credentials: the registry limits them.
    Credentials,
    /// Those of some images with some credentials: the registry rejects them.
    Images,
}

#[derive(Debug)]
pub(crate) struct Circuits {
    window_first: Duration,
    circuits: HashMap<ScopedKey, Circuit>,
}

impl CircuitScope {
    const ALL: [Self; 3] = [Self::AllPulls, Self::Credentials, Self::Images];

    /// The word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllPulls => "all-pulls",
            Self::Credentials => "credentials",
            Self::Images => "images",
        }
    }

    /// The scope of a failure. `None`: the registry answered, and something else failed.
    fn from_fault(fault: &Fault) -> Option<Self> {
        match fault.class {
            // A registry that is silent, not a store or a runtime.
            ErrorClass::TimedOut
                if matches!(fault.hop, Stage::Connect | Stage::Tls | Stage::Token | Stage::Manifest | Stage::Blob) =>
            {
                Some(Self::AllPulls)
            }
            ErrorClass::HostNotFound
            | ErrorClass::ConnectionRefused
            | ErrorClass::Unreachable
            | ErrorClass::CertificateInvalid
            | ErrorClass::TlsFailed
            | ErrorClass::ProxyFailed
            | ErrorClass::RegistryFailed => Some(Self::AllPulls),
            ErrorClass::RateLimited => Some(Self::Credentials),
            ErrorClass::Unauthorized | ErrorClass::Forbidden => Some(Self::Images),
            _ => None,
        }
    }

    fn key(self, route: &CircuitKey) -> ScopedKey {
        let mut of = route.clone();
        if self < Self::Credentials {
            of.credentials.clear();
        }
        if self < Self::Images {
            of.image.clear();
        }
        (self, of)
    }
}

impl Circuits {
    pub(crate) fn new(window_first: Duration) -> Self {
        Self { window_first: window_first.min(WINDOW_MAX), circuits: HashMap::new() }
    }

    /// Whether a pull may begin; it may become the probe of an open circuit.
    pub(crate) fn admit(&mut self, route: &CircuitKey, now: Instant) -> Result<(), OpenCircuit> {
        for key in CircuitScope::ALL.map(|scope| scope.key(route)) {
            if let Some(open) = self.circuits.get(&key).and_then(|circuit| circuit.refusal(&key, now)) {
                return Err(open);
            }
        }
        self.probe(route, now);
        Ok(())
    }

    /// Whether a pull that is no probe may begin: also a circuit whose window is over waits for a probe.
    pub(crate) fn check_closed(&self, route: &CircuitKey, now: Instant) -> Result<(), OpenCircuit> {
        let open = CircuitScope::ALL.map(|scope| scope.key(route)).into_iter();
        let mut open = open.filter_map(|key| self.circuits.get(&key)?.opened(&key, now));
        open.next().map_or(Ok(()), Err)
    }

    /// A pull begins, whether or not circuits are open: it is the probe of those that are.
    pub(crate) fn probe(&mut self, route: &CircuitKey, now: Instant) {
        for scope in CircuitScope::ALL {
            if let Some(circuit) = self.circuits.get_mut(&scope.key(route)).filter(|it| it.until.is_some()) {
                circuit.probe = Some(now);
            }
        }
    }

    /// The registries with open circuits, by name and scope; of equal ones the first to end.
    pub(crate) fn open(&self, now: Instant) -> Vec<OpenCircuit> {
        let mut open: BTreeMap<(String, CircuitScope), OpenCircuit> = BTreeMap::new();
        for found in self.circuits.iter().filter_map(|(key, circuit)| circuit.refusal(key, now)) {
            let shown = open.entry((found.registry.clone(), found.scope)).or_insert_with(|| found.clone());
            let failures = shown.failures.max(found.failures);
            if found.remaining < shown.remaining {
                *shown = found;
            }
            shown.failures = failures;
        }
        open.into_values().collect()
    }

    pub(crate) fn answered(&mut self, route: &CircuitKey) {
        for scope in CircuitScope::ALL {
            self.circuits.remove(&scope.key(route));
        }
    }

    /// A pull failed. Returns the circuit that this opened; one whose probe failed was open before.
    pub(crate) fn failed(&mut self, route: &CircuitKey, fault: &Fault, now: Instant) -> Option<OpenCircuit> {
        let Some(met) = CircuitScope::from_fault(fault) else {
            if proves_an_answer(fault.class) {
                self.answered(route);
            }
            return None;
        };
        for other in CircuitScope::ALL.into_iter().filter(|other| *other < met) {
            self.circuits.remove(&other.key(route));
        }
        let key = met.key(route);
        if self.circuits.len() >= CIRCUITS_MAX && !self.circuits.contains_key(&key) {
            remove_oldest(&mut self.circuits, |circuit| circuit.touched);
        }
        let first = self.window_first;
        let circuit = self.circuits.entry(key.clone()).or_insert_with(|| Circuit::closed(fault.class, now));
        circuit.failures = circuit.failures.saturating_add(1);
        circuit.touched = now;
        circuit.class = fault.class;
        let is_late = circuit.until.is_some_and(|until| now < until) && circuit.probe.is_none();
        if is_late {
            // It started before the circuit opened, and proves nothing new.
            return None;
        }
        circuit.probe = None;
        let was_closed = circuit.until.is_none();
        if was_closed && fault.retry_after.is_none() && circuit.failures < OPENS_AFTER {
            return None;
        }
        circuit.window = match circuit.until {
            Some(_) => circuit.window.saturating_mul(2).min(WINDOW_MAX),
            None => first,
        };
        let window = fault.retry_after.map_or(circuit.window, |asked| asked.min(RETRY_AFTER_MAX).max(circuit.window));
        circuit.until = Some(now + window);
        if was_closed { circuit.opened(&key, now) } else { None }
    }
}

impl Circuit {
    fn closed(class: ErrorClass, now: Instant) -> Self {
        Self { failures: 0, window: Duration::ZERO, until: None, probe: None, touched: now, class }
    }

    fn refusal(&self, key: &ScopedKey, now: Instant) -> Option<OpenCircuit> {
        let until = self.until?;
        let probes = self.probe.is_some_and(|since| now.saturating_duration_since(since) < PROBE_MAX);
        if now >= until && !probes {
            return None;
        }
        self.opened(key, now)
    }

    /// The circuit unless it is closed, with or without a probe.
    fn opened(&self, key: &ScopedKey, now: Instant) -> Option<OpenCircuit> {
        let remaining = self.until?.saturating_duration_since(now);
        let (scope, CircuitKey { registry, .. }) = key;
        Some(OpenCircuit {
            registry: registry.clone(),
            scope: *scope,
            failures: self.failures,
            remaining,
            class: self.class,
        })
    }
}

/// Failures that only a registry which answers can cause.
fn proves_an_answer(class: ErrorClass) -> bool {
    matches!(
        class,
        ErrorClass::ImageUnknown
            | ErrorClass::BlobUnknown
            | ErrorClass::PlatformMissing
            | ErrorClass::DigestMismatch
            | ErrorClass::ContentInvalid
            | ErrorClass::Unacceptable
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_secs(10);

    fn route(registry: &str, credential: &str, image: &str) -> CircuitKey {
        CircuitKey { registry: registry.into(), credentials: vec![credential.into()], image: image.into() }
    }

    fn fault(class: ErrorClass) -> Fault {
        Fault::new(class, Stage::Manifest)
    }

    /// A registry that failed so often.
    fn after(failures: u32, class: ErrorClass, route: &CircuitKey, now: Instant) -> Circuits {
        let mut circuits = Circuits::new(FIRST);
        for _ in 0..failures {
            circuits.failed(route, &fault(class), now);
        }
        circuits
    }

    #[test]
    fn three_failures_hold_back_only_the_pulls_they_concern() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/a:v1");
        let others = [
            ("another registry", route("s.io", "ada", "r.io/a:v1")),
            ("another credential", route("r.io", "bob", "r.io/a:v1")),
            ("another image", route("r.io", "ada", "r.io/b:v1")),
        ];
        for (class, held) in [
            (ErrorClass::ConnectionRefused, [false, true, true]),
            (ErrorClass::HostNotFound, [false, true, true]),
            (ErrorClass::TimedOut, [false, true, true]),
            (ErrorClass::RegistryFailed, [false, true, true]),
            (ErrorClass::RateLimited, [false, false, true]),
            (ErrorClass::Unauthorized, [false, false, false]),
        ] {
            assert_eq!(after(2, class, &own, now).admit(&own, now), Ok(()), "{class}: two are not enough");
            let mut circuits = after(3, class, &own, now);
            let refusal = circuits.admit(&own, now).expect_err("three are");
            assert_eq!((refusal.remaining, refusal.failures), (FIRST, 3), "{class}");
            for ((what, other), held) in others.iter().zip(held) {
                assert_eq!(circuits.admit(other, now).is_err(), held, "{class}: {what}");
            }
        }
        for class in [ErrorClass::ImageUnknown, ErrorClass::DiskFull, ErrorClass::Other, ErrorClass::DigestMismatch] {
            assert_eq!(after(9, class, &own, now).admit(&own, now), Ok(()), "{class} says nothing of the registry");
        }
    }

    #[test]
    fn a_circuit_opens_once_and_the_text_has_registry_class_and_time_alone() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/secret:v1");
        for (class, asked, opens, text) in [
            (
                ErrorClass::Unreachable,
                None,
                3,
                "circuit opened for registry `r.io` (all-pulls) for 10 s: unreachable at manifest",
            ),
            (
                ErrorClass::Forbidden,
                None,
                3,
                "circuit opened for registry `r.io` (images) for 10 s: forbidden at manifest",
            ),
            (
                ErrorClass::RateLimited,
                Some(90),
                1,
                "circuit opened for registry `r.io` (credentials) for 90 s: rate-limited at manifest",
            ),
        ] {
            let mut circuits = Circuits::new(FIRST);
            let met = Fault { retry_after: asked.map(Duration::from_secs), ..fault(class) };
            for failures in 1..=5 {
                let opened = circuits.failed(&own, &met, now).map(|open| open.opening(Stage::Manifest));
                assert_eq!(opened.as_deref(), (failures == opens).then_some(text), "{failures} times {class}");
            }
            // The probe fails: it stays open.
            let then = now + Duration::from_secs(asked.unwrap_or(10));
            assert_eq!(circuits.admit(&own, then), Ok(()));
            assert_eq!(circuits.failed(&own, &met, then), None, "{class}");
            circuits.answered(&own);
            let again = (0..3).filter_map(|_| circuits.failed(&own, &met, then)).count();
            assert_eq!(again, 1, "{class}: it opens again");
        }
        assert_eq!(Circuits::new(FIRST).failed(&own, &fault(ErrorClass::DiskFull), now), None);
    }

    #[test]
    fn one_probe_goes_through_and_decides_for_all() {
        let now = Instant::now();
        let (own, other) = (route("r.io", "ada", "r.io/a:v1"), route("r.io", "bob", "r.io/b:v1"));
        let mut circuits = after(3, ErrorClass::Unreachable, &own, now);
        assert!(circuits.admit(&own, now + FIRST - Duration::from_nanos(1)).is_err());
        let then = now + FIRST;
        assert_eq!(circuits.admit(&own, then), Ok(()), "the probe");
        assert!(circuits.admit(&other, then).is_err(), "one is enough");
        assert_eq!(circuits.admit(&other, then + PROBE_MAX), Ok(()), "it hangs: another");

        let mut failed = circuits.clone_for_test();
        failed.failed(&own, &fault(ErrorClass::HostNotFound), then);
        let refusal = failed.admit(&other, then).expect_err("left alone for longer");
        assert_eq!((refusal.remaining, refusal.class), (FIRST * 2, ErrorClass::HostNotFound));
        circuits.answered(&own);
        assert_eq!((circuits.admit(&other, then), circuits.open(then)), (Ok(()), vec![]));
    }

    #[test]
    fn a_look_ahead_is_no_probe_and_waits_until_one_closed_the_circuit() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/a:v1");
        for (failures, class, then, closed) in [
            (0, ErrorClass::Unreachable, now, true),
            (2, ErrorClass::Unreachable, now, true),
            (3, ErrorClass::Unreachable, now, false),
            (3, ErrorClass::Unreachable, now + FIRST * 9, false),
            (3, ErrorClass::RateLimited, now + FIRST, false),
            (3, ErrorClass::Unauthorized, now + FIRST, false),
        ] {
            let mut circuits = after(failures, class, &own, now);
            assert_eq!(circuits.check_closed(&own, then).is_ok(), closed, "{failures} times {class}");
            if then > now {
                assert_eq!(circuits.admit(&own, then), Ok(()), "the probe is still to come");
                assert!(circuits.check_closed(&own, then).is_err());
            }
            circuits.answered(&own);
            assert_eq!(circuits.check_closed(&own, then), Ok(()));
        }
    }

    #[test]
    fn a_registry_that_names_a_time_is_not_asked_before_it() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/a:v1");
        for (asked, held) in [(30, 30), (1, 10), (299, 299), (300, 300), (301, 300), (86_400, 300)] {
            let mut circuits = Circuits::new(FIRST);
            let limited = Fault { retry_after: Some(Duration::from_secs(asked)), ..fault(ErrorClass::RateLimited) };
            circuits.failed(&own, &limited, now);
            let refusal = circuits.admit(&own, now).expect_err("at once");
            assert_eq!((refusal.remaining.as_secs(), refusal.scope), (held, CircuitScope::Credentials), "{asked} s");
        }
    }

    #[test]
    fn another_failure_ends_what_it_disproves() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/a:v1");
        for (before, then, ended) in [
            (ErrorClass::Unreachable, ErrorClass::Unauthorized, true),
            (ErrorClass::Unreachable, ErrorClass::RegistryFailed, false),
            (ErrorClass::Unreachable, ErrorClass::ImageUnknown, true),
            (ErrorClass::RegistryFailed, ErrorClass::Unauthorized, true),
            (ErrorClass::RegistryFailed, ErrorClass::Unreachable, false),
            (ErrorClass::Unauthorized, ErrorClass::Unreachable, false),
            (ErrorClass::Unauthorized, ErrorClass::ImageUnknown, true),
            (ErrorClass::RateLimited, ErrorClass::Unreachable, false),
            (ErrorClass::Unreachable, ErrorClass::DiskFull, false),
        ] {
            let mut circuits = after(3, before, &own, now);
            circuits.failed(&own, &fault(then), now);
            assert_eq!(circuits.admit(&own, now).is_ok(), ended, "{before}, then {then}");
        }
    }

    #[test]
    fn a_command_is_the_probe_of_an_open_circuit_and_its_outcome_counts() {
        let now = Instant::now();
        let (own, pod) = (route("r.io", "ada", "r.io/a:v1"), route("r.io", "bob", "r.io/b:v1"));
        let soon = now + Duration::from_secs(1);
        for (outcome, remaining) in [
            (Some(ErrorClass::Unreachable), Some(FIRST * 2)),
            (Some(ErrorClass::ImageUnknown), None),
            (Some(ErrorClass::Unauthorized), None),
            (Some(ErrorClass::DiskFull), Some(FIRST.saturating_sub(Duration::from_secs(1)))),
            (None, None),
        ] {
            let mut circuits = after(3, ErrorClass::Unreachable, &own, now);
            circuits.probe(&own, soon);
            assert!(circuits.admit(&pod, soon).is_err(), "pods wait on: {outcome:?}");
            match outcome {
                Some(class) => drop(circuits.failed(&own, &fault(class), soon)),
                None => circuits.answered(&own),
            }
            assert_eq!(circuits.admit(&pod, soon).err().map(|refusal| refusal.remaining), remaining, "{outcome:?}");
        }
        let mut closed = after(1, ErrorClass::Unreachable, &own, now);
        closed.probe(&own, now);
        closed.failed(&own, &fault(ErrorClass::Unreachable), now);
        assert_eq!(closed.admit(&pod, now), Ok(()), "two are not enough");
        closed.failed(&own, &fault(ErrorClass::Unreachable), now);
        assert!(closed.admit(&pod, now).is_err(), "a command's failures count");
    }

    #[test]
    fn open_circuits_are_shown_by_registry_and_scope_and_name_no_image() {
        let now = Instant::now();
        let mut circuits = after(3, ErrorClass::Unreachable, &route("r.io", "ada", "r.io/secret:v1"), now);
        for (image, later) in [("r.io/one:v1", 5), ("r.io/two:v1", 2)] {
            for _ in 0..3 {
                let at = now + Duration::from_secs(later);
                circuits.failed(&route("s.io", "ada", image), &fault(ErrorClass::Unauthorized), at);
            }
        }
        circuits.failed(&route("t.io", "", ""), &fault(ErrorClass::RateLimited), now);
        let shown = |at| -> Vec<(String, &str, u64)> {
            let open = circuits.open(at).into_iter();
            open.map(|it| (it.registry, it.scope.name(), (at + it.remaining - now).as_secs())).collect()
        };
        let all = [("r.io".to_owned(), "all-pulls", 10), ("s.io".to_owned(), "images", 12)];
        assert_eq!(shown(now), all);
        assert_eq!(shown(now + FIRST), all[1..]);
        assert!(!format!("{:?}", circuits.open(now)).contains("secret"));
        circuits.probe(&route("r.io", "ada", "r.io/secret:v1"), now + FIRST);
        assert_eq!(circuits.open(now + FIRST).len(), 2, "a probe is under way");
    }

    #[test]
    fn what_failed_on_its_way_before_does_not_lengthen_the_wait() {
        let now = Instant::now();
        let own = route("r.io", "ada", "r.io/a:v1");
        let mut circuits = after(50, ErrorClass::Unreachable, &own, now);
        assert_eq!(circuits.admit(&own, now).expect_err("open").remaining, FIRST);
    }

    #[test]
    fn circuits_are_bounded_and_the_oldest_goes_first() {
        let now = Instant::now();
        let mut circuits = Circuits::new(FIRST);
        for index in 0..CIRCUITS_MAX as u64 + 100 {
            let own = route(&format!("r{index}.io"), "", "");
            circuits.failed(&own, &fault(ErrorClass::Unreachable), now + Duration::from_nanos(index));
        }
        assert_eq!(circuits.circuits.len(), CIRCUITS_MAX);
        assert!(!circuits.circuits.contains_key(&CircuitScope::AllPulls.key(&route("r0.io", "", ""))));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever happens to one registry: another is never held, no wait is longer than the bound, and after it one
        /// probe is let through.
        #[test]
        fn no_registry_is_held_back_for_ever_or_for_another(
            steps in proptest::collection::vec((0usize..6, 0u64..120, proptest::option::of(0u64..100_000)), 1..60)
        ) {
            let classes = [
                ErrorClass::Unreachable, ErrorClass::RegistryFailed, ErrorClass::RateLimited, ErrorClass::Unauthorized,
                ErrorClass::ImageUnknown, ErrorClass::Other,
            ];
            let mut now = Instant::now();
            let mut circuits = Circuits::new(FIRST);
            let (own, other) = (route("r.io", "ada", "r.io/a:v1"), route("s.io", "ada", "s.io/a:v1"));
            for (class, seconds, asked) in steps {
                now += Duration::from_secs(seconds);
                if circuits.admit(&own, now).is_ok() {
                    let met = Fault { retry_after: asked.map(Duration::from_secs), ..fault(classes[class]) };
                    circuits.failed(&own, &met, now);
                }
                prop_assert_eq!(circuits.admit(&other, now), Ok(()));
                if let Err(refusal) = circuits.admit(&own, now) {
                    prop_assert!(refusal.remaining <= RETRY_AFTER_MAX);
                    let later = now + RETRY_AFTER_MAX + PROBE_MAX;
                    prop_assert_eq!(circuits.clone_for_test().admit(&own, later), Ok(()));
                }
            }
        }
    }

    impl Circuits {
        fn clone_for_test(&self) -> Self {
            Self { window_first: self.window_first, circuits: self.circuits.clone() }
        }
    }
}
