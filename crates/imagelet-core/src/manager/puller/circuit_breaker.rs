//! The circuit breaker of registries: rejects pulls for a while after failures; pure functions.
//!
//! A registry has a circuit per failure scope, and per repository, credentials or image if the scope depends on them.
//! So the failures of one client do not stop other clients. A circuit opens after [`OPENS_AFTER`] failures in a row, or
//! at once if the registry requests a wait. An open circuit rejects pulls for a window. Then one pull is the probe, and
//! other pulls are rejected until it succeeds, at most for [`PROBE_MAX`].

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    bounded_map::make_room,
    error::{ErrorClass, Fault, Party, RuntimeErrorKind, Stage},
    image::counted,
    text::named_enum,
};

const OPENS_AFTER: u32 = 3;
/// A closed circuit forgets its failures this long after the last failure.
const STALE_AFTER: Duration = Duration::from_mins(15);
/// The longest window if the registry requests no wait. Short, so that a recovered registry is used soon.
const WINDOW_MAX: Duration = Duration::from_mins(1);
const RETRY_AFTER_MAX: Duration = Duration::from_mins(5);
/// After this time another probe is permitted, because the first probe is slow or hangs.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// The maximum number of circuits. Above it, the circuits with the oldest last failure are dropped.
const CIRCUITS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CircuitKey {
    pub(crate) registry: String,
    pub(crate) repository: String,
    pub(crate) credentials: Vec<String>,
    pub(crate) image: String,
}

/// A scope, and the parts of the key that the scope depends on. The other parts are empty.
type ScopedKey = (CircuitScope, CircuitKey);

#[derive(Clone, Debug)]
struct Circuit {
    failures: u32,
    window: Duration,
    /// The end of the window. `None`: the circuit is closed.
    until: Option<Instant>,
    probe: Option<Instant>,
    touched: Instant,
    class: ErrorClass,
    /// The repository of the first failure.
    repository: String,
    /// `false`: all failures are of one repository, so the circuit for all pulls stays closed.
    is_general: bool,
}

/// An open circuit of a registry. Contains no image name, because tenants share circuits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "circuit open for registry `{registry}` after {} ({class}); {}",
    counted(*.failures, "failure"),
    next_attempt(*.remaining)
)]
pub struct OpenCircuit {
    pub registry: String,
    pub scope: CircuitScope,
    pub class: ErrorClass,
    /// Failures in a row. For several circuits in this scope, the highest number.
    pub failures: u32,
    /// The time until the next attempt; zero during a probe.
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
    /// The event text of an opened circuit. It has no number of failures, because each number would make a new event.
    pub(crate) fn opening(&self, stage: Stage) -> String {
        let Self { registry, scope, class, remaining, .. } = self;
        let (scope, seconds) = (scope.name(), remaining.as_secs());
        format!("circuit opened for registry `{registry}` ({scope}) for {seconds} s: {class} at {stage}")
    }

    pub(crate) fn kind(&self) -> RuntimeErrorKind {
        match self.scope {
            CircuitScope::AllPulls | CircuitScope::Repository | CircuitScope::Credentials => {
                RuntimeErrorKind::RegistryUnavailable
            }
            CircuitScope::Images => RuntimeErrorKind::Denied,
        }
    }
}

named_enum! {
    /// The pulls that an open circuit rejects. A failure in one of the last two scopes is an answer of the registry, so
    /// that failure closes the circuits of the earlier scopes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum CircuitScope {
        /// All pulls: the registry is unreachable or broken.
        AllPulls = "all-pulls",
        /// Pulls from one repository: the registry fails for it, or redirects it to a host that fails.
        Repository = "repository",
        /// Pulls with the same credentials: the registry limits their rate.
        Credentials = "credentials",
        /// Pulls of one image with the same credentials: the registry rejects them.
        Images = "images",
    }
}

#[derive(Debug)]
pub(crate) struct Circuits {
    window_first: Duration,
    circuits: HashMap<ScopedKey, Circuit>,
}

impl CircuitScope {
    /// The scope of a failure. `None`: the registry answered, and something else failed.
    fn from_fault(fault: &Fault) -> Option<Self> {
        match fault.class {
            _ if fault.is_unreached() => {}
            // Only a silent registry counts, not a silent store or runtime.
            ErrorClass::TimedOut if matches!(fault.stage, Stage::Token | Stage::Manifest | Stage::Blob) => {}
            ErrorClass::RegistryFailed => {}
            ErrorClass::RateLimited if fault.party == Party::RedirectTarget => {}
            ErrorClass::RateLimited => return Some(Self::Credentials),
            ErrorClass::Unauthorized | ErrorClass::Forbidden => return Some(Self::Images),
            _ => return None,
        }
        let is_host = fault.is_unreached() && fault.party == Party::Registry;
        Some(if is_host { Self::AllPulls } else { Self::Repository })
    }

