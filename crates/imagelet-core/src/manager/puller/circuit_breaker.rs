//! The circuit breaker of registries: rejects pulls for a while after failures; pure functions.
//!
//! A thousand pods that need images of a failed registry send it one probe at a time. A circuit is kept per registry
//! and failure scope; scopes that depend on repository, credentials or image have a circuit for each, so that no client
//! suffers for another. It opens after [`OPENS_AFTER`] failures in a row, or at once where the registry names a time. After its
//! window one pull is the probe; the others wait until it succeeds, or for [`PROBE_MAX`].

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    bounded_map::make_room,
    error::{ErrorClass, Fault, Party, RuntimeErrorKind, Stage},
    image::counted,
};

const OPENS_AFTER: u32 = 3;
/// A closed circuit forgets its failures when the last one is older.
const STALE_AFTER: Duration = Duration::from_mins(15);
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
    pub(crate) repository: String,
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
    /// The repository of the first failure.
    repository: String,
    /// The failures concern all pulls of the scope: with the answers to one repository alone, those of all pulls do not.
    is_general: bool,
}

/// A registry with an open circuit. Names no image: tenants share circuits.
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

/// The pulls that wait for a registry. A refusal, which has one of the last two scopes, proves that the registry answers,
/// which ends the failures of the earlier scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CircuitScope {
    /// All of them: the registry is unreachable or broken.
    AllPulls,
    /// Those from a repository: the registry fails for it, or redirects it to a host that fails.
    Repository,
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
    const ALL: [Self; 4] = [Self::AllPulls, Self::Repository, Self::Credentials, Self::Images];

    pub fn name(self) -> &'static str {
        match self {
            Self::AllPulls => "all-pulls",
            Self::Repository => "repository",
            Self::Credentials => "credentials",
            Self::Images => "images",
        }
    }

    /// The scope of a failure. `None`: the registry answered, and something else failed.
    fn from_fault(fault: &Fault) -> Option<Self> {
        match fault.class {
            _ if fault.is_unreached() => {}
            // A registry that is silent, not a store or a runtime.
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

    /// A pull failed. Returns the circuit that this opened, the wider one of two; one whose probe failed was open before.
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
            // That it still fails says nothing of other repositories, one of which may probe now.
            self.circuits.entry(all.key(route)).and_modify(|circuit| circuit.probe = None);
            return None;
        }
        let is_own = fault.party != Party::RedirectTarget;
        let opened_all = if is_own { self.count(all, route, fault, now) } else { None };
        opened_all.or(opened)
    }

    /// Counts a failure for a scope. Returns the circuit if this opened it.
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
            // It started before the circuit opened, and proves nothing new.
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
mod tests;