    fn key(self, route: &CircuitKey) -> ScopedKey {
        let mut of = route.clone();
        if matches!(self, Self::AllPulls | Self::Credentials) {
            of.repository.clear();
        }
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

    /// Whether a pull may begin. The pull may become the probe of an open circuit.
    pub(crate) fn admit(&mut self, route: &CircuitKey, now: Instant) -> Result<(), OpenCircuit> {
        for key in CircuitScope::ALL.map(|scope| scope.key(route)) {
            if let Some(open) = self.circuits.get(&key).and_then(|circuit| circuit.refusal(&key, now)) {
                return Err(open);
            }
        }
        self.probe(route, now);
        Ok(())
    }

    /// Whether a pull that must not be a probe may begin. A circuit whose window is over also rejects such a pull.
    pub(crate) fn check_closed(&self, route: &CircuitKey, now: Instant) -> Result<(), OpenCircuit> {
        let open = CircuitScope::ALL.map(|scope| scope.key(route)).into_iter();
        let mut open = open.filter_map(|key| self.circuits.get(&key)?.opened(&key, now));
        open.next().map_or(Ok(()), Err)
    }

    pub(crate) fn probe(&mut self, route: &CircuitKey, now: Instant) {
        for scope in CircuitScope::ALL {
            if let Some(circuit) = self.circuits.get_mut(&scope.key(route)).filter(|it| it.until.is_some()) {
                circuit.probe = Some(now);
            }
        }
    }

    /// One open circuit for each registry and scope, sorted by both: the circuit with the earliest next attempt.
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

    /// Records a failed pull. Returns the circuit that this failure opened; if it opened two, the circuit for all
    /// pulls. `None`: no circuit opened, for example because a failed probe finds it open.
    pub(crate) fn failed(&mut self, route: &CircuitKey, fault: &Fault, now: Instant) -> Option<OpenCircuit> {
        let Some(met) = CircuitScope::from_fault(fault) else {
            if proves_an_answer(fault.class) {
                self.answered(route);
            }
            return None;
        };
        if met != CircuitScope::Repository {
            for other in CircuitScope::ALL.into_iter().filter(|other| *other < met) {
                self.circuits.remove(&other.key(route));
            }
            return self.count(met, route, fault, now);
        }
        let was_open = self.circuits.get(&met.key(route)).is_some_and(|circuit| circuit.until.is_some());
        let opened = self.count(met, route, fault, now);
        let all = CircuitScope::AllPulls;
        if was_open {
            // This failure says nothing about other repositories. A pull from another repository may be the probe now.
            self.circuits.entry(all.key(route)).and_modify(|circuit| circuit.probe = None);
            return None;
        }
        let is_own = fault.party != Party::RedirectTarget;
        let opened_all = if is_own { self.count(all, route, fault, now) } else { None };
        opened_all.or(opened)
    }

    fn count(&mut self, scope: CircuitScope, route: &CircuitKey, fault: &Fault, now: Instant) -> Option<OpenCircuit> {
        let key = scope.key(route);
        make_room(&mut self.circuits, &key, CIRCUITS_MAX, |circuit| circuit.touched);
        let first = self.window_first;
        let circuit = self.circuits.entry(key.clone()).or_insert_with(|| Circuit::closed(route, fault.class, now));
        if circuit.until.is_none() && now.saturating_duration_since(circuit.touched) > STALE_AFTER {
            *circuit = Circuit::closed(route, fault.class, now);
        }
        circuit.failures = circuit.failures.saturating_add(1);
        circuit.touched = now;
        circuit.class = fault.class;
        circuit.is_general |= CircuitScope::from_fault(fault) == Some(scope) || circuit.repository != route.repository;
        let is_late = circuit.until.is_some_and(|until| now < until) && circuit.probe.is_none();
        if is_late {
            // The pull started before the circuit opened, and proves nothing new.
            return None;
        }
        circuit.probe = None;
        let was_closed = circuit.until.is_none();
        let is_enough = circuit.is_general && (fault.retry_after.is_some() || circuit.failures >= OPENS_AFTER);
        if was_closed && !is_enough {
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
    fn closed(route: &CircuitKey, class: ErrorClass, now: Instant) -> Self {
        let repository = route.repository.clone();
        let (window, until, probe) = (Duration::ZERO, None, None);
        Self { failures: 0, window, until, probe, touched: now, class, repository, is_general: false }
    }

    fn refusal(&self, key: &ScopedKey, now: Instant) -> Option<OpenCircuit> {
        let is_probed = self.probe.is_some_and(|since| now.saturating_duration_since(since) < PROBE_MAX);
        self.opened(key, now).filter(|open| is_probed || !open.remaining.is_zero())
    }

    /// The circuit if it is open, with or without a running probe.
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
mod tests;
